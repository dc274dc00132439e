package settler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
)

// appKeys matches what Redis has of the app alone.
const appKeys = "{app:" + app + "}:*"

func (w *world) deleteKeys(pattern string) {
	w.Helper()
	keys, err := w.redis.Keys(w.Context(), pattern).Result()
	require.NoError(w, err)
	require.NotEmpty(w, keys)
	require.NoError(w, w.redis.Del(w.Context(), keys...).Err())
}

// What ends while its app has no mark is given back nowhere, and the shared counters hold it until they are rebuilt, too.
func TestAppLosesItsKeysWhileItHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	config := testConfig()
	config.RebuildEvery = time.Hour // the app is missed by a request of its own
	w.settleWith(config)
	r := newReservation(time.Minute)
	w.reserve(r)
	w.publish(w.event(event.KindReserved, r))
	w.awaitState(r.ID, "pending")
	w.deleteKeys(appKeys)
	w.publish(w.event(event.KindUsed, r))
	w.awaitState(r.ID, "settled")
	_, err := w.nc.Request(event.RebuildSubject, []byte(app), patience)
	require.NoError(t, err)
	w.awaitRedis(500, 0)
}
