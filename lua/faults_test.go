package lua

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// scriptCalls is how many times Redis ran each way of calling a script, failed calls left out.
func (s *store) scriptCalls() map[string]int64 {
	s.t.Helper()
	info, err := s.redis.Info(s.t.Context(), "commandstats").Result()
	require.NoError(s.t, err)
	calls := map[string]int64{}
	for _, m := range regexp.MustCompile(`cmdstat_(eval|evalsha):calls=(\d+),.*failed_calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		calls[m[1]] = number(s.t, m[2]) - number(s.t, m[3])
	}
	return calls
}

func TestADecisionRunsOnceAlsoWithoutItsScript(t *testing.T) {
	t.Parallel()
	s := connectStore(t, stack.NewRedis(t).URL(0)).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("0")).Status)
	for i := 1; i <= 5; i++ {
		require.NoError(t, s.redis.ScriptFlush(t.Context()).Err())
		require.NoError(t, s.redis.ConfigResetStat(t.Context()).Err())
		require.Equal(t, StatusAllowed, s.reserve(fullCall(fmt.Sprint(i))).Status)
		require.Equal(t, map[string]int64{"eval": 1, "evalsha": 0}, s.scriptCalls(), "the source was sent")
		require.NoError(t, s.redis.ConfigResetStat(t.Context()).Err())
		require.Equal(t, StatusAllowed, s.reserve(fullCall(fmt.Sprint(i, "b"))).Status)
		require.Equal(t, map[string]int64{"evalsha": 1}, s.scriptCalls(), "and is known from then on")
	}
	held, err := s.redis.HGet(t.Context(), counterKey("a", &appTotal), "held_requests").Int64()
	require.NoError(t, err)
	require.EqualValues(t, 11, held)
}

func TestScriptFlushUnderLoadReachesNoCaller(t *testing.T) {
	t.Parallel()
	s := connectStore(t, stack.NewRedis(t).URL(0)).open("a")
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 40 {
				c := fullCall(fmt.Sprint(g, "-", i))
				c.Budgets, c.Rates = nil, nil
				if d, err := s.Scripts.Reserve(t.Context(), c); err != nil || d.Status != StatusAllowed {
					t.Errorf("%v %v", d.Status, err)
				}
			}
		})
	}
	for range 50 {
		require.NoError(t, s.redis.ScriptFlush(t.Context()).Err())
	}
	wg.Wait()
	held, err := s.redis.HGet(t.Context(), counterKey("a", &appTotal), "held_requests").Int64()
	require.NoError(t, err)
	require.EqualValues(t, 8*40, held)
}

// A stalled Redis: the caller is told within its timeout, the client sends nothing a second time, and the same id asks again
// without holding twice.
func TestAStalledDecisionIsNeverRepeated(t *testing.T) {
	t.Parallel()
	server := stack.NewRedis(t)
	s := connectStore(t, server.URL(0)).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("warm")).Status)
	require.NoError(t, s.redis.ConfigResetStat(t.Context()).Err())

	client, err := Connect(server.URL(0), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.Eventually(t, func() bool { return client.Ping(t.Context()).Err() == nil }, patience, time.Millisecond)
	require.NoError(t, server.Pause())
	start := time.Now()
	_, err = New(client).Reserve(t.Context(), fullCall("r"))
	took := time.Since(start)
	require.NoError(t, server.Resume())
	require.Error(t, err)
	require.True(t, Unknown(err), err)
	require.Less(t, took, 30*time.Second, "50 ms, on a machine that may stand still; Redis was paused until it returned")
	require.GreaterOrEqual(t, took, 40*time.Millisecond)

	again := s.reserve(fullCall("r"))
	require.Contains(t, []Status{StatusHeld, StatusAllowed}, again.Status)
	require.LessOrEqual(t, s.scriptCalls()["evalsha"], int64(2), "the stalled one at most once, and the question after it")
	held, err := s.redis.HGet(t.Context(), counterKey("a", &appTotal), "held_requests").Int64()
	require.NoError(t, err)
	require.EqualValues(t, 2, held)
}

// No answer comes, to a client that would repeat commands and has connections left to do so: a script is sent once, an
// ordinary command again.
func TestAnUnansweredDecisionIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	server := stack.NewRedis(t)
	s := connectStore(t, server.URL(0)).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("warm")).Status)

	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), MaxRetries: 3, ReadTimeout: 50 * time.Millisecond,
		MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 2 * time.Millisecond,
	})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	var ready []*redis.Conn
	for range 12 {
		require.Eventually(t, func() bool {
			conn := client.Conn()
			if conn.Ping(t.Context()).Err() != nil {
				return conn.Close() != nil
			}
			ready = append(ready, conn)
			return true
		}, patience, time.Millisecond)
	}
	for _, conn := range ready {
		require.NoError(t, conn.Close())
	}
	require.NoError(t, s.redis.ConfigResetStat(t.Context()).Err())

	require.NoError(t, server.Pause())
	_, err := New(client).Reserve(t.Context(), fullCall("r"))
	ordinary := client.Incr(t.Context(), "ordinary").Err()
	require.NoError(t, server.Resume())
	require.Error(t, err)
	require.True(t, Unknown(err), err)
	require.Error(t, ordinary)

	require.Eventually(t, func() bool { return s.commandCalls("incr") > 1 }, patience, time.Millisecond,
		"the client does repeat what it may")
	require.Eventually(t, func() bool { return s.scriptCalls()["evalsha"] > 0 }, patience, time.Millisecond)
	require.EqualValues(t, 1, s.scriptCalls()["evalsha"])
	require.Equal(t, StatusHeld, s.reserve(fullCall("r")).Status)
}

func (s *store) commandCalls(name string) int64 {
	s.t.Helper()
	info, err := s.redis.Info(s.t.Context(), "commandstats").Result()
	require.NoError(s.t, err)
	if m := regexp.MustCompile(`cmdstat_` + name + `:calls=(\d+)`).FindStringSubmatch(info); m != nil {
		return number(s.t, m[1])
	}
	return 0
}

// dials counts attempts to connect.
type dials struct{ n atomic.Int64 }

func (d *dials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.n.Add(1)
		return next(ctx, network, addr)
	}
}

func (d *dials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (d *dials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestOnlyWhatWasSentIsUnknown(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Scripts.Reserve(ctx, fullCall("r"))
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, Unknown(err))

	gone, err := Connect("redis://127.0.0.1:1", Options{PoolSize: 7}) // so small a pool keeps none ready
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gone.Close()) })
	attempts := &dials{}
	gone.AddHook(attempts)
	_, err = New(gone).Reserve(t.Context(), fullCall("r"))
	require.Error(t, err)
	require.False(t, Unknown(err), err)
	require.EqualValues(t, 1, attempts.n.Load(), "no pause for another")
	require.False(t, Unknown(nil))
	_, err = Connect("http://nowhere", Options{})
	require.ErrorContains(t, err, "REDIS_URL")
}

func TestScriptsAreWhatTheyAreNamedBy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, sc := range []script{s.Scripts.reserve, s.Scripts.settle, s.Scripts.rebuild, s.Scripts.renew} {
		hash, err := s.redis.ScriptLoad(t.Context(), sc.source).Result()
		require.NoError(t, err, strings.SplitN(sc.source, "\n", 2)[0])
		require.Equal(t, hash, sc.hash)
	}
}
