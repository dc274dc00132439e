package lua

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// A mark that lapses where nothing was lost costs a rebuild of everything, and shuts long windows while they refill.
func TestRenewLengthensMarkAndCounters(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	ctx := t.Context()
	counter := ledger.Counter{Tier: ledger.TierApp, Family: "app", Subject: "app:a", Period: ledger.PeriodTotal}
	rows := []ledger.CounterState{{Counter: counter, App: "a", Used: ledger.Amounts{Requests: 3}, Version: 7}}
	_, err := s.Scripts.Settle(ctx, "a", rows, nil, nil)
	require.NoError(t, err)
	key := counterKey("a", &counter)
	for _, old := range []string{key, markKey("a")} {
		require.NoError(t, s.redis.PExpire(ctx, old, time.Minute).Err())
	}

	_, err = s.Scripts.Settle(ctx, "a", rows, nil, nil)
	require.NoError(t, err)
	require.NoError(t, s.Scripts.Renew(ctx, "a"))

	counterLife, err := s.redis.PTTL(ctx, key).Result()
	require.NoError(t, err)
	markLife, err := s.redis.PTTL(ctx, markKey("a")).Result()
	require.NoError(t, err)
	require.Greater(t, markLife, markTTL-time.Minute)
	require.Greater(t, counterLife, markLife, "a counter without a window end outlives the mark")

	require.NoError(t, s.redis.Del(ctx, markKey("a")).Err())
	require.NoError(t, s.Scripts.Renew(ctx, "a"))
	_, ok, err := s.Scripts.Mark(ctx, "a")
	require.NoError(t, err)
	require.False(t, ok, "a mark that is missing is not made")
}
