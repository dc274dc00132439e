package pg_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/pg"
	"tollgate/migrations"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{Migrate: migrations.Up}) }

// open gives the ledger in a database of its own.
func open(t testing.TB) *pg.Store {
	t.Helper()
	return openAt(t, stack.Postgres(t))
}

func openAt(t testing.TB, url string) *pg.Store {
	t.Helper()
	store, err := pg.Open(t.Context(), url, 12)
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}
