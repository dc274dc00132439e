package pg_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/migrations"
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
	}, 2*time.Minute, 20*time.Millisecond)
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

// A session that a server's end has not reached yet settles nothing once another server was accepted, and what it has learnt of
// accounts is not taken for the other's.
func TestSessionOfAServerOfThePast(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, firstURL := stack.NewPostgres(t)
	_, secondURL := stack.NewPostgres(t)
	require.NoError(t, migrations.Up(ctx, firstURL))
	require.NoError(t, migrations.Up(ctx, secondURL))
	settling := func(app string) []pg.Received {
		return []pg.Received{received(t, newEvent(event.KindUsed, app, reservation(app, 0, start), 1), 1)}
	}
	_, err := post(ctx, openAt(t, secondURL), settling("search")) // accounts have other ids there
	require.NoError(t, err)

	through, err := url.Parse(firstURL)
	require.NoError(t, err)
	address := func(raw string) string {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		return u.Host
	}
	for _, server := range []string{firstURL, secondURL} { // a role that both let in
		lines(t, server, `CREATE ROLE past SUPERUSER LOGIN PASSWORD 'past'`)
		t.Cleanup(func() { lines(t, server, `DROP ROLE past`) })
	}
	link := stack.Proxy(t, through.Host)
	through.Host, through.User = link.Addr, url.UserPassword("past", "past")
	store := openAt(t, through.String())
	store.Guard()
	accept := func() {
		position, err := store.Position(ctx)
		require.NoError(t, err)
		store.Accept(position)
	}
	accept()
	session, err := store.Settling(ctx) // on the only connection there is
	require.NoError(t, err)
	defer session.Close(ctx)
	link.SetTarget(address(secondURL))
	accept()

	_, err = session.Post(ctx, settling("checkout"))
	require.ErrorIs(t, err, pg.ErrNotAccepted)
	_, err = post(ctx, store, settling("checkout"))
	require.NoError(t, err)
	require.Equal(t, []string{"app:checkout:spend", "app:search:spend"}, lines(t, secondURL, `
SELECT a.name FROM transfers t JOIN accounts a ON a.account_id = t.debit_account_id ORDER BY 1`))
	require.Equal(t, []string{"0"}, lines(t, firstURL, `SELECT count(*)::text FROM transfers`))
}
