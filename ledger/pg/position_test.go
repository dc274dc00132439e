package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/pg"
)

// A guarded store lets nothing through to a server that was not accepted, nor to the next run of one that was; the position tells
// the database in spite of it, and a mark never goes back.
func TestGuardedStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, url := stack.NewPostgres(t)
	store := openAt(t, url)
	store.Guard()
	_, err := store.Apps(ctx)
	require.ErrorIs(t, err, pg.ErrNotAccepted)
	_, err = store.Settling(ctx)
	require.ErrorIs(t, err, pg.ErrNotAccepted)

	first, err := store.Position(ctx)
	require.NoError(t, err)
	require.Zero(t, first.Mark)
	require.Zero(t, first.Stream)
	store.Accept(first)
	_, err = store.Apps(ctx)
	require.NoError(t, err)

	second := first
	second.Mark, second.Stream, second.Sequence = 2, time.Date(2026, 11, 30, 1, 2, 3, 4000, time.UTC), 77
	require.NoError(t, store.NotePosition(ctx, second))
	late := first
	late.Mark, late.Sequence = 1, 5
	require.NoError(t, store.NotePosition(ctx, late))

	require.NoError(t, server.Restart(ctx))
	var restarted pg.Position
	require.Eventually(t, func() bool { // connections of before break first
		restarted, err = store.Position(ctx)
		return err == nil
	}, 10*time.Second, 20*time.Millisecond)
	require.Equal(t, first.Database, restarted.Database, "the same files")
	require.Equal(t, []any{second.Mark, second.Stream, second.Sequence}, []any{restarted.Mark, restarted.Stream, restarted.Sequence})
	_, err = store.Apps(ctx)
	require.ErrorIs(t, err, pg.ErrNotAccepted)
	require.ErrorIs(t, store.NotePosition(ctx, second), pg.ErrNotAccepted, "read from a server that is gone")
	store.Accept(restarted)
	_, err = store.Apps(ctx)
	require.NoError(t, err)

	other := openAt(t, stack.Postgres(t))
	elsewhere, err := other.Position(ctx)
	require.NoError(t, err)
	require.NotEqual(t, first.Database, elsewhere.Database)
}
