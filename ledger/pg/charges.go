package pg

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// Charged is a reservation that was charged to rates. Amounts is what it holds, or what it used once it has ended: of
// requests always what it held, because those are counted when they are admitted.
type Charged struct {
	App           string
	ReservationID string
	ReservedAt    time.Time
	Amounts       ledger.Amounts
	Rates         []event.Rate
}

// RecentCharges reads what rates of one app ("" for all) were charged after the instant, oldest first, and from when on that
// is everything: at most limit reservations are read, the latest. What was admitted without Redis was charged to no rate.
func (s *Session) RecentCharges(ctx context.Context, app string, after time.Time, limit int) (charges []Charged, since time.Time, err error) {
	const query = `
SELECT r.app, r.reservation_id, r.reserved_at, r.held_requests,
    r.state = 'pending', r.charged_tokens, r.flags @> '{degraded}', e.body
FROM reservations r
JOIN LATERAL (
    SELECT body FROM events e WHERE e.event_id = ANY (ARRAY[r.reservation_id || ':reserved', r.reservation_id || ':used']) AND e.day = r.day
    ORDER BY e.event_id LIMIT 1
) e ON true
WHERE r.reserved_at > $1 AND r.day >= $1::date - 1 AND ($2 = '' OR r.app = $2)
ORDER BY r.reserved_at DESC
LIMIT $3`
	rows, err := s.conn.Query(ctx, query, after.UTC(), app, limit)
	if err != nil {
		return nil, after, fmt.Errorf("read charges of %q: %w", app, err)
	}
	read, since := 0, after
	var c Charged
	var pending, degraded bool
	var body []byte
	into := []any{&c.App, &c.ReservationID, &c.ReservedAt, &c.Amounts.Requests, &pending, &c.Amounts.Tokens, &degraded, &body}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if read++; read == limit {
			since = c.ReservedAt.Add(time.Microsecond) // others of this instant may not have been read
		}
		// Reading bodies is most of the work, and few limits are rates.
		if degraded || !bytes.Contains(body, []byte(`"rates":`)) {
			return nil
		}
		e, err := event.Decode(body)
		if err != nil {
			return err
		}
		c.Rates = e.Reservation.Rates
		if pending {
			c.Amounts.Tokens = e.Reservation.Held.Tokens // extensions are not charged to rates
		}
		charges = append(charges, c)
		return nil
	})
	if err != nil {
		return nil, after, fmt.Errorf("read charges of %q: %w", app, err)
	}
	slices.Reverse(charges)
	return charges, since, nil
}
