package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
)

func TestDirectory(t *testing.T) {
	t.Parallel()
	store, ctx := open(t), t.Context()
	require.NoError(t, store.CreateApp(ctx, "checkout", "paid"))
	require.ErrorIs(t, store.CreateApp(ctx, "checkout", "free"), pg.ErrAppExists)
	require.ErrorIs(t, store.CreateApp(ctx, "has space", ""), pg.ErrAppName)

	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	hash := keys.Hash("tg-secret")
	key := pg.Key{ID: "k_1", App: "checkout", Hash: hash, User: "alice", Plan: "free", Name: "ci", ExpiresAt: expires}
	require.NoError(t, store.CreateKey(ctx, key))
	require.ErrorIs(t, store.CreateKey(ctx, key), pg.ErrKeyExists)
	require.ErrorIs(t, store.CreateKey(ctx, pg.Key{ID: "k_2", App: "nobody", Hash: keys.Hash("x")}), pg.ErrAppUnknown)

	want := keys.Record{KeyID: "k_1", App: "checkout", User: "alice", Plan: "free", AppPlan: "paid", ExpiresAt: expires}
	directory, err := store.Directory(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]keys.Record{hash: want}, directory)

	require.NoError(t, store.RevokeKey(ctx, "k_1"))
	require.NoError(t, store.RevokeKey(ctx, "k_1"))
	require.ErrorIs(t, store.RevokeKey(ctx, "k_9"), pg.ErrKeyUnknown)
	require.NoError(t, store.DisableApp(ctx, "checkout", true))
	require.ErrorIs(t, store.DisableApp(ctx, "nobody", true), pg.ErrAppUnknown)
	want.Revoked, want.AppDisabled = true, true
	directory, err = store.Directory(ctx)
	require.NoError(t, err)
	require.Equal(t, want, directory[hash])

	list, err := store.ListKeys(ctx, "checkout")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, hash, list[0].Hash)
	require.False(t, list[0].RevokedAt.IsZero())
	apps, err := store.ListApps(ctx)
	require.NoError(t, err)
	require.Len(t, apps, 1)
	require.False(t, apps[0].DisabledAt.IsZero())
}
