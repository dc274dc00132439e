package stack_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

func TestScriptsAreCountedAndLogged(t *testing.T) {
	t.Parallel()
	client := redisClient(t, stack.NewRedis(t).URL(0))
	ctx := t.Context()
	require.Zero(t, stack.CountScripts(t, client))
	stack.LogCommands(t, client)
	const source = "return redis.call('SET', KEYS[1], ARGV[1])"
	script := redis.NewScript(source)
	require.ErrorContains(t, client.EvalSha(ctx, script.Hash(), []string{"k"}, 1).Err(), "NOSCRIPT")
	require.NoError(t, client.Eval(ctx, source, []string{"k"}, 1).Err())
	for range 2 {
		require.NoError(t, client.EvalSha(ctx, script.Hash(), []string{"k"}, 1).Err())
	}
	require.Equal(t, stack.ScriptCalls{EvalSHA: 2, Eval: 1, Unknown: 1}, stack.CountScripts(t, client))

	stack.SetMaxMemory(t, client, 1)
	require.ErrorContains(t, client.EvalSha(ctx, script.Hash(), []string{"full"}, 1).Err(), "OOM")
	require.Equal(t, int64(4), stack.CountScripts(t, client).Ran(), "it ran up to its first write")
	stack.SetMaxMemory(t, client, 0)
	require.NoError(t, client.Set(ctx, "k", 2, 0).Err())

	logged := stack.LoggedScripts(t, client)
	require.Len(t, logged, 5)
	require.Contains(t, logged, []string{"eval", source, "1", "k", "1"})
	require.Contains(t, logged, []string{"evalsha", script.Hash(), "1", "full", "1"})
	for _, args := range logged {
		require.True(t, strings.HasPrefix(args[0], "eval"))
	}
}
