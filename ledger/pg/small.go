package pg

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger/event"
)

// queueSmall writes the events that touch no reservation: policies, refusals and grants, and parks conflicts.
func queueSmall(out *pgx.Batch, fresh, conflicts []*entry) {
	for _, x := range fresh {
		switch x.Event.Kind {
		case event.KindPolicy:
			queuePolicy(out, x.Event)
		case event.KindRefused:
			queueRefusals(out, x.Event)
		case event.KindGranted:
			queueGrant(out, x.Event)
		}
	}
	for _, x := range conflicts {
		out.Queue(insertParked, int64(x.StreamSeq), x.hash[:], clean(x.Subject), "conflict: the event id is known with other content", x.Body)
	}
}

func queuePolicy(out *pgx.Batch, e *event.Event) {
	const revision = `INSERT INTO policy_revisions (event_id, revision, occurred_at) VALUES ($1, $2, $3)`
	const limit = `
INSERT INTO policy_limits (event_id, limit_name, name, tier, family, unit, period, limit_value, hard, until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	id := clean(e.ID)
	out.Queue(revision, id, clean(e.Policy.Revision), e.OccurredAt)
	for _, l := range e.Policy.Limits {
		lines := append([]event.PolicyOverride{{Limit: l.Limit}}, l.Overrides...)
		for _, o := range lines {
			out.Queue(limit, id, clean(l.Name), clean(o.Name), clean(string(l.Tier)), clean(l.Family), clean(string(l.Unit)),
				clean(string(l.Period)), o.Limit, l.Hard, orNull(o.Until))
		}
	}
}

func queueRefusals(out *pgx.Batch, e *event.Event) {
	const insert = `
INSERT INTO refusals (event_id, line, from_at, until_at, layer, reason, limit_name, subject, app, endpoint, refusals)
SELECT $1, n.line, $2, $3, n.layer, n.reason, n.limit_name, n.subject, n.app, n.endpoint, n.refusals
FROM unnest($4::integer[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bigint[])
    AS n (line, layer, reason, limit_name, subject, app, endpoint, refusals)`
	counts := e.Refusals.Counts
	lines, refused := make([]int32, len(counts)), make([]int64, len(counts))
	var texts [6][]string
	for i := range texts {
		texts[i] = make([]string, len(counts))
	}
	for i, c := range counts {
		lines[i], refused[i] = int32(i), c.Count
		for column, text := range [...]string{string(c.Layer), string(c.Reason), c.Limit, c.Subject, c.App, c.Endpoint} {
			texts[column][i] = clean(text)
		}
	}
	out.Queue(insert, clean(e.ID), e.Refusals.From, e.Refusals.Until, lines, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], refused)
}

// The same bytes are parked once per place in the stream, so that a redelivery adds nothing.
const insertParked = `
INSERT INTO parked_events (stream_seq, body_hash, subject, reason, body) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (stream_seq, body_hash) DO NOTHING`

// Park keeps a message that cannot be settled, with the reason, for a person to look at. e is what it was read as, nil when
// it could not be read; a parked event has arrived, so its sequence is no gap. Idempotent.
func (s *Store) Park(ctx context.Context, streamSeq uint64, subject, reason string, body []byte, e *event.Event) error {
	hash := event.Hash(body)
	if body == nil {
		body = []byte{}
	}
	out := &pgx.Batch{} // one implicit transaction
	out.Queue(insertParked, int64(streamSeq), hash[:], clean(subject), clean(reason), body)
	if e != nil {
		queueProducers(out, []*entry{{Received: &Received{Event: e}}}, nil)
	}
	if err := s.pool.SendBatch(ctx, out).Close(); err != nil {
		return fmt.Errorf("park message %d: %w", streamSeq, err)
	}
	return nil
}

// Parked is a message that was parked.
type Parked struct {
	ID int64
	Received
}

// Unread lists messages that were parked since then because they could not be read, those with an id after the one given, in the order
// of their ids. Their Event is nil. What is in the ledger by now is listed, too.
func (s *Store) Unread(ctx context.Context, since time.Time, after int64, limit int) ([]Parked, error) {
	const query = `
SELECT parked_id, stream_seq, subject, body FROM parked_events
WHERE starts_with(reason, $1) AND parked_at >= $2 AND parked_id > $3
ORDER BY parked_id
LIMIT $4`
	rows, err := s.pool.Query(ctx, query, event.ErrInvalid.Error(), since, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read parked messages: %w", err)
	}
	parked, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Parked, err error) {
		var seq int64
		err = row.Scan(&p.ID, &seq, &p.Subject, &p.Body)
		p.StreamSeq = uint64(seq)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("read parked messages: %w", err)
	}
	return parked, nil
}

// queueProducers records which sequences have arrived. A conflicting event has arrived too: it is parked, not lost.
func queueProducers(out *pgx.Batch, fresh, conflicts []*entry) {
	const upsert = `
INSERT INTO producers (producer, seen)
SELECT n.producer, range_agg(int8range(n.sequence, n.sequence + 1))
FROM unnest($1::text[], $2::bigint[]) AS n (producer, sequence)
GROUP BY n.producer
ORDER BY n.producer
ON CONFLICT (producer) DO UPDATE SET seen = producers.seen + EXCLUDED.seen, updated_at = now()`
	var producers []string
	var sequences []int64
	for _, x := range slices.Concat(fresh, conflicts) {
		if x.Event.Sequence > 0 {
			producers, sequences = append(producers, clean(x.Event.Producer)), append(sequences, int64(x.Event.Sequence))
		}
	}
	if len(producers) > 0 {
		out.Queue(upsert, producers, sequences)
	}
}

// Gap is a run of sequences of one producer, [From, Until), that has not arrived although later ones have.
type Gap struct {
	Producer    string
	From, Until uint64
}

// Gaps lists what is missing from the producers' sequences. An event on its way is a gap too, for a moment.
func (s *Store) Gaps(ctx context.Context) ([]Gap, error) {
	const query = `
SELECT p.producer, lower(hole), upper(hole)
FROM producers p, unnest(int8multirange(int8range(1, upper(p.seen))) - p.seen) AS hole
ORDER BY 1, 2`
	rows, err := s.pool.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read gaps: %w", err)
	}
	gaps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g Gap, err error) {
		var from, until int64
		err = row.Scan(&g.Producer, &from, &until)
		g.From, g.Until = uint64(from), uint64(until)
		return g, err
	})
	if err != nil {
		return nil, fmt.Errorf("read gaps: %w", err)
	}
	return gaps, nil
}

// Held tells which of the producer's events are here: all up to the highest that arrived, but for those it lists as missing.
// Settled is left to the caller. An unknown producer has none.
func (s *Store) Held(ctx context.Context, producer string) (event.Confirmation, error) {
	const query = `
SELECT upper(p.seen) - 1, h.low, h.high
FROM producers p LEFT JOIN LATERAL (
    SELECT lower(hole) AS low, upper(hole) AS high
    FROM unnest(int8multirange(int8range(1, upper(p.seen))) - p.seen) AS hole
    ORDER BY 1 LIMIT $2 + 1
) h ON true
WHERE p.producer = $1
ORDER BY h.low`
	rows, err := s.pool.Query(ctx, query, clean(producer), event.MaxMissing)
	if err != nil {
		return event.Confirmation{}, fmt.Errorf("read held sequences of %s: %w", producer, err)
	}
	var c event.Confirmation
	var through int64
	var low, high *int64
	_, err = pgx.ForEachRow(rows, []any{&through, &low, &high}, func() error {
		c.Through = uint64(through)
		if low != nil {
			c.Missing = append(c.Missing, event.Span{From: uint64(*low), Until: uint64(*high)})
		}
		return nil
	})
	if err != nil {
		return event.Confirmation{}, fmt.Errorf("read held sequences of %s: %w", producer, err)
	}
	if len(c.Missing) > event.MaxMissing {
		c.Through = c.Missing[event.MaxMissing].From - 1
		c.Missing = c.Missing[:event.MaxMissing]
	}
	return c, nil
}
