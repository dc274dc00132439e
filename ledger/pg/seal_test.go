package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// sealedLedger holds four settled requests, sealed in blocks of five serials, and a connection that no trigger stops.
func sealedLedger(t *testing.T) (*pg.Store, *pgx.Conn) {
	t.Helper()
	url := stack.Postgres(t)
	store := openAt(t, url)
	for i := range 4 {
		r := reservation("checkout", int64(i), start)
		mustPost(t, store, newEvent(event.KindReserved, "checkout", r, uint64(2*i+1)), newEvent(event.KindUsed, "checkout", r, uint64(2*i+2)))
	}
	sealed, err := store.Seal(t.Context(), 1, 5)
	require.NoError(t, err)
	require.Equal(t, pg.Sealed{Rows: 12}, sealed)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	_, err = conn.Exec(t.Context(), `SET session_replication_role = replica`)
	require.NoError(t, err)
	return store, conn
}

func TestChainNamesWhatWasDoneByHand(t *testing.T) {
	t.Parallel()
	const row = `(SELECT max(serial) FROM transfers)`
	tests := []struct{ name, sql, wrong string }{
		{"amount", `UPDATE transfers SET amount_nanousd = 0 WHERE serial = ` + row, `^transfers: row .*:used/settle \(serial 12\) was changed$`},
		{"body", `UPDATE events SET body = 'x' WHERE serial = 1`, `^events: row .*:reserved \(serial 1\) was changed$`},
		{"column", `UPDATE events SET recorded_at = recorded_at + interval '1 microsecond' WHERE serial = 8`, `^events: row .* \(serial 8\) was changed$`},
		{"deleted", `DELETE FROM events WHERE serial = 2`, `^events: row .* \(serial 2\) was removed$`},
		{"last deleted", `DELETE FROM transfers WHERE serial = 12`, `^transfers: row .* \(serial 12\) was removed$`},
		{"added", `INSERT INTO transfers SELECT (jsonb_populate_record(t, '{"event_id": "mine"}')).* FROM transfers t WHERE serial = 3`, `^transfers: row mine/settle \(serial 3\) was added$`},
		{
			"swapped", `UPDATE transfers t SET amount_nanousd = o.amount_nanousd FROM transfers o WHERE (t.serial, o.serial) IN ((3, 12), (12, 3))`,
			`^transfers: row .* \(serial 3\) was changed$`,
		},
		{"account", `UPDATE accounts SET name = 'app:other:spend' WHERE kind = 'spend'`, `^transfers: row .* \(serial 3\) was changed$`},
		{"block deleted", `DELETE FROM seals WHERE block = 2`, `^seals: block 2 was removed$`},
		{"first block deleted", `DELETE FROM seals WHERE block = 1`, `^seals: block 1 was removed$`},
		{"block changed", `UPDATE seals SET content = '' WHERE block = 3`, `^seals: block 3 was changed$`},
		{"block redated", `UPDATE seals SET sealed_at = sealed_at - interval '1 day' WHERE block = 1`, `^seals: block 1 was changed$`},
		{"blocks swapped", `UPDATE seals SET block = 3 - block + 10 WHERE block < 3; UPDATE seals SET block = block - 10 WHERE block > 10`, `^seals: block 1 was changed$`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store, conn := sealedLedger(t)
			before, err := store.VerifyChain(t.Context(), nil)
			require.NoError(t, err)
			require.Empty(t, before.Wrong)
			require.EqualValues(t, 3, before.Blocks)
			require.EqualValues(t, 12, before.Rows)

			_, err = conn.Exec(t.Context(), test.sql)
			require.NoError(t, err)
			after, err := store.VerifyChain(t.Context(), before.Head)
			require.NoError(t, err)
			require.NotEmpty(t, after.Wrong)
			require.Regexp(t, test.wrong, after.Wrong[0])
		})
	}
}

// TestOnlyAKnownHeadShowsAChainMadeAnew is about what a chain alone cannot show.
func TestOnlyAKnownHeadShowsAChainMadeAnew(t *testing.T) {
	t.Parallel()
	store, conn := sealedLedger(t)
	before, err := store.VerifyChain(t.Context(), nil)
	require.NoError(t, err)
	require.False(t, before.Contains)

	_, err = conn.Exec(t.Context(), `UPDATE transfers SET amount_nanousd = 0; DELETE FROM seals`)
	require.NoError(t, err)
	_, err = store.Seal(t.Context(), 1, 5)
	require.NoError(t, err)
	after, err := store.VerifyChain(t.Context(), before.Head)
	require.NoError(t, err)
	require.Empty(t, after.Wrong)
	require.False(t, after.Contains)
}

// Sealing believes the hash beside a body, verifying does not.
func TestChainNamesABodyThatNeverHadItsHash(t *testing.T) {
	t.Parallel()
	store, conn := sealedLedger(t)
	_, err := conn.Exec(t.Context(), `
INSERT INTO events (event_id, day, kind, app, producer, sequence, occurred_at, body_hash, body)
VALUES ('forged', '1970-01-01', 'refused', 'a', 'p', 0, now(), sha256('one'), 'another')`)
	require.NoError(t, err)
	sealed, err := store.Seal(t.Context(), 2, 5)
	require.NoError(t, err)
	require.Equal(t, pg.Sealed{}, sealed, "one row waits for a second")
	sealed, err = store.Seal(t.Context(), 1, 5)
	require.NoError(t, err)
	require.Equal(t, pg.Sealed{Rows: 1}, sealed)
	chain, err := store.VerifyChain(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"events: row forged (serial 13) was changed"}, chain.Wrong)
}

// TestSealWaitsForWhoHasDrawnASerial holds a transaction open that has drawn a low serial, lets later ones commit, and expects
// the row to be sealed in its place.
func TestSealWaitsForWhoHasDrawnASerial(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), stack.Postgres(t)
	store := openAt(t, url)
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `
INSERT INTO events (event_id, day, kind, app, producer, sequence, occurred_at, body_hash, body)
VALUES ('slow', '1970-01-01', 'refused', 'a', 'p', 0, now(), sha256(''), '')`)
	require.NoError(t, err)
	mustPost(t, store, newEvent(event.KindReserved, "checkout", reservation("checkout", 1, start), 1))

	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err = store.Seal(short, 1, 100)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	var group errgroup.Group
	var total [4]pg.Sealed
	for i := range total {
		group.Go(func() (err error) { total[i], err = store.Seal(ctx, 1, 1); return err })
	}
	require.NoError(t, tx.Commit(ctx))
	require.NoError(t, group.Wait())
	_, err = store.Seal(ctx, 1, 1)
	require.NoError(t, err)
	chain, err := store.VerifyChain(ctx, nil)
	require.NoError(t, err)
	require.Empty(t, chain.Wrong)
	require.EqualValues(t, 2, chain.Rows)
	require.EqualValues(t, 2, chain.Blocks)
	require.Zero(t, chain.Unsealed)
}

func TestMissingPartitionsAreCounted(t *testing.T) {
	t.Parallel()
	store := open(t)
	far := time.Date(2044, 5, 25, 0, 0, 0, 0, time.UTC)
	missing, err := store.MissingPartitions(t.Context(), far)
	require.NoError(t, err)
	require.EqualValues(t, 6, missing, "May and June of three tables")
	require.NoError(t, store.EnsurePartitions(t.Context(), far))
	missing, err = store.MissingPartitions(t.Context(), far)
	require.NoError(t, err)
	require.Zero(t, missing)
}
