package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// sealLock is the advisory lock of the one that seals.
const sealLock = 0x7365616c // "seal"

// What a digest takes for the hash of an event's body. Sealing believes the column, so that it need not read bodies; whoever
// verifies computes it from the body, and finds also one that never was what the column says.
const (
	bodyHashKept = `e.body_hash`
	bodyHashNow  = `sha256(e.body)`
)

// sealedEntries are the rows of the journal with a serial in ($1, $2], each as (serial, kind of table, id, digest). A digest
// covers every column, in a spelling that no setting of a server changes, and the names of a transfer's accounts.
func sealedEntries(bodyHash string) string {
	return `
SELECT e.serial, 'events' AS of_table, e.event_id AS id, substr(sha256(
    convert_to(ROW(e.serial, e.event_id, e.day - '2000-01-01'::date, e.kind, e.app, e.producer, e.sequence,
        extract(epoch FROM e.occurred_at), extract(epoch FROM e.recorded_at))::text, 'UTF8') || e.body_hash || ` + bodyHash + `), 1, 16) AS digest
FROM events e
WHERE e.serial > $1 AND e.serial <= $2
UNION ALL
SELECT t.serial, 'transfers', t.event_id || '/' || t.kind, substr(sha256(
    convert_to(ROW(t.serial, t.event_id, t.kind, t.day - '2000-01-01'::date, t.debit_account_id, d.name, t.credit_account_id, c.name,
        t.amount_nanousd, t.reservation_id, t.price_row, t.components::text, t.linked_transfer, extract(epoch FROM t.occurred_at),
        t.utc_day - '2000-01-01'::date, extract(epoch FROM t.recorded_at))::text, 'UTF8')), 1, 16)
FROM transfers t
LEFT JOIN accounts d ON d.account_id = t.debit_account_id
LEFT JOIN accounts c ON c.account_id = t.credit_account_id
WHERE t.serial > $1 AND t.serial <= $2`
}

// sealedContent is what a block keeps of its rows: serial (8 bytes), "e" or "t", digest (16), length of the id (2), id.
func sealedContent(bodyHash string) string {
	return `
SELECT count(*)::integer AS n, coalesce(string_agg(int8send(x.serial) || convert_to(left(x.of_table, 1), 'UTF8') || x.digest
    || int2send(octet_length(x.id)::smallint) || convert_to(x.id, 'UTF8'), '' ORDER BY x.serial, x.of_table, x.id), '') AS content
FROM (` + sealedEntries(bodyHash) + `) x`
}

// sealHash is the hash of block s over everything in it and the block before.
const sealHash = `sha256(s.previous || convert_to(ROW(s.block, s.first_serial, s.last_serial, s.sealed_rows,
    extract(epoch FROM s.sealed_at))::text, 'UTF8') || s.content)`

// Sealed says how far the chain reaches.
type Sealed struct {
	Rows   int64 // sealed by this call
	Behind int64 // serials that were drawn before this call and are not sealed after it; 0 where they wait for more
}

// Seal appends to the chain whatever rows can no longer change, in blocks of at most blockSize serials, unless fewer than atLeast
// wait for it. Of several callers at once one seals; the others find nothing to do. It keeps nobody waiting. Idempotent.
//
// What may be sealed: a serial is drawn by a transaction that holds a lock on its table until it ends. So once every
// transaction that held one at a moment has ended, each serial drawn before that moment is committed or never will be.
func (s *Store) Seal(ctx context.Context, atLeast, blockSize int64) (Sealed, error) {
	const last = `
SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END, coalesce((SELECT max(last_serial) FROM seals), 0) FROM journal_serial q`
	var sealed Sealed
	var drawn, head int64
	if err := s.pool.QueryRow(ctx, last).Scan(&drawn, &head); err != nil {
		return sealed, fmt.Errorf("seal: %w", err)
	}
	sealed.Behind = max(drawn-head, 0)
	if sealed.Behind == 0 || sealed.Behind < atLeast {
		return Sealed{}, nil // it may wait
	}
	if err := s.awaitWriters(ctx); err != nil {
		return sealed, err
	}
	for {
		rows, reached, err := s.sealBlock(ctx, drawn, blockSize)
		if err != nil || reached == 0 {
			return sealed, err
		}
		sealed.Rows += rows
		sealed.Behind = max(drawn-reached, 0)
		if sealed.Behind == 0 {
			return sealed, nil
		}
	}
}

// awaitWriters waits for the transactions that are writing to the journal now.
func (s *Store) awaitWriters(ctx context.Context) error {
	const query = `
SELECT DISTINCT l.virtualtransaction
FROM pg_locks l
WHERE l.locktype = 'relation' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock', 'ShareLock')
    AND l.relation IN (SELECT relid FROM pg_partition_tree('events') UNION ALL SELECT relid FROM pg_partition_tree('transfers'))
    AND ($1::text[] IS NULL OR l.virtualtransaction = ANY($1))`
	var writers []string // nil asks for all
	for {
		rows, err := s.pool.Query(ctx, query, writers)
		if err != nil {
			return fmt.Errorf("seal: read locks: %w", err)
		}
		if writers, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return fmt.Errorf("seal: read locks: %w", err)
		}
		if len(writers) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("seal: wait for %d writers: %w", len(writers), context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sealBlock appends one block of serials up to the one given, which must be final, and tells how far the chain reaches then; 0
// when somebody else is sealing.
func (s *Store) sealBlock(ctx context.Context, until, size int64) (rows, reached int64, err error) {
	const lock = `SELECT pg_try_advisory_xact_lock($1)`
	const head = `
SELECT coalesce(max(block), 0), coalesce(max(last_serial), 0),
    coalesce((SELECT hash FROM seals ORDER BY block DESC LIMIT 1), decode(repeat('00', 32), 'hex')) FROM seals`
	insert := `
INSERT INTO seals (block, first_serial, last_serial, sealed_rows, sealed_at, previous, hash, content)
SELECT s.block, s.first_serial, s.last_serial, s.sealed_rows, s.sealed_at, s.previous, ` + sealHash + `, s.content
FROM (SELECT $3::bigint AS block, $1::bigint + 1 AS first_serial, $2::bigint AS last_serial, c.n AS sealed_rows, now() AS sealed_at,
    $4::bytea AS previous, c.content FROM (` + sealedContent(bodyHashKept) + `) c) s
RETURNING sealed_rows`
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, lock, sealLock).Scan(&mine); err != nil || !mine {
			return err
		}
		var block, from int64
		var previous []byte
		if err := tx.QueryRow(ctx, head).Scan(&block, &from, &previous); err != nil {
			return err
		}
		reached = max(from, min(until, from+size))
		if reached == from {
			return nil
		}
		return tx.QueryRow(ctx, insert, from, reached, block+1, previous).Scan(&rows)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("seal: %w", err)
	}
	return rows, reached, nil
}
