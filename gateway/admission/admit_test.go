package admission

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

// Limits in shadow, or that flag, are judged and refuse nobody; what really refuses is told alone.
func TestSoftLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit, flag string
		action      policy.Action
	}{
		"shadow budget":      {"{name: l, tier: app, budget: {requests: 1, per: day}, shadow: true}", "shadow", ActionShadow},
		"shadow rate":        {"{name: l, tier: app, rate: {requests: 1, per: hour}, shadow: true}", "shadow", ActionShadow},
		"shadow bucket":      {"{name: l, tier: app, rate: {requests: 1, per: hour, algorithm: token_bucket}, shadow: true}", "shadow", ActionShadow},
		"shadow concurrency": {"{name: l, tier: app, concurrency: 1, shadow: true}", "shadow", ActionShadow},
		"flag":               {"{name: l, tier: app, rate: {requests: 1, per: hour}, on_exceed: {action: flag}}", "flagged", policy.ActionFlag},
		"shadow reject":      {"{name: l, tier: app, budget: {requests: 1, per: day}, shadow: true, on_exceed: {action: reject}}", "shadow", ActionShadow},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, settings{}, "limits:\n  - "+c.limit+"\n  - {name: hard, tier: key, budget: {requests: 3, per: day}}\n")
			v := w.reserve(ask())
			require.Nil(t, v.Refusal)
			require.Empty(t, v.PassedOver)
			require.Empty(t, v.Reservation.Flags)
			rates := len(v.Reservation.Rates)
			for range 2 {
				v = w.reserve(ask())
				require.Nil(t, v.Refusal)
				require.Len(t, v.PassedOver, 1)
				require.Equal(t, c.action, v.PassedOver[0].Action)
				require.Equal(t, "l", v.PassedOver[0].Refusal.LimitName)
				require.Equal(t, []string{c.flag}, v.Reservation.Flags)
				if v.Limits[0].Applied.Limit.Budget == nil {
					require.Len(t, v.Reservation.Rates, rates-1, "what was not charged is not corrected")
				}
			}
			v = w.reserve(ask())
			require.Equal(t, "hard", v.Refusal.LimitName, "counted once, at the limit that refused")
			require.Empty(t, v.PassedOver)
		})
	}
}

// A plan that flags makes its limits flag, but for those that say otherwise.
func TestPlanFlags(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `  internal: {on_exceed: {action: flag}}
limits:
  - {name: soft, tier: app, budget: {tokens: 50, per: day}}
  - {name: hard, tier: key, budget: {requests: 1, per: day}, on_exceed: {action: reject}}
`)
	a := ask()
	a.Caller.Plan = "internal"
	v := w.reserve(a)
	require.Nil(t, v.Refusal, "a soft limit does not call a request too large either")
	require.Equal(t, []string{"flagged"}, v.Reservation.Flags)
	require.Equal(t, "hard", w.reserve(a).Refusal.LimitName)
	require.Equal(t, ledger.ReasonRequestTooLarge, w.reserve(ask()).Refusal.Reason, "another plan")
}

// Requests in flight take slots, which come back when they end, or when their gateway is gone.
func TestConcurrencySlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "limits:\n  - {name: l, tier: app, concurrency: 2}\n  - {name: rpm, tier: app, rate: {requests: 100, per: minute}}\n")
	w.run()
	first, second := w.reserve(ask()), w.reserve(ask())
	require.Nil(t, first.Refusal)
	require.Nil(t, second.Refusal)
	v := w.reserve(ask())
	require.Equal(t, ledger.ReasonConcurrency, v.Refusal.Reason)
	require.Equal(t, []int64{2, 2, 1}, []int64{v.Refusal.Used, v.Refusal.Limit, v.Refusal.Needed})
	require.Equal(t, heldOnly, v.Refusal.RetryAfter)
	require.Equal(t, int64(2), v.Limits[1].Used, "refused by concurrency, the rate is not charged (litellm #39309)")
	w.Finish(first)
	w.Finish(first) // twice changes nothing
	stack.Eventually(t, func() error {
		if v = w.reserve(ask()); v.Refusal != nil {
			return fmt.Errorf("%+v", v.Refusal)
		}
		return nil
	})
	require.NotNil(t, w.reserve(ask()).Refusal)
}

const throttled = `  waiting: {on_exceed: {action: throttle, max_wait: 1h, max_depth: 3}}
limits:
  - {name: l, tier: app, concurrency: 1}
`

func waiting() *Ask {
	a := ask()
	a.Caller.Plan = "waiting"
	return a
}

// Who waits is served in the order of arrival, by one who asks; the line is as long as the policy says and no longer.
func TestThrottleIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, throttled)
	w.run()
	current := w.reserve(waiting())
	require.Nil(t, current.Refusal)
	type served struct {
		who int
		v   *Verdict
	}
	order := make(chan served, 3)
	for i := range 3 {
		go func() {
			v, err := w.Admit(context.Background(), waiting())
			if err != nil {
				t.Error(err)
			}
			order <- served{i, v}
		}()
		w.awaitWaiting(int64(i + 1))
	}
	full := w.reserve(waiting())
	require.Equal(t, ledger.ReasonConcurrency, full.Refusal.Reason)
	require.Equal(t, 4, full.Refusal.Queue.Position)
	require.Positive(t, full.Refusal.Queue.ExpectedWait)
	for i := range 3 {
		w.Finish(current)
		next := <-order
		require.Equal(t, i, next.who)
		require.Nil(t, next.v.Refusal)
		require.Equal(t, i+1, next.v.Queued.Position)
		require.Equal(t, "l", next.v.Queued.Limit)
		require.Positive(t, next.v.Queued.Waited)
		current = next.v
	}
	require.False(t, w.lines.any())
	require.Empty(t, w.lines.byKey)
}

func (w *world) awaitWaiting(n int64) {
	w.Helper()
	stack.Eventually(w, func() error {
		if got := w.lines.waiting.Load(); got != n {
			return fmt.Errorf("%d wait", got)
		}
		return nil
	})
}

// While many wait, one asks Redis (no thundering herd), and whoever leaves makes room in the line.
func TestThrottleAsksOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `  waiting: {on_exceed: {action: throttle, max_wait: 1h, max_depth: 50}}
limits:
  - {name: l, tier: app, rate: {requests: 1, per: hour}}
`)
	require.Nil(t, w.reserve(waiting()).Refusal)
	ctx, leave := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	wait := func() {
		v, err := w.Admit(ctx, waiting())
		if err != nil || v.Refusal == nil || v.Refusal.Reason != ledger.ReasonClientGone {
			t.Errorf("%+v %v", v, err)
		}
	}
	callers.Go(wait)
	w.awaitWaiting(1)
	var calls counting
	w.client.AddHook(&calls)
	for range 49 {
		callers.Go(wait)
	}
	w.awaitWaiting(50)
	require.Equal(t, 51, w.reserve(waiting()).Refusal.Queue.Position)
	require.Zero(t, calls.Load(), "only the head asks, and it knows when")
	leave()
	callers.Wait()
	require.False(t, w.lines.any())
}

// counting counts the commands of a client.
type counting struct{ atomic.Int64 }

func (c *counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.Add(1)
		return next(ctx, cmd)
	}
}

// A wait that cannot end before the deadline is refused at once.
func TestThrottleDoesNotWaitInVain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `  waiting: {on_exceed: {action: throttle, max_wait: 2m, max_depth: 50}}
limits:
  - {name: l, tier: app, rate: {requests: 1, per: hour}}
`)
	require.Nil(t, w.reserve(waiting()).Refusal)
	begun := time.Now()
	v := w.reserve(waiting())
	require.Less(t, time.Since(begun), time.Minute, "half of what it would have waited")
	require.Equal(t, ledger.ReasonRPMLimit, v.Refusal.Reason)
	require.Greater(t, v.Refusal.RetryAfter, 55*time.Minute)
}

// Who waits for a rate is served when it has room again: nobody gives any back, and nobody tells.
func TestThrottleEndsByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `  waiting: {on_exceed: {action: throttle, max_wait: 1h, max_depth: 1}}
limits:
  - {name: l, tier: app, rate: {requests: 1, per: second}}
`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for waited := false; !waited; { // the first does not, nor one that comes late
		v, err := w.Admit(ctx, waiting())
		require.NoError(t, err)
		require.Nil(t, v.Refusal)
		waited = v.Queued != nil
	}
	require.False(t, w.lines.any())
}

// The deadline ends a wait with the newest figures.
func TestThrottleEndsAtDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `  waiting: {on_exceed: {action: throttle, max_wait: 200ms, max_depth: 50}}
limits:
  - {name: l, tier: app, concurrency: 1}
`)
	require.Nil(t, w.reserve(waiting()).Refusal)
	var callers sync.WaitGroup
	for range 5 {
		callers.Go(func() {
			v, err := w.Admit(context.Background(), waiting())
			if err != nil || v.Refusal == nil || v.Refusal.Reason != ledger.ReasonConcurrency || v.Queued.Waited < 100*time.Millisecond {
				t.Errorf("%+v %+v %v", v.Refusal, v.Queued, err)
			}
		})
	}
	callers.Wait()
	require.False(t, w.lines.any())
}

// A limit that refuses wins over one that lets wait, and one of a subject does not hold up the line of another.
func TestThrottleBlastRadius(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `  waiting: {on_exceed: {action: throttle, max_wait: 1h, max_depth: 9}}
limits:
  - {name: app, tier: app, rate: {requests: 2, per: minute}}
  - {name: user, tier: user, concurrency: 1}
  - {name: strict, tier: key, budget: {requests: 4, per: day}, on_exceed: {action: reject}}
`)
	w.run()
	eve := w.reserve(waiting())
	require.Nil(t, eve.Refusal)
	mallory := waiting()
	mallory.User = "mallory"
	require.Nil(t, w.reserve(mallory).Refusal)
	// Eve's next waits for her own slot at the end, and must not keep others of the app from theirs.
	waits := make(chan *Verdict, 1)
	go func() {
		v, err := w.Admit(context.Background(), waiting())
		if err != nil {
			t.Error(err)
		}
		waits <- v
	}()
	w.awaitWaiting(1)
	bob := waiting()
	bob.User = "bob"
	passes := make(chan *Verdict, 1)
	go func() {
		v, err := w.Admit(context.Background(), bob)
		if err != nil {
			t.Error(err)
		}
		passes <- v
	}()
	w.awaitWaiting(2)
	w.forget("app", "app:"+app)
	v := <-passes
	require.Nil(t, v.Refusal)
	require.Equal(t, "app", v.Queued.Limit)
	w.Finish(eve)
	require.Nil(t, (<-waits).Refusal)
	v = w.reserve(bob)
	require.NotNil(t, v.Refusal)
	require.Nil(t, v.Queued, "the strict limit is used up: nobody waits")
}

// forget has Redis know nothing of what a rate of requests was charged, and tells those who wait for it.
func (w *world) forget(limit, subject string) {
	w.Helper()
	keys, err := w.redis.Keys(context.Background(), "*:requests:"+limit+":"+subject).Result()
	require.NoError(w, err)
	require.Len(w, keys, 1)
	require.NoError(w, w.redis.Del(context.Background(), keys...).Err())
	w.lines.freed(limit, subject)
}

const falling = `  gpt-4o: {provider: openai}
plans:
  free: {on_exceed: {action: fallback}}
  paid: {}
apps:
  checkout: {fallback: {gpt-4o: gpt-4o-mini}}
limits:
  - {name: big, tier: app, match: {model: gpt-4o}, rate: {requests: 1, per: hour}}
  - {name: all, tier: app, budget: {requests: 2, per: day}}
`

// An app that has opted in is served by its cheaper model at that one's price, when its own has no room.
func TestFallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "limits: []\n")
	p, err := policy.Parse([]byte("version: 1\nproviders:\n  openai: {protocol: openai, base_url: \"http://127.0.0.1:1/v1\"}\nmodels:\n  gpt-4o-mini: {provider: openai}\n"+falling), nil)
	require.NoError(t, err)
	require.NoError(t, w.SetPolicy(p, nil))
	a := ask()
	a.Model = "gpt-4o"
	a.Estimate = func(model string) (input, output ledger.Tokens) {
		if model == "gpt-4o-mini" {
			return 30, 80
		}
		return 20, 80
	}
	v := w.reserve(a)
	require.Equal(t, "gpt-4o", v.Reservation.Model)
	v = w.reserve(a)
	require.Nil(t, v.Refusal)
	res := v.Reservation
	require.Equal(t, []string{"gpt-4o", "gpt-4o-mini"}, []string{res.ModelRequested, res.Model})
	require.Equal(t, ledger.Amounts{Requests: 1, Tokens: 110, NanoUSD: 30*150 + 80*600}, res.Held)
	require.Equal(t, []string{"fallback"}, res.Flags)
	require.Equal(t, v.Price.ID, res.PriceRow)
	v = w.reserve(a)
	require.Equal(t, "big", v.Refusal.LimitName, "the model asked for is what is refused")
	require.Empty(t, v.Refusal.FallbackModel, "the other one has no room either")

	a.Caller.App = "other"
	require.NoError(t, w.scripts.Rebuild(t.Context(), lua.RebuildCall{Slot: "other", Generation: "1"}))
	require.Nil(t, w.reserve(a).Refusal)
	require.Equal(t, "big", w.reserve(a).Refusal.LimitName, "not opted in")
	a.Caller.App, a.Caller.Plan = app, "paid"
	v = w.reserve(a)
	require.Equal(t, "big", v.Refusal.LimitName)
	require.Equal(t, "gpt-4o-mini", v.Refusal.FallbackModel, "told, not done")
}

// Who comes while others wait is told what is left of the wait, of its own request, and no offer that was made to another app.
func TestBusyLineTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l lines
		throttle := policy.OnExceed{Action: policy.ActionThrottle, MaxWait: time.Minute, MaxDepth: 1}
		s := LimitState{
			Applied:  policy.Applied{Limit: &policy.Limit{Name: "l", Tier: ledger.TierPlatform, Rate: &policy.Rate{Unit: ledger.UnitTokens}}, Subject: "platform", Value: 100},
			OnExceed: throttle, Used: 90, Wait: 10 * time.Second,
		}
		first := refusalOf([]LimitState{s}, ledger.Amounts{Tokens: 40})
		first.judged, first.FallbackModel = time.Now(), "another-app-s-model"
		head, _ := l.join(first, time.Now().Add(time.Minute))
		defer head.leave()
		time.Sleep(4 * time.Second)
		r := l.busy([]LimitState{{Applied: s.Applied, OnExceed: throttle}}, ledger.Amounts{Tokens: 20})
		require.Equal(t, 6*time.Second, r.RetryAfter)
		require.Equal(t, 6*time.Second, r.probe)
		require.Equal(t, []int64{90, 100, 20}, []int64{r.Used, r.Limit, r.Needed})
		require.Contains(t, r.Message, "needs 20 tokens")
		require.Empty(t, r.FallbackModel)
		time.Sleep(time.Minute)
		require.Equal(t, heldOnly, r.told().RetryAfter, "0 would mean that no wait helps")
		require.Zero(t, gone.told().RetryAfter)
	})
}

// After a loss of Redis's data no slot is given before every gateway has told of its own: that wait is told.
func TestSlotsAfterALossAreWaitedFor(t *testing.T) {
	t.Parallel()
	limit := &policy.Limit{Name: "l", Tier: ledger.TierApp, Concurrency: 2}
	for wait, probe := range map[time.Duration]time.Duration{heldOnly: probeHeld, 8 * time.Second: 8 * time.Second} {
		r := refusalOf([]LimitState{{Applied: policy.Applied{Limit: limit, Value: 2}, Used: 2, Wait: wait}}, ledger.Amounts{Requests: 1})
		require.Equal(t, wait, r.RetryAfter)
		require.Equal(t, probe, r.probe)
	}
}
