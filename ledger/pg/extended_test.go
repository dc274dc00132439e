package pg_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// extension is the n-th of a reservation: a hundred tokens and a thousand nano-dollars more each time.
func extension(app string, r event.Reservation, n int, sequence uint64) *event.Event {
	r.Extended, r.Extensions = ledger.Amounts{Tokens: ledger.Tokens(100 * n), NanoUSD: ledger.NanoUSD(1000 * n)}, n
	e := newEvent(event.KindExtended, app, r, sequence)
	e.ID = event.ExtensionID(r.ID, n)
	return e
}

// However its events come, a reservation holds what its last extension says: it is written to Redis so, expires so, and is
// taken back so when its outcome arrives after all.
func TestExtensions(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][][]int{
		"in order":      {{0}, {1}, {2}},
		"at once":       {{0, 1, 2}},
		"turned around": {{2}, {1}, {0}},
		"and again":     {{1}, {0, 2}, {1, 0}, {2}},
		"the last late": {{0, 1}, {2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := stack.Postgres(t)
			store := openAt(t, url)
			r := reservation("checkout", 0, start)
			events := []*event.Event{newEvent(event.KindReserved, "checkout", r, 1), extension("checkout", r, 1, 2), extension("checkout", r, 2, 3)}
			var opens []pg.OpenReservation
			for _, batch := range order {
				var all []pg.Received
				for _, i := range batch {
					all = append(all, received(t, events[i], uint64(i+1)))
				}
				result, err := post(t.Context(), store, all)
				require.NoError(t, err)
				if slices.Contains(batch, 0) {
					opens = result.WriteBacks[0].Opens
				}
			}
			require.Len(t, opens, 1)
			overdue, err := store.Overdue(t.Context(), r.Deadline.Add(time.Second), 10)
			require.NoError(t, err)
			require.Len(t, overdue, 1)
			want := ledger.Amounts{Requests: 1, Tokens: 300, NanoUSD: 3000}
			require.Equal(t, want, overdue[0].Reservation.HeldInAll())
			require.Equal(t, r.Held, overdue[0].Reservation.Held, "what rates were charged")

			expired := newEvent(event.KindExpired, "checkout", overdue[0].Reservation, 0)
			result, err := post(t.Context(), store, []pg.Received{received(t, expired, 9)})
			require.NoError(t, err)
			require.Equal(t, want, result.WriteBacks[0].Endings[0].Spent)
			require.Equal(t, []string{"expired 300 300 3000 3000"}, lines(t, url,
				`SELECT concat_ws(' ', state, held_tokens, charged_tokens, held_nanousd, charged_nanousd) FROM reservations`))

			used := newEvent(event.KindUsed, "checkout", r, 4)
			_, err = post(t.Context(), store, []pg.Received{received(t, used, 10)})
			require.NoError(t, err)
			require.Equal(t, []string{"settled 60 500"}, lines(t, url, `SELECT concat_ws(' ', state, charged_tokens, charged_nanousd) FROM reservations`))
			require.Equal(t, []string{"60 500"}, lines(t, url, `SELECT concat_ws(' ', tokens, nanousd) FROM budgets WHERE period = 'total'`))
			requireVerified(t, store)
		})
	}
}
