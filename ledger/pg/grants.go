package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// Errors of grants.
var (
	ErrGrantUnknown = errors.New("no such grant")                                  // by GrantEvent: neither settled nor ordered
	ErrGrantExists  = errors.New("it was made with other content, use another id") // by OrderGrant
)

func grantAccount(e *event.Event) string { return clean("app:" + e.App + ":grants") }

// queueGrant writes a grant or a revocation. There is no ON CONFLICT: a second event under the id of a grant is a conflict, and
// is parked.
func queueGrant(out *pgx.Batch, e *event.Event) {
	const insert = `
INSERT INTO grants (grant_id, event_id, granted_at, owner, app, subject, limit_name, tier, family, name, unit, period, amount,
    window_start, window_end, until, revokes, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, nullif($17, ''), $18)`
	g := e.Grant
	app := e.App
	if g.Tier.Shared() {
		app = ""
	}
	name := ledger.Counter{Subject: g.Subject}.Name()
	out.Queue(insert, clean(g.ID), clean(e.ID), e.OccurredAt, clean(e.App), clean(app), clean(g.Subject), clean(g.Limit),
		clean(string(g.Tier)), clean(g.Family), clean(name), string(g.Unit), string(g.Period), g.Amount,
		orEpoch(g.Window.Start), orNull(g.Window.End), orNull(g.Until), clean(g.Revokes), clean(g.Reason))
}

// collectGrants makes a transfer of every new grant of dollars: from the app's grants to its spend account, and back when it is
// revoked.
func (p *posting) collectGrants() {
	for _, x := range p.fresh {
		e := x.Event
		if e.Kind != event.KindGranted || e.Grant.Unit != ledger.UnitUSD {
			continue
		}
		t := transfer{
			cause: e, kind: transferGrant, debit: grantAccount(e), credit: spendAccount(e), amount: ledger.NanoUSD(e.Grant.Amount),
			occurredAt: e.OccurredAt,
		}
		if t.amount < 0 {
			linked := clean(e.Grant.RevokesEvent) + "/" + transferGrant
			t.debit, t.credit, t.amount, t.linked = t.credit, t.debit, -t.amount, &linked
		}
		p.transfer = append(p.transfer, t)
	}
}

// OrderGrant notes that the event's grant is wanted, before the event is published, and returns the event that is noted under
// its id: this one, or the one that was there first and says the same. Publishing what it returns any number of times grants it
// once. It errs with ErrAppUnknown or ErrKeyUnknown when the directory does not know who is granted to, and with ErrGrantExists.
func (s *Store) OrderGrant(ctx context.Context, e *event.Event) (*event.Event, []byte, error) {
	const insert = `INSERT INTO grant_orders (grant_id, body) VALUES ($1, $2) ON CONFLICT (grant_id) DO NOTHING`
	body, err := e.Encode()
	if err != nil {
		return nil, nil, err
	}
	err = s.checkGrantee(ctx, e)
	if err == nil {
		_, err = s.pool.Exec(ctx, insert, e.Grant.ID, body)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("order grant %s: %w", e.Grant.ID, err)
	}
	noted, body, err := s.GrantEvent(ctx, e.Grant.ID)
	if err == nil && !sameGrant(e, noted) {
		err = fmt.Errorf("order grant %s again, which is of %s: %w", e.Grant.ID, noted.OccurredAt.Format(time.DateOnly), ErrGrantExists)
	}
	return noted, body, err
}

// checkGrantee looks for the app and the key in the directory. What is taken back was given: a restored directory may lack them.
func (s *Store) checkGrantee(ctx context.Context, e *event.Event) error {
	const query = `
SELECT EXISTS (SELECT FROM apps WHERE app = $1), EXISTS (SELECT FROM api_keys WHERE app = $1 AND key_id = $2)`
	if e.Grant.Tier.Shared() || e.Grant.Revokes != "" {
		return nil
	}
	key := ledger.Counter{Subject: e.Grant.Subject}.Name()
	var appKnown, keyKnown bool
	if err := s.pool.QueryRow(ctx, query, clean(e.App), clean(key)).Scan(&appKnown, &keyKnown); err != nil {
		return err
	}
	switch {
	case !appKnown:
		return fmt.Errorf("app %q: %w", e.App, ErrAppUnknown)
	case e.Grant.Tier == ledger.TierKey && !keyKnown:
		return fmt.Errorf("key %q of app %q: %w", key, e.App, ErrKeyUnknown)
	}
	return nil
}

// sameGrant compares what people asked for; when it was asked, and the window that follows from it, may differ.
func sameGrant(a, b *event.Event) bool {
	x, y := *a.Grant, *b.Grant
	same := a.App == b.App && x.Until.Equal(y.Until)
	x.Window, y.Window, x.Until, y.Until = ledger.Window{}, ledger.Window{}, time.Time{}, time.Time{}
	return same && x == y
}

// GrantEvent is the event of a grant or revocation, settled or only ordered, and its bytes. It errs with ErrGrantUnknown.
func (s *Store) GrantEvent(ctx context.Context, id string) (*event.Event, []byte, error) {
	// What is settled comes first: the order may have been lost with a restored database, and made anew since.
	const query = `
SELECT e.body FROM grants g JOIN events e ON e.event_id = g.event_id WHERE g.grant_id = $1
UNION ALL
SELECT body FROM grant_orders WHERE grant_id = $1
LIMIT 1`
	var body []byte
	err := s.pool.QueryRow(ctx, query, clean(id)).Scan(&body)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrGrantUnknown
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read grant %s: %w", id, err)
	}
	e, err := event.Decode(body)
	if err != nil {
		return nil, nil, fmt.Errorf("read grant %s: %w", id, err)
	}
	return e, body, nil
}

// GrantSettled reports whether the grant or revocation is in the ledger.
func (s *Store) GrantSettled(ctx context.Context, id string) (bool, error) {
	const query = `SELECT EXISTS (SELECT FROM grants WHERE grant_id = $1)`
	var settled bool
	if err := s.pool.QueryRow(ctx, query, clean(id)).Scan(&settled); err != nil {
		return false, fmt.Errorf("look for grant %s: %w", id, err)
	}
	return settled, nil
}

// GrantState is a grant as people look at it.
type GrantState struct {
	ID, App, Limit, Subject, Unit, Period, Amount, State, Reason string
	GrantedAt, EndsAt                                            time.Time // EndsAt is zero for never
}

// ListGrants lists the grants of one app, or all for "", the newest last.
func (s *Store) ListGrants(ctx context.Context, app string) ([]GrantState, error) {
	const query = `
SELECT grant_id, app, limit_name, subject, unit, period, trim_scale(amount)::text, state, reason, granted_at, ends_at
FROM finance.grants WHERE $1 = '' OR app = $1 ORDER BY granted_at, grant_id`
	rows, err := s.pool.Query(ctx, query, clean(app))
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g GrantState, err error) {
		var ends *time.Time
		err = row.Scan(&g.ID, &g.App, &g.Limit, &g.Subject, &g.Unit, &g.Period, &g.Amount, &g.State, &g.Reason, &g.GrantedAt, &ends)
		g.EndsAt = fromNull(ends)
		return g, err
	})
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	return list, nil
}

// GrantsInForce reads the grants that are not taken back and have not lapsed.
func (s *Store) GrantsInForce(ctx context.Context) ([]event.GrantInForce, error) {
	// A day longer than they last: gateways look at the time themselves, and their clocks may be behind.
	const query = `
SELECT e.body
FROM grants g
JOIN events e ON e.event_id = g.event_id
WHERE g.revokes IS NULL AND NOT EXISTS (SELECT FROM grants r WHERE r.revokes = g.grant_id)
    AND (g.until IS NULL OR g.until > now() - interval '1 day') AND (g.window_end IS NULL OR g.window_end > now() - interval '1 day')`
	rows, err := s.pool.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read grants in force: %w", err)
	}
	grants, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g event.GrantInForce, err error) {
		var body []byte
		if err := row.Scan(&body); err != nil {
			return g, err
		}
		e, err := event.Decode(body)
		if err != nil {
			return g, err
		}
		return event.GrantInForce{Grant: *e.Grant, GrantedAt: e.OccurredAt}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read grants in force: %w", err)
	}
	return grants, nil
}
