package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
)

// answers stands between client and Redis: for each command it decides what the client is told of its outcome.
type answers []func(run func() error) error

func (a *answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if len(*a) == 0 {
			return next(ctx, cmd)
		}
		answer := (*a)[0]
		*a = (*a)[1:]
		err := answer(func() error { return next(ctx, cmd) })
		cmd.SetErr(err)
		return err
	}
}

// redisError is an answer of the server: the command did not run.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

const roomyPolicy = `degraded:
  breaker: {consecutive_timeouts: 3, probe_every: 50ms}
  local: {requests_per_second: 2, tokens_per_minute: 1000}
  closed_plans: [paid]
limits:
  - {name: l, tier: app, budget: {requests: 1000, per: day}}
`

// A call that was lost is asked once; what the gateway decides then is about the very reservation that Redis may hold.
func TestCallIsLost(t *testing.T) {
	t.Parallel()
	lost := func(run func() error) error { return errors.Join(run(), os.ErrDeadlineExceeded) }
	loading := func(func() error) error { return redisError("LOADING Redis is loading the dataset in memory") }
	for name, row := range map[string]struct {
		plan            string
		answer          func(run func() error) error
		allowed, inside bool // by the gateway; held in Redis
	}{
		"lost, allowed":    {"free", lost, true, true},
		"lost, refused":    {"paid", lost, false, true},
		"refused, allowed": {"free", loading, true, false},
		"refused, refused": {"paid", loading, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, settings{}, roomyPolicy)
			require.Nil(t, w.reserve(ask()).Refusal, "so that Redis knows the script")
			hook := answers{row.answer}
			w.client.AddHook(&hook)
			a := ask()
			a.Caller.Plan = row.plan
			v := w.reserve(a)
			require.Empty(t, hook, "one call was made")
			require.True(t, v.Degraded)
			require.Equal(t, row.allowed, v.Refusal == nil)
			require.Equal(t, row.inside && !row.allowed, v.MaybeHeld)
			if !row.allowed {
				require.Equal(t, ledger.ReasonDegraded, v.Refusal.Reason)
				require.Positive(t, v.Refusal.RetryAfter)
			} else {
				require.Contains(t, v.Reservation.Flags, "degraded")
				require.False(t, v.Reservation.Deadline.IsZero())
			}
			held, err := w.redis.Exists(t.Context(), fmt.Sprintf("{app:%s}:tg1:reservation:%s", app, v.Reservation.ID)).Result()
			require.NoError(t, err)
			require.Equal(t, row.inside, held == 1)
		})
	}
}

// state of another type is an error about this app, and the gateway judges by itself.
func TestRedisAnswersNonsense(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, roomyPolicy)
	require.Nil(t, w.reserve(ask()).Refusal)
	for _, key := range w.state() {
		require.NoError(t, w.redis.Del(t.Context(), key).Err())
		require.NoError(t, w.redis.Set(t.Context(), key, "nonsense", 0).Err())
	}
	for range 5 {
		v := w.reserve(ask())
		require.True(t, v.Degraded)
		require.False(t, v.MaybeHeld, "Redis answered: nothing is held")
	}
	require.False(t, w.breaker.Open(), "one app's keys do not shut Redis out for all")
	require.Contains(t, w.logs.String(), "WRONGTYPE")
}

func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	server := stack.NewRedis(t)
	w := newWorld(t, settings{redisURL: server.URL(0)}, roomyPolicy)
	require.Equal(t, ledger.ReasonRebuilding, w.reserve(ask()).Refusal.Reason, "it has no marks")
	require.NoError(t, w.scripts.Rebuild(t.Context(), rebuildCall("shared")))
	require.NoError(t, w.scripts.Rebuild(t.Context(), rebuildCall(app)))
	require.Nil(t, w.reserve(ask()).Refusal)
	require.NoError(t, configSet(t, server.URL(0), "maxmemory", "1"))
	v := w.reserve(ask())
	require.True(t, v.Degraded)
	require.False(t, v.MaybeHeld)
	w.run()
	for !w.breaker.Open() {
		w.reserve(ask())
	}
	require.NoError(t, configSet(t, server.URL(0), "maxmemory", "0"))
	w.awaitRedis()
}

// awaitRedis waits until Redis decides again.
func (w *world) awaitRedis() {
	w.Helper()
	stack.Eventually(w, func() error {
		v, err := w.Admit(context.Background(), ask())
		if err == nil && v.Degraded {
			err = errors.New("judged locally")
		}
		return err
	})
}

// Nobody there, or nobody who answers: each decision takes the timeout at most, and once the breaker is open no time at all.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	const timeout = 200 * time.Millisecond
	for name, silent := range map[string]bool{"refused": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var link *stack.Link
			w := newWorld(t, settings{timeout: timeout, through: func(url string) string {
				address, err := redisAddress(url)
				require.NoError(t, err)
				link = stack.Proxy(t, address)
				return strings.Replace(url, address, link.Addr, 1)
			}}, roomyPolicy)
			w.run()
			require.Nil(t, w.reserve(ask()).Refusal)
			before := w.state()
			if silent {
				link.BlackHole(true)
			} else {
				link.Refuse(true)
				link.Drop()
			}
			var admitted []*Verdict
			stack.Eventually(t, func() error {
				v := w.reserve(ask())
				require.True(t, v.Degraded)
				if v.Refusal == nil {
					admitted = append(admitted, v)
				} else {
					require.Equal(t, ledger.ReasonDegraded, v.Refusal.Reason)
				}
				if !w.breaker.Open() {
					return errors.New("the breaker is closed")
				}
				return nil
			})
			require.NotEmpty(t, admitted)
			w.Finish(admitted[0])
			ended, calls := w.clock.Now(), &w.breaker.counts.calls
			kept, met := calls[callKept].Load(), calls[callOutage].Load()
			for range 100 {
				require.True(t, w.reserve(ask()).Degraded)
			}
			require.Equal(t, kept+100, calls[callKept].Load(), "nobody asks Redis")
			require.Equal(t, met, calls[callOutage].Load())
			if silent {
				link.BlackHole(false)
			} else {
				link.Refuse(false)
			}
			w.awaitRedis()
			stack.Eventually(t, func() error {
				for _, v := range admitted {
					key := fmt.Sprintf("{app:%s}:tg1:reservation:%s", app, v.Reservation.ID)
					if n, err := w.redis.Exists(t.Context(), key).Result(); err != nil || n == 0 {
						return fmt.Errorf("%s is not held, of %d, before %d: %w", v.Reservation.ID, len(admitted), len(before), err)
					}
				}
				return nil
			})
			if silent {
				return // what was asked may run late, and hold until the real deadline
			}
			// Who has ended may be settled already: it is overdue, so that the settler looks after it.
			overdue, err := lua.New(w.redis).Overdue(t.Context(), app, ended.Add(time.Second), 100)
			require.NoError(t, err)
			require.Len(t, overdue, 1)
			require.Equal(t, admitted[0].Reservation.ID, overdue[0].ReservationID)
		})
	}
}

// A budget that was used up is used up without Redis, too.
func TestExhaustedBudgetStaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `degraded: {breaker: {consecutive_timeouts: 1}}
limits:
  - {name: l, tier: app, budget: {requests: 1, per: day}}
`)
	v := w.reserve(ask())
	require.Nil(t, v.Refusal)
	res := v.Reservation
	_, err := w.scripts.Settle(t.Context(), app, []ledger.CounterState{{Counter: res.Counters[0], App: app, Used: ledger.Amounts{Requests: 1}, Version: 1}}, nil,
		[]lua.Ending{{ReservationID: res.ID, Counters: res.Counters, Held: res.Held, Spent: ledger.Amounts{Requests: 1}}})
	require.NoError(t, err)
	require.Equal(t, ledger.ReasonAppQuota, w.reserve(ask()).Refusal.Reason)
	hook := answers{func(func() error) error { return redisError("LOADING") }}
	w.client.AddHook(&hook)
	v = w.reserve(ask())
	require.True(t, v.Degraded)
	require.Equal(t, ledger.ReasonAppQuota, v.Refusal.Reason)
	require.Equal(t, []int64{1, 1, 1}, []int64{v.Refusal.Used, v.Refusal.Limit, v.Refusal.Needed})
	require.Positive(t, v.Refusal.RetryAfter)
}

// What was admitted without Redis and cannot be told to it, because of one app's keys, keeps nobody from asking it again.
func TestBrokenKeysDoNotKeepTheBreakerOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, roomyPolicy)
	require.Nil(t, w.reserve(ask()).Refusal)
	for _, key := range w.state() {
		require.NoError(t, w.redis.Del(t.Context(), key).Err())
		require.NoError(t, w.redis.Set(t.Context(), key, "nonsense", 0).Err())
	}
	v := w.reserve(ask())
	require.True(t, v.Degraded)
	require.Nil(t, v.Refusal)
	require.NoError(t, w.probe(t.Context()))
	require.False(t, w.spell.any(), "its settlement will tell")
	require.Contains(t, w.logs.String(), "redis cannot be told")
}

// Who finds the breaker open, or gets no turn in time, is counted, and says nothing about Redis.
func TestCallsThatAreNotMadeAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{timeout: 20 * time.Millisecond}, roomyPolicy)
	for range callsAtOnce {
		w.asking <- struct{}{}
	}
	for range 5 {
		v := w.reserve(ask())
		require.True(t, v.Degraded)
		require.False(t, v.MaybeHeld)
	}
	require.False(t, w.breaker.Open())
	require.EqualValues(t, 5, w.breaker.counts.calls[callShed].Load())
	w.breaker.open.Store(true)
	require.True(t, w.reserve(ask()).Degraded)
	require.EqualValues(t, 1, w.breaker.counts.calls[callKept].Load())
}

// Slots that lapsed while Redis was away are taken again before it is asked.
func TestLapsedSlotsAreTakenBeforeTheReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "limits:\n  - {name: l, tier: app, concurrency: 1}\n")
	w.run()
	require.Nil(t, w.reserve(ask()).Refusal)
	for _, key := range w.state() {
		if strings.Contains(key, "inflight") {
			require.NoError(t, w.redis.Del(t.Context(), key).Err())
		}
	}
	require.NoError(t, w.probe(t.Context()))
	v := w.reserve(ask())
	require.NotNil(t, v.Refusal)
	require.Equal(t, ledger.ReasonConcurrency, v.Refusal.Reason)
}

// While a rebuild is known to be under way, an app that was never judged here does not make its callers wait for it.
func TestOnlyTheFirstWaitsForARebuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{unmarked: true}, roomyPolicy)
	settler, err := w.nc.SubscribeSync(event.RebuildSubject) // one that does not answer
	require.NoError(t, err)
	begun := time.Now()
	w.losses.notice(app)
	v := w.reserve(ask())
	require.Less(t, time.Since(begun), w.rebuildTimeout)
	if time.Since(begun) < rebuildPatience {
		require.Equal(t, ledger.ReasonRebuilding, v.Refusal.Reason)
	}
	require.NoError(t, w.nc.Flush())
	asked, _, err := settler.Pending()
	require.NoError(t, err)
	require.Zero(t, asked, "nobody is waited for who was not asked")
}
