package pg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// requireRebuilt rebuilds the ledger from its events and expects the same.
func requireRebuilt(t require.TestingT, store *pg.Store) {
	differences, _, err := store.Rebuild(context.Background(), pg.RebuildOptions{Schema: "again", Examples: 5})
	require.NoError(t, err)
	for _, d := range differences {
		require.Zero(t, d.Differ, "%s: %v", d.Table, d.Examples)
	}
}

// everyKind posts events of each kind, an expiry that is taken back, a refusal, a policy and a conflict.
func everyKind(t *testing.T, store *pg.Store) {
	t.Helper()
	late, open, released := reservation("checkout", 0, start), reservation("checkout", 1, start), reservation("search", 2, start)
	mustPost(t, store, newEvent(event.KindReserved, "checkout", late, 1), newEvent(event.KindExpired, "checkout", late, 2))
	mustPost(t, store, newEvent(event.KindUsed, "checkout", late, 3), newEvent(event.KindReserved, "checkout", open, 4))
	mustPost(t, store, newEvent(event.KindReserved, "search", released, 5), newEvent(event.KindExpired, "search", released, 6))
	mustPost(t, store, newEvent(event.KindReleased, "search", released, 7))
	conflict := newEvent(event.KindUsed, "checkout", late, 8)
	conflict.Outcome.Status = 500
	mustPost(t, store, conflict)
	id := event.NewReservationID(start)
	mustPost(t, store, &event.Event{
		V: event.Version, ID: event.ID(id, event.KindPolicy), Kind: event.KindPolicy, App: "none", OccurredAt: start, Producer: "gw-1", Sequence: 9,
		Policy: &event.Policy{Revision: "1", Limits: []event.PolicyLimit{{
			Name: "app-day", Tier: ledger.TierApp, Family: "app", Unit: ledger.UnitUSD, Period: ledger.PeriodDay, Limit: 5000, Hard: true,
		}}},
	}, &event.Event{
		V: event.Version, ID: event.ID(id, event.KindRefused), Kind: event.KindRefused, App: "none", OccurredAt: start, Producer: "gw-1", Sequence: 10,
		Refusals: &event.Refusals{From: start, Until: start.Add(10), Counts: []event.RefusalCount{{
			Layer: ledger.TierApp, Reason: ledger.ReasonAppQuota, App: "checkout", Count: 3,
		}}},
	})
}

func TestRebuildNamesWhatDiffers(t *testing.T) {
	t.Parallel()
	tests := []struct{ sql, table, example string }{
		{`SELECT 1`, "", ""},
		{`UPDATE budgets SET nanousd = nanousd + 1 WHERE app = 'checkout' AND period = 'day'`, "budgets", `^checkout app:checkout day .*: nanousd is 501, should be 500$`},
		{`DELETE FROM budgets WHERE app = 'checkout' AND period = 'total'`, "budgets", `: is missing$`},
		{`UPDATE reservations SET model = 'x', status = 7 WHERE state = 'settled'`, "reservations", `: model is x, should be gpt-4o-mini; status is 7, should be 200$`},
		{`DELETE FROM transfers WHERE kind = 'settle'`, "transfers", `:used settle \d{4}-\d\d-\d\d: is missing$`},
		{`UPDATE accounts SET name = 'app:other:spend' WHERE name = 'app:checkout:spend'`, "transfers", `: debit is app:other:spend, should be app:checkout:spend$`},
		{`INSERT INTO transfers SELECT (jsonb_populate_record(t, '{"event_id": "mine"}')).* FROM transfers t WHERE kind = 'settle'`, "transfers", `^mine settle .*: no event says so$`},
		{`UPDATE transfers SET components = '[]' WHERE kind = 'settle'`, "transfers", `: components is \[\], should be \[\{`},
		{`UPDATE producers SET seen = seen + '{[70,72)}'`, "producers", `^gw-1: seen is .*, should be \{\[1,11\)\}$`},
		{`UPDATE policy_limits SET limit_value = 1`, "policy_limits", `limit_value is 1, should be 5000$`},
		{`UPDATE refusals SET refusals = 1`, "refusals", `refusals is 1, should be 3$`},
		{`DELETE FROM policy_revisions`, "policy_revisions", `is missing$`},
	}
	for _, test := range tests {
		t.Run(test.table+" "+test.example, func(t *testing.T) {
			t.Parallel()
			ctx, url := t.Context(), stack.Postgres(t)
			store := openAt(t, url)
			everyKind(t, store)
			conn, err := pgx.Connect(ctx, url)
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close(context.Background())) }()
			_, err = conn.Exec(ctx, "SET session_replication_role = replica; "+test.sql)
			require.NoError(t, err)

			differences, events, err := store.Rebuild(ctx, pg.RebuildOptions{Schema: "again", Examples: 1, Keep: true})
			require.NoError(t, err)
			require.EqualValues(t, 9, events)
			for _, d := range differences {
				if d.Table != test.table {
					require.Zero(t, d.Differ, "%s: %v", d.Table, d.Examples)
					continue
				}
				require.NotZero(t, d.Differ)
				require.Regexp(t, test.example, d.Examples[0])
			}
			require.Equal(t, []string{"1"}, lines(t, url, `SELECT count(*)::text FROM again.reservations WHERE state = 'settled'`))
		})
	}
}

func TestRebuildLeavesNothing(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	everyKind(t, store)
	const state = `SELECT nspname::text FROM pg_namespace WHERE nspname = 'again' UNION ALL SELECT last_value::text FROM journal_serial`
	before := lines(t, url, state)
	requireRebuilt(t, store)
	require.Equal(t, before, lines(t, url, state))
	require.Len(t, before, 1)
}
