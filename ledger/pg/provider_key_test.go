package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

// TestProviderKeys: people read which of the provider's keys each attempt used, and a budget of each key that is new inside its
// window begins with what the key has used.
func TestProviderKeys(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	first, second, third := reservation("checkout", 0, start), reservation("checkout", 1, start), reservation("batch", 2, start)
	first.ProviderKey, second.ProviderKey, third.ProviderKey = "a", "b", "a"
	second.Attempt, second.FirstAttempt = 2, first.ID
	released := newEvent(event.KindReleased, "checkout", first, 1)
	mustPost(t, store, released, newEvent(event.KindUsed, "checkout", second, 2), newEvent(event.KindUsed, "batch", third, 3))

	require.ElementsMatch(t, []string{first.ID + " 1 a ", second.ID + " 2 b " + first.ID, third.ID + " 1 a "}, lines(t, url,
		`SELECT concat_ws(' ', request_id, attempt, provider_key, first_attempt) FROM finance.requests`))

	family := event.FillFamily{Family: "provider[provider_key]", Period: ledger.PeriodDay}
	used := map[string]int64{}
	for _, s := range mustFill(t, store, fillOf("UTC", family), start.Add(time.Minute)) {
		used[s.Counter.Subject] = s.Used.Requests
	}
	require.Equal(t, map[string]int64{"provider:openai[provider_key=a]": 1, "provider:openai[provider_key=b]": 1}, used)
	fourth := reservation("checkout", 4, start)
	fourth.ProviderKey = "b"
	result := mustPost(t, store, newEvent(event.KindUsed, "checkout", fourth, 4))
	require.Equal(t, int64(2), stateOf(t, result, "provider:openai[provider_key=b]").Used.Requests, "an event that does not name it counts, too")
	requireVerified(t, store, "I3 reservations-end")
}
