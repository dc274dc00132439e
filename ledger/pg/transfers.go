package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// The kinds of transfers that settlement makes.
const (
	transferSettle  = "settle"  // what a request used
	transferExpire  = "expire"  // what was held for a request whose outcome never arrived
	transferCorrect = "correct" // takes an expiry's charge back
	transferAdjust  = "adjust"  // corrects what a use was charged, by the difference
	transferGrant   = "grant"   // dollars added to a budget, or taken back
)

// transfer is one movement of money. Its id is the event that caused it and its kind.
type transfer struct {
	cause         *event.Event
	kind          string
	debit, credit string // account names
	amount        ledger.NanoUSD
	priceRow      string
	components    *string // JSON, nil for none
	linked        *string // id of the transfer taken back or adjusted
	occurredAt    time.Time
}

func spendAccount(e *event.Event) string { return clean("app:" + e.App + ":spend") }
func payableAccount(e *event.Event) string {
	return clean("provider:" + e.Reservation.Provider + ":payable")
}

func unconfirmedAccount(e *event.Event) string {
	return clean("provider:" + e.Reservation.Provider + ":unconfirmed")
}

// transfers are those that the batch's new events about a reservation make: one of its use, also at zero cost, one of each
// adjustment, and one of an expiry that charges and that nothing outranks.
func (t *touch) transfers() []transfer {
	var made []transfer
	if e := t.used; e != nil {
		made = append(made, transfer{
			cause: e, kind: transferSettle, debit: spendAccount(e), credit: payableAccount(e), amount: e.Outcome.Cost, priceRow: priceRow(e),
			components: componentsOf(e), occurredAt: e.OccurredAt,
		})
	}
	if e := t.row.event; e != nil && t.row.state == stateExpired && t.row.usage == ledger.UsageUnconfirmed {
		made = append(made, transfer{
			cause: e, kind: transferExpire, debit: spendAccount(e), credit: unconfirmedAccount(e), amount: t.row.charged.NanoUSD,
			priceRow: priceRow(e), occurredAt: e.OccurredAt,
		})
	}
	for _, e := range t.adjusted {
		made = append(made, adjustment(e))
	}
	return made
}

// adjustment moves the difference between what was charged and what it should have been. It counts for the day of the use, like a
// correction, and names everything that the new cost was computed from.
func adjustment(e *event.Event) transfer {
	linked := event.ID(e.Reservation.ID, event.KindUsed) + "/" + transferSettle
	if n := e.Adjustment.Number; n > 1 {
		linked = event.AdjustedID(e.Reservation.ID, n-1) + "/" + transferAdjust
	}
	x := transfer{
		cause: e, kind: transferAdjust, debit: spendAccount(e), credit: payableAccount(e), amount: e.Outcome.Cost - e.Adjustment.Before,
		priceRow: priceRow(e), components: componentsOf(e), linked: &linked, occurredAt: e.OccurredAt,
	}
	if x.amount < 0 {
		x.debit, x.credit, x.amount = x.credit, x.debit, -x.amount
	}
	return x
}

// componentsOf are the outcome's, as JSON, nil for none.
func componentsOf(e *event.Event) *string {
	if len(e.Outcome.Components) == 0 {
		return nil
	}
	text, err := json.Marshal(e.Outcome.Components)
	if err != nil {
		return nil // plain numbers and strings always marshal
	}
	components := string(text)
	return &components
}

// correction takes back what expired charged. It counts for the same day, so that every day's sum is what was used.
func correction(cause, expired *event.Event) transfer {
	linked := clean(expired.ID) + "/" + transferExpire
	return transfer{
		cause: cause, kind: transferCorrect, debit: unconfirmedAccount(expired), credit: spendAccount(expired),
		amount: expired.Reservation.HeldInAll().NanoUSD, priceRow: priceRow(expired), linked: &linked, occurredAt: expired.OccurredAt,
	}
}

// insertTransfers writes the batch's transfers. Their causes are new events, so none of them is there already.
func (p *posting) insertTransfers(ctx context.Context, tx pgx.Tx) error {
	if len(p.transfer) == 0 {
		return nil
	}
	columns := []string{
		"event_id", "kind", "day", "debit_account_id", "credit_account_id", "amount_nanousd", "reservation_id", "price_row",
		"components", "linked_transfer", "occurred_at", "utc_day",
	}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"transfers"}, columns, pgx.CopyFromSlice(len(p.transfer), func(i int) ([]any, error) {
		x := &p.transfer[i]
		var reservation *string
		if r := x.cause.Reservation; r != nil {
			reservation = &r.ID
		}
		return []any{
			clean(x.cause.ID), x.kind, day(x.cause.ID), p.account(x.debit), p.account(x.credit), int64(x.amount), reservation,
			clean(x.priceRow), x.components, x.linked, x.occurredAt, x.occurredAt.UTC(),
		}, nil
	}))
	if err != nil {
		return fmt.Errorf("insert transfers: %w", err)
	}
	return nil
}

// accountsOf names the accounts, by kind, that the batch's transfers can need. A correction needs those of the expiry, which
// is about the same app and provider.
func accountsOf(batch []Received) map[string]string {
	names := map[string]string{}
	for _, x := range batch {
		if rank(x.Event) >= rankExpired {
			names[spendAccount(x.Event)] = "spend"
			names[payableAccount(x.Event)] = "payable"
			names[unconfirmedAccount(x.Event)] = "unconfirmed"
		}
		if x.Event.Kind == event.KindGranted && x.Event.Grant.Unit == ledger.UnitUSD {
			names[spendAccount(x.Event)] = "spend"
			names[grantAccount(x.Event)] = "grant"
		}
	}
	return names
}

// account is the id of an account that ensureAccounts has met; 0, which no account has, for another.
func (p *posting) account(name string) int64 {
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	return p.accounts[name]
}

// ensureAccounts makes the accounts (name to kind) that are not there. It runs outside of the batch's transaction: an
// account without transfers does no harm, and an id learnt from a transaction that is rolled back would. It answers all that are known
// of the server that q goes to, guarded by mu.
func (s *Store) ensureAccounts(ctx context.Context, q querier, server string, wanted map[string]string) (map[string]int64, error) {
	const insert = `
INSERT INTO accounts (name, kind) SELECT n.name, n.kind FROM unnest($1::text[], $2::text[]) AS n (name, kind)
ORDER BY n.name
ON CONFLICT (name) DO NOTHING`
	const query = `SELECT name, account_id FROM accounts WHERE name = ANY($1::text[])`
	var names, kinds []string
	s.mu.Lock()
	known, stale := s.accounts, s.staleLocked(server)
	for name, kind := range wanted {
		if known[name] == 0 {
			names, kinds = append(names, name), append(kinds, kind)
		}
	}
	s.mu.Unlock()
	if stale {
		return nil, ErrNotAccepted
	}
	if len(names) == 0 {
		return known, nil
	}
	if _, err := q.Exec(ctx, insert, names, kinds); err != nil {
		return nil, fmt.Errorf("make accounts: %w", err)
	}
	rows, err := q.Query(ctx, query, names)
	if err != nil {
		return nil, fmt.Errorf("read accounts: %w", err)
	}
	var name string
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&name, &id}, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		known[name] = id // where another server was accepted meanwhile, that has a list of its own
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read accounts: %w", err)
	}
	return known, nil
}
