package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/lua"
)

// A gateway was paused while Redis was emptied and rebuilt without what it held. Its events reach the settlers when it goes on, at
// the latest, and they may tell Redis before the gateway asks whether its decision stands.
func TestOldDecisionThatRedisWasToldOfDoesNotStand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `limits:
  - {name: l, tier: app, budget: {requests: 2, per: total}}
`)
	old, lost := w.reserve(ask()), w.reserve(ask())
	for _, v := range []*Verdict{old, lost} {
		require.Nil(t, v.Refusal)
		v.decided = time.Now().Add(-decisionAge)
	}
	require.Nil(t, w.Stands(t.Context(), old), "Redis has it as it was judged")

	require.NoError(t, w.redis.FlushAll(t.Context()).Err())
	w.mark("1")
	r := &lost.Reservation
	_, err := lua.New(w.redis).Settle(t.Context(), app, nil, []lua.Open{{
		ReservationID: r.ID, App: app, Held: r.Held, Counters: r.Counters, Deadline: r.Deadline,
	}}, nil)
	require.NoError(t, err)
	refusal := w.Stands(t.Context(), lost)
	require.NotNil(t, refusal)
	require.Equal(t, ledger.ReasonRebuilding, refusal.Reason)
}
