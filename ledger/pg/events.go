package pg

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger/event"
)

// day is the partition that rows about id live in. Decode has checked the id.
func day(id string) time.Time {
	at, err := event.PartitionTime(id)
	if err != nil {
		return epoch
	}
	return at
}

// insertEvents writes what is new, sets the fate of every event of the batch, and returns the conflicting ones.
func (p *posting) insertEvents(ctx context.Context, tx pgx.Tx, batch []Received) ([]*entry, error) {
	const insert = `
INSERT INTO events (event_id, day, kind, app, producer, sequence, occurred_at, body_hash, body)
SELECT * FROM unnest($1::text[], $2::date[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::timestamptz[], $8::bytea[], $9::bytea[])
ON CONFLICT (event_id, day) DO NOTHING
RETURNING event_id`

	// Sorted by id, so that two settlers with the same events never wait for each other in a circle; the stable sort lets
	// the first of two with the same id win.
	entries := make([]*entry, len(batch))
	for i := range batch {
		entries[i] = &entry{Received: &batch[i], index: i, hash: event.Hash(batch[i].Body)}
	}
	sort.SliceStable(entries, func(i, j int) bool { return entries[i].Event.ID < entries[j].Event.ID })

	n := len(entries)
	ids, days, kinds, apps := make([]string, 0, n), make([]time.Time, 0, n), make([]string, 0, n), make([]string, 0, n)
	producers, sequences, times := make([]string, 0, n), make([]int64, 0, n), make([]time.Time, 0, n)
	hashes, bodies := make([][]byte, 0, n), make([][]byte, 0, n)
	for i, x := range entries {
		if i > 0 && entries[i-1].Event.ID == x.Event.ID {
			continue
		}
		e := x.Event
		ids, days, kinds, apps = append(ids, clean(e.ID)), append(days, day(e.ID)), append(kinds, string(e.Kind)), append(apps, clean(e.App))
		producers, sequences, times = append(producers, clean(e.Producer)), append(sequences, int64(e.Sequence)), append(times, e.OccurredAt)
		hashes, bodies = append(hashes, x.hash[:]), append(bodies, x.Body)
	}
	rows, err := tx.Query(ctx, insert, ids, days, kinds, apps, producers, sequences, times, hashes, bodies)
	if err != nil {
		return nil, fmt.Errorf("insert events: %w", err)
	}
	inserted, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("insert events: %w", err)
	}
	return p.judge(ctx, tx, entries, inserted)
}

// judge tells new events from duplicates and conflicts.
func (p *posting) judge(ctx context.Context, tx pgx.Tx, entries []*entry, inserted []string) ([]*entry, error) {
	isNew := make(map[string]bool, len(inserted))
	for _, id := range inserted {
		isNew[id] = true
	}
	hashes := make(map[string][]byte)
	var known []*entry
	for _, x := range entries {
		if id := clean(x.Event.ID); isNew[id] {
			isNew[id] = false // a second one in the batch is no longer new
			hashes[id] = x.hash[:]
			p.fates[x.index] = FatePosted
			p.fresh = append(p.fresh, x)
			continue
		}
		known = append(known, x)
	}
	if err := storedHashes(ctx, tx, known, hashes); err != nil {
		return nil, err
	}
	var conflicts []*entry
	for _, x := range known {
		p.fates[x.index] = FateDuplicate
		if string(hashes[clean(x.Event.ID)]) != string(x.hash[:]) {
			p.fates[x.index] = FateConflict
			conflicts = append(conflicts, x)
		}
	}
	return conflicts, nil
}

// storedHashes adds the hashes of known events that the batch itself did not insert.
func storedHashes(ctx context.Context, tx pgx.Tx, known []*entry, hashes map[string][]byte) error {
	const query = `
SELECT e.event_id, e.body_hash
FROM unnest($1::text[], $2::date[]) AS k (event_id, day)
JOIN events e ON e.event_id = k.event_id AND e.day = k.day`
	var ids []string
	var days []time.Time
	for _, x := range known {
		if id := clean(x.Event.ID); hashes[id] == nil {
			ids, days = append(ids, id), append(days, day(x.Event.ID))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, query, ids, days)
	if err != nil {
		return fmt.Errorf("read known events: %w", err)
	}
	var id string
	var hash []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &hash}, func() error {
		hashes[id] = append([]byte(nil), hash...)
		return nil
	}); err != nil {
		return fmt.Errorf("read known events: %w", err)
	}
	return nil
}

// loadEvents reads and decodes stored events by id.
func loadEvents(ctx context.Context, q querier, ids []string) (map[string]*event.Event, error) {
	const query = `
SELECT e.event_id, e.body
FROM unnest($1::text[], $2::date[]) AS k (event_id, day)
JOIN events e ON e.event_id = k.event_id AND e.day = k.day`
	days := make([]time.Time, len(ids))
	for i, id := range ids {
		days[i] = day(id)
	}
	rows, err := q.Query(ctx, query, ids, days)
	if err != nil {
		return nil, fmt.Errorf("load events: %w", err)
	}
	found := make(map[string]*event.Event, len(ids))
	var id string
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &body}, func() error {
		e, err := event.Decode(body)
		if err != nil {
			return err
		}
		found[id] = e
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load events: %w", err)
	}
	return found, nil
}
