package settler_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/lua"
)

// TestWriteBackOfManyBudgetsIsCut: an app with a budget for each of its users must not hold Redis up with all of them at once.
func TestWriteBackOfManyBudgetsIsCut(t *testing.T) {
	t.Parallel()
	client, err := lua.Connect(stack.NewRedis(t).URL(0), lua.Options{Timeout: patience})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	scripts := lua.New(client)
	for _, slot := range []string{lua.SharedSlot, app} {
		require.NoError(t, scripts.Rebuild(t.Context(), lua.RebuildCall{Slot: slot, Generation: "1"}))
	}
	states := make([]ledger.CounterState, 2000)
	for i := range states {
		states[i] = ledger.CounterState{
			Counter: ledger.Counter{Tier: ledger.TierUser, Family: "user", Subject: fmt.Sprintf("user:%s/%d", app, i), Period: ledger.PeriodTotal},
			App:     app, Used: ledger.Amounts{Requests: 1, Tokens: 10, NanoUSD: ledger.NanoUSD(i + 1)}, Version: 1,
		}
	}
	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	result, err := scripts.Settle(t.Context(), app, states, nil, nil)
	require.NoError(t, err)
	require.True(t, result.Applied)

	written, err := client.Keys(t.Context(), "*:budget:*").Result()
	require.NoError(t, err)
	require.Len(t, written, len(states))
	for _, key := range written {
		i, err := strconv.Atoi(regexp.MustCompile(`\d+$`).FindString(key))
		require.NoError(t, err)
		used, err := client.HGet(t.Context(), key, "used_nanousd").Int()
		require.NoError(t, err)
		require.Equal(t, i+1, used)
	}
	info, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindStringSubmatch(info)
	require.NotNil(t, calls)
	n, err := strconv.Atoi(calls[1])
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 8)
}
