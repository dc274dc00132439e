package settler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
	"tollgate/lua"
)

// TestSharedCountersLearnFromAppsWithoutAMark: what an app has used that was judged without Redis leaves less for all others.
func TestSharedCountersLearnFromAppsWithoutAMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	config := testConfig()
	config.RebuildEvery = time.Hour
	w.settleWith(config)
	w.askRebuild(lua.SharedSlot, app)
	r := newReservation(time.Hour)
	r.Counters = counters()[:1]
	for _, kind := range []event.Kind{event.KindReserved, event.KindUsed} {
		e := w.event(kind, r)
		e.App = "unseen"
		w.publish(e)
	}
	w.awaitState(r.ID, "settled")
	w.awaitSettled()
	platform, _, err := w.amounts()
	require.NoError(t, err)
	require.Equal(t, lua.BudgetState{Used: 500}, platform)
}
