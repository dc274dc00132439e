package admission

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// What is admitted locally while a rebuild is being written is in no ledger that the rebuild has read: Redis is told of it again
// until it takes it.
func TestAdmittedDuringARebuildIsHeldAfterIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{unmarked: true}, `degraded: {local: {requests_per_second: 2, tokens_per_minute: 1000}}
limits:
  - {name: l, tier: app, budget: {requests: 1, per: total}}
`)
	w.losses.notice(app)
	w.losses.since[app].noticed = w.losses.since[app].noticed.Add(-rebuildPatience)
	v := w.reserve(ask())
	require.Nil(t, v.Refusal)
	require.True(t, v.Degraded)
	require.NoError(t, w.register(t.Context()), "there is no mark yet")
	w.mark("1")
	require.NoError(t, w.register(t.Context()))
	v = w.reserve(ask())
	require.NotNil(t, v.Refusal)
	require.Equal(t, ledger.ReasonAppQuota, v.Refusal.Reason)
}
