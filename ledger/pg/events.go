package pg

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
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

// insertEvents writes what is new, sets the fate of every event of the batch, and returns the conflicting ones. What is there is
// looked for first, because COPY knows no ON CONFLICT. It spares the settler the encoding of a whole batch in memory. An
// event that another settler inserts in between ends the transaction, see raced.
func (p *posting) insertEvents(ctx context.Context, tx pgx.Tx, batch []Received) ([]*entry, error) {
	// Sorted by id, so that two settlers with the same events never wait for each other in a circle; the stable sort lets
	// the first of two with the same id win.
	entries := make([]*entry, len(batch))
	for i := range batch {
		id := batch[i].Event.ID
		entries[i] = &entry{Received: &batch[i], index: i, id: clean(id), day: day(id), hash: event.Hash(batch[i].Body)}
	}
	slices.SortStableFunc(entries, func(a, b *entry) int { return strings.Compare(a.id, b.id) })
	hashes, err := storedHashes(ctx, tx, entries)
	if err != nil {
		return nil, err
	}
	var conflicts []*entry
	for _, x := range entries {
		hash, known := hashes[x.id]
		switch {
		case !known:
			hashes[x.id] = x.hash // a second one in the batch is no longer new
			p.fates[x.index] = FatePosted
			p.fresh = append(p.fresh, x)
		case hash == x.hash:
			p.fates[x.index] = FateDuplicate
		default:
			p.fates[x.index] = FateConflict
			conflicts = append(conflicts, x)
		}
	}
	return conflicts, copyEvents(ctx, tx, p.fresh)
}

func copyEvents(ctx context.Context, tx pgx.Tx, fresh []*entry) error {
	if len(fresh) == 0 {
		return nil
	}
	columns := []string{"event_id", "day", "kind", "app", "producer", "sequence", "occurred_at", "body_hash", "body"}
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"events"}, columns, pgx.CopyFromSlice(len(fresh), func(i int) ([]any, error) {
		x := fresh[i]
		e := x.Event
		return []any{
			x.id, x.day, string(e.Kind), clean(e.App), clean(e.Producer), int64(e.Sequence), e.OccurredAt, x.hash[:], x.Body,
		}, nil
	}))
	if err != nil {
		return fmt.Errorf("insert events: %w", err)
	}
	return nil
}

// storedHashes reads the hashes of those events that are there already.
func storedHashes(ctx context.Context, tx pgx.Tx, entries []*entry) (map[string][sha256.Size]byte, error) {
	const query = `
SELECT e.event_id, e.body_hash
FROM unnest($1::text[], $2::date[]) AS k (event_id, day)
JOIN events e ON e.event_id = k.event_id AND e.day = k.day`
	ids, days := make([]string, len(entries)), make([]time.Time, len(entries))
	for i, x := range entries {
		ids[i], days[i] = x.id, x.day
	}
	rows, err := tx.Query(ctx, query, ids, days)
	if err != nil {
		return nil, fmt.Errorf("read known events: %w", err)
	}
	hashes := make(map[string][sha256.Size]byte, len(entries))
	var id string
	var hash []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &hash}, func() error {
		hashes[id] = [sha256.Size]byte(hash) // its length is a constraint of the table
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read known events: %w", err)
	}
	return hashes, nil
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
