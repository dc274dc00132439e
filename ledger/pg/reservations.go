package pg

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// The states of a reservation.
const (
	statePending  = "pending"
	stateSettled  = "settled"
	stateReleased = "released"
	stateExpired  = "expired"
)

// flagUsedAfterRelease marks a request that its gateway reported both as unspent and as used; the use counts.
const flagUsedAfterRelease = "used_after_release"

// reservationRow is what the deciding event makes of a reservation.
type reservationRow struct {
	event   *event.Event // nil when the row was read from the database
	state   string
	held    ledger.Amounts
	charged ledger.Amounts
	usage   ledger.UsageState
	flags   []string

	adjustments int  // the number of the adjustment that decides, 0 without one
	both        bool // read from the database: flagged as used after a release
}

// rowOf folds: e is the deciding event, released whether a Released event is known besides it.
func rowOf(e *event.Event, released bool) reservationRow {
	r := e.Reservation
	row := reservationRow{event: e, held: r.HeldInAll(), flags: r.Flags}
	switch e.Kind {
	case event.KindUsed, event.KindAdjusted:
		row.state, row.charged, row.usage = stateSettled, e.Outcome.Spent(), e.Outcome.UsageState
		row.adjustments = rank(e) - rankUsed
		if released {
			row.flags = append(slices.Clone(r.Flags), flagUsedAfterRelease)
		}
	case event.KindReleased:
		row.state = stateReleased
	case event.KindExpired:
		row.state = stateExpired
		if r.OnExpiry == event.ExpiryCharge {
			row.charged, row.usage = row.held, ledger.UsageUnconfirmed
		}
	default:
		row.state = statePending
	}
	return row
}

// rank is that of the event that made the row.
func (r *reservationRow) rank() int {
	switch r.state {
	case stateSettled:
		return rankUsed + r.adjustments
	case stateReleased:
		return rankReleased
	case stateExpired:
		return rankExpired
	default:
		return rankReserved
	}
}

// writeReservations brings the row of every touched reservation to the state that all events known so far fold to. New rows go
// first: where another settler inserts the same one, its commit is waited for, and the row is changed like any that was there.
func (p *posting) writeReservations(ctx context.Context, tx pgx.Tx) error {
	var fresh, present []*touch
	for _, t := range p.touched {
		if t.freshTop == nil {
			present = append(present, t)
			continue
		}
		t.row = rowOf(t.freshTop, t.released)
		fresh = append(fresh, t)
	}
	inserted, err := insertReservations(ctx, tx, fresh)
	if err != nil {
		return err
	}
	for _, t := range fresh {
		if !inserted[t.id] {
			present = append(present, t)
		}
	}
	return p.changeReservations(ctx, tx, present)
}

// insertReservations answers the ids of those that were not there.
func insertReservations(ctx context.Context, tx pgx.Tx, fresh []*touch) (map[string]bool, error) {
	const insert = `
INSERT INTO reservations (` + reservationColumns + `)
SELECT n.* FROM ` + incomingReservations + `
ON CONFLICT DO NOTHING
RETURNING reservation_id`
	if len(fresh) == 0 {
		return nil, nil
	}
	incoming, err := incomingArgument(ctx, tx.Conn(), fresh)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, insert, incomingMode(tx.Conn()), incoming)
	if err != nil {
		return nil, fmt.Errorf("insert reservations: %w", err)
	}
	inserted := make(map[string]bool, len(fresh))
	var id string
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		inserted[id] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("insert reservations: %w", err)
	}
	return inserted, nil
}

// changeReservations locks rows that are there already, and replaces those that a new event outranks.
func (p *posting) changeReservations(ctx context.Context, tx pgx.Tx, present []*touch) error {
	before, err := lockReservations(ctx, tx, present)
	if err != nil {
		return err
	}
	var replaced []*touch
	var undone, flagged []string
	for _, t := range present {
		old, found := before[t.id]
		switch {
		case !found:
			return fmt.Errorf("reservation %s has events but no row", t.id)
		case t.freshTop == nil || rank(t.freshTop) < old.rank() || old.state == statePending && !grows(old, t.freshTop):
			t.row = old
			if t.released && old.state == stateSettled {
				flagged = append(flagged, t.id)
			}
		default:
			t.row = rowOf(t.freshTop, t.released || old.state == stateReleased || old.both)
			replaced = append(replaced, t)
			if old.state == stateSettled {
				t.before = old.charged
			}
			if old.state == stateExpired && old.charged != (ledger.Amounts{}) {
				undone = append(undone, event.ID(t.id, event.KindExpired))
			}
		}
	}
	if err := p.loadUndone(ctx, tx, undone); err != nil {
		return err
	}
	return updateReservations(ctx, tx, replaced, flagged)
}

// grows reports whether a pending reservation is known to hold less than the event says: its extensions come in any order. An event
// that ends it always counts.
func grows(old reservationRow, e *event.Event) bool {
	held := e.Reservation.HeldInAll()
	return rank(e) > rankReserved || held.Tokens > old.held.Tokens || held.NanoUSD > old.held.NanoUSD
}

// loadUndone finds the Expired events whose charge is taken back: they name the budgets and accounts that carry it.
func (p *posting) loadUndone(ctx context.Context, tx pgx.Tx, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	expired, err := loadEvents(ctx, tx, ids)
	if err != nil {
		return err
	}
	for _, t := range p.touched {
		if id := event.ID(t.id, event.KindExpired); slices.Contains(ids, id) {
			if t.undone = expired[id]; t.undone == nil {
				return fmt.Errorf("reservation %s is expired without an event", t.id)
			}
		}
	}
	return nil
}

// lockReservations reads, and locks in the order of their ids, rows that are there already.
func lockReservations(ctx context.Context, tx pgx.Tx, touches []*touch) (map[string]reservationRow, error) {
	const query = `
SELECT r.reservation_id, r.state, r.usage_state, r.held_requests, r.held_tokens, r.held_nanousd,
    r.charged_requests, r.charged_tokens, r.charged_nanousd, r.adjustments, r.flags @> $3
FROM unnest($1::text[], $2::date[]) AS k (reservation_id, day)
JOIN reservations r ON r.reservation_id = k.reservation_id AND r.day = k.day
ORDER BY r.reservation_id
FOR UPDATE OF r`
	before := map[string]reservationRow{}
	if len(touches) == 0 {
		return before, nil
	}
	ids, days := make([]string, len(touches)), make([]time.Time, len(touches))
	for i, t := range touches {
		ids[i], days[i] = t.id, day(t.id)
	}
	rows, err := tx.Query(ctx, query, ids, days, []string{flagUsedAfterRelease})
	if err != nil {
		return nil, fmt.Errorf("lock reservations: %w", err)
	}
	var id string
	var row reservationRow
	into := []any{
		&id, &row.state, &row.usage, &row.held.Requests, &row.held.Tokens, &row.held.NanoUSD,
		&row.charged.Requests, &row.charged.Tokens, &row.charged.NanoUSD, &row.adjustments, &row.both,
	}
	_, err = pgx.ForEachRow(rows, into, func() error {
		before[id] = row
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock reservations: %w", err)
	}
	return before, nil
}

func updateReservations(ctx context.Context, tx pgx.Tx, replaced []*touch, flagged []string) error {
	const update = `
UPDATE reservations r SET (` + reservationColumns + `) = ROW (n.*)
FROM ` + incomingReservations + `
WHERE r.reservation_id = n.reservation_id AND r.day = n.day`
	const flag = `
UPDATE reservations r SET flags = array_append(r.flags, $3)
FROM unnest($1::text[], $2::date[]) AS k (reservation_id, day)
WHERE r.reservation_id = k.reservation_id AND r.day = k.day`
	if len(replaced) > 0 {
		incoming, err := incomingArgument(ctx, tx.Conn(), replaced)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, update, incomingMode(tx.Conn()), incoming); err != nil {
			return fmt.Errorf("update reservations: %w", err)
		}
	}
	if len(flagged) > 0 {
		days := make([]time.Time, len(flagged))
		for i, id := range flagged {
			days[i] = day(id)
		}
		if _, err := tx.Exec(ctx, flag, flagged, days, flagUsedAfterRelease); err != nil {
			return fmt.Errorf("flag reservations: %w", err)
		}
	}
	return nil
}
