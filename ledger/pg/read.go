package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// Apps lists every app that the ledger knows, from the directory and from budgets, in order.
func (s *Store) Apps(ctx context.Context) ([]string, error) {
	const query = `SELECT app FROM apps UNION SELECT DISTINCT app FROM budgets WHERE app <> '' ORDER BY 1`
	rows, err := s.pool.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("list apps: %w", err)
	}
	apps, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list apps: %w", err)
	}
	return apps, nil
}

// Empty reports whether the ledger has never seen a reservation.
func (s *Store) Empty(ctx context.Context) (bool, error) {
	const query = `SELECT NOT EXISTS (SELECT FROM budgets) AND NOT EXISTS (SELECT FROM reservations)`
	var empty bool
	if err := s.pool.QueryRow(ctx, query).Scan(&empty); err != nil {
		return false, fmt.Errorf("look for reservations: %w", err)
	}
	return empty, nil
}

// clockSkew is by how much the clocks of settlers and Redis may differ: so close to the turn of a window, the one before is still
// judged by.
const clockSkew = time.Minute

// LiveBudgets reads the budgets of the owners, apps or "" for the shared ones, whose window is not over at now by
// any clock. For a rebuild of Redis it is called on the session that excludes settlements.
func (s *Session) LiveBudgets(ctx context.Context, now time.Time, owners ...string) ([]ledger.CounterState, error) {
	const query = `
SELECT ` + counterColumns + `
FROM budgets
WHERE app = ANY($1) AND (window_end IS NULL OR window_end > $2)
ORDER BY app, subject, period, window_start`
	states, err := s.counterStates(ctx, query, owners, now.Add(-clockSkew))
	if err != nil {
		return nil, fmt.Errorf("read budgets of %q: %w", owners, err)
	}
	return states, nil
}

// AllLiveBudgets is LiveBudgets of every app and the shared ones.
func (s *Session) AllLiveBudgets(ctx context.Context, now time.Time) ([]ledger.CounterState, error) {
	const query = `
SELECT ` + counterColumns + `
FROM budgets
WHERE window_end IS NULL OR window_end > $1
ORDER BY app, subject, period, window_start`
	states, err := s.counterStates(ctx, query, now.Add(-clockSkew))
	if err != nil {
		return nil, fmt.Errorf("read budgets of all: %w", err)
	}
	return states, nil
}

const counterColumns = `app, tier, family, subject, period, window_start, window_end, requests, tokens, nanousd, version`

// counterStates runs a query that gives counterColumns.
func (s *Session) counterStates(ctx context.Context, query string, args ...any) ([]ledger.CounterState, error) {
	rows, err := s.conn.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c ledger.CounterState, err error) {
		var start time.Time
		var end *time.Time
		err = row.Scan(&c.App, &c.Counter.Tier, &c.Counter.Family, &c.Counter.Subject, &c.Counter.Period, &start, &end,
			&c.Used.Requests, &c.Used.Tokens, &c.Used.NanoUSD, &c.Version)
		if end != nil {
			c.Counter.Window = ledger.Window{Start: start.UTC(), End: end.UTC()}
		}
		return c, err
	})
}

// OpenReservations reads the pending reservations of one app, or of all for "", from their Reserved events, with what their
// extensions hold besides.
func (s *Session) OpenReservations(ctx context.Context, app string) ([]OpenReservation, error) {
	const query = `
SELECT e.app, e.body, r.held_requests, r.held_tokens, r.held_nanousd
FROM reservations r
JOIN events e ON e.event_id = r.reservation_id || ':reserved' AND e.day = r.day
WHERE r.state = 'pending' AND ($1 = '' OR r.app = $1)
ORDER BY r.reservation_id`
	rows, err := s.conn.Query(ctx, query, app)
	if err != nil {
		return nil, fmt.Errorf("read open reservations of %q: %w", app, err)
	}
	open, err := collectOpen(rows)
	if err != nil {
		return nil, fmt.Errorf("read open reservations of %q: %w", app, err)
	}
	return open, nil
}

// Overdue reads at most limit pending reservations whose deadline was before the instant, the oldest first.
func (s *Store) Overdue(ctx context.Context, before time.Time, limit int) ([]OpenReservation, error) {
	const query = `
SELECT e.app, e.body, r.held_requests, r.held_tokens, r.held_nanousd
FROM reservations r
JOIN events e ON e.event_id = r.reservation_id || ':reserved' AND e.day = r.day
WHERE r.state = 'pending' AND r.deadline < $1
ORDER BY r.deadline
LIMIT $2`
	rows, err := s.pool.Query(ctx, query, before, limit)
	if err != nil {
		return nil, fmt.Errorf("read overdue reservations: %w", err)
	}
	overdue, err := collectOpen(rows)
	if err != nil {
		return nil, fmt.Errorf("read overdue reservations: %w", err)
	}
	return overdue, nil
}

func collectOpen(rows pgx.Rows) ([]OpenReservation, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (OpenReservation, error) {
		var open OpenReservation
		var body []byte
		var held ledger.Amounts
		if err := row.Scan(&open.App, &body, &held.Requests, &held.Tokens, &held.NanoUSD); err != nil {
			return open, err
		}
		e, err := event.Decode(body)
		if err != nil {
			return open, err
		}
		open.Reservation = *e.Reservation
		open.holds(held)
		return open, nil
	})
}

// Pending tells which of the reservations are pending, and which the ledger does not know. The others have ended.
func (s *Store) Pending(ctx context.Context, ids []string) (pending, unknown []string, err error) {
	const query = `
SELECT k.reservation_id, r.state
FROM unnest($1::text[], $2::date[]) AS k (reservation_id, day)
LEFT JOIN reservations r ON r.reservation_id = k.reservation_id AND r.day = k.day
WHERE r.state IS NULL OR r.state = 'pending'`
	days := make([]time.Time, len(ids))
	for i, id := range ids {
		days[i] = day(id)
	}
	rows, err := s.pool.Query(ctx, query, ids, days)
	if err != nil {
		return nil, nil, fmt.Errorf("read states of reservations: %w", err)
	}
	var id string
	var state *string
	_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
		if state == nil {
			unknown = append(unknown, id)
		} else {
			pending = append(pending, id)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read states of reservations: %w", err)
	}
	return pending, unknown, nil
}

// OpenCount is the number of pending reservations.
func (s *Store) OpenCount(ctx context.Context) (int64, error) {
	const query = `SELECT count(*) FROM reservations WHERE state = 'pending'`
	var n int64
	if err := s.pool.QueryRow(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("count open reservations: %w", err)
	}
	return n, nil
}
