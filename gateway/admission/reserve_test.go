package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

func TestReserveHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `limits:
  - {name: platform-month, tier: platform, budget: {usd: 100, per: month}}
  - {name: app-day, tier: app, budget: {tokens: 1000, per: day}}
  - {name: key-rpm, tier: key, by: [model], rate: {requests: 9, per: minute, algorithm: sliding_log}}
`)
	before := time.Now()
	v := w.reserve(ask())
	require.Nil(t, v.Refusal)
	res := v.Reservation
	require.Equal(t, ledger.Amounts{Requests: 1, Tokens: 100, NanoUSD: 20*150 + 80*600}, res.Held)
	require.Equal(t, []string{"k_1", "eve", "free", "openai", "gpt-4o-mini", "gpt-4o-mini", "/v1/chat/completions"},
		[]string{res.Key, res.User, res.Plan, res.Provider, res.ModelRequested, res.Model, res.Endpoint})
	require.Len(t, res.Counters, 2)
	require.Len(t, res.Rates, 1)
	require.WithinRange(t, res.ReservedAt, before.Add(-time.Second), time.Now().Add(time.Second))
	require.Equal(t, w.Policy().Reservations.TTL, res.Deadline.Sub(res.ReservedAt))
	require.Equal(t, v.Price.ID, res.PriceRow)
	require.Equal(t, w.Policy().Revision, res.PolicyRevision)
	require.Len(t, v.Limits, 3)
	for _, s := range v.Limits {
		require.True(t, s.Fits)
		require.Zero(t, s.Used+s.Held, "figures are those before the request")
	}
	require.Equal(t, int64(900), v.Limits[1].Remaining(res.Held))
	second := w.reserve(ask())
	require.NotEqual(t, res.ID, second.Reservation.ID)
	require.Equal(t, int64(100), second.Limits[1].Held)
	problems, err := testutil.GatherAndLint(w.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// Each tier and algorithm refuses under its own name, and a refusal writes nothing.
func TestReserveRefuses(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]ledger.Reason{
		"{name: l, tier: platform, budget: {requests: 1, per: day}}":                                          ledger.ReasonPlatformQuota,
		"{name: l, tier: provider, budget: {requests: 1, per: week}}":                                         ledger.ReasonProviderQuota,
		"{name: l, tier: plan, budget: {requests: 1, per: month}}":                                            ledger.ReasonPlanQuota,
		"{name: l, tier: app, budget: {requests: 1, per: total}}":                                             ledger.ReasonAppQuota,
		"{name: l, tier: key, budget: {tokens: 150, per: day}}":                                               ledger.ReasonKeyQuota,
		"{name: l, tier: user, budget: {usd: 0.00006, per: day}}":                                             ledger.ReasonUserQuota,
		"{name: l, tier: endpoint, budget: {requests: 1, per: day}}":                                          ledger.ReasonEndpointLimit,
		"{name: l, tier: endpoint, rate: {requests: 1, per: minute, algorithm: sliding_log}}":                 ledger.ReasonEndpointLimit,
		"{name: l, tier: key, rate: {requests: 1, per: minute, algorithm: sliding_log}}":                      ledger.ReasonRPMLimit,
		"{name: l, tier: app, rate: {tokens: 150, per: minute, algorithm: sliding_log}}":                      ledger.ReasonTPMLimit,
		"{name: l, tier: key, rate: {requests: 1, per: minute, burst: 1, algorithm: token_bucket}}":           ledger.ReasonTokenBucket,
		"{name: l, tier: key, rate: {tokens: 100, per: minute, burst: 150, algorithm: token_bucket}}":         ledger.ReasonTokenBucket,
		"{name: l, tier: provider, by: [model], rate: {requests: 1, per: minute, algorithm: sliding_log}}":    ledger.ReasonRPMLimit,
		"{name: l, tier: key, match: {plan: free}, rate: {requests: 1, per: minute, algorithm: sliding_log}}": ledger.ReasonRPMLimit,
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, settings{}, "limits:\n  - "+limit+"\n")
			require.Nil(t, w.reserve(ask()).Refusal)
			state := w.state()
			v := w.reserve(ask())
			require.NotNil(t, v.Refusal)
			r := v.Refusal
			limit := w.Policy().Limits[0]
			require.Equal(t, want, r.Reason)
			require.Equal(t, limit.Tier, r.Layer)
			require.Equal(t, "l", r.LimitName)
			require.Equal(t, limit.Unit(), r.Unit)
			require.Equal(t, v.Reservation.Held.In(limit.Unit()), r.Needed)
			require.Greater(t, r.Used+r.Held+r.Needed, r.Limit, "the figures show why")
			require.ElementsMatch(t, state, w.state())
			if limit.Budget != nil {
				require.Equal(t, heldOnly, r.RetryAfter, "what is in flight may be given back")
				require.False(t, r.Exhausted)
			} else {
				require.Positive(t, r.RetryAfter)
				require.LessOrEqual(t, r.RetryAfter, time.Minute)
			}
		})
	}
}

func TestRefusalOfSeveralLimits(t *testing.T) {
	t.Parallel()
	need := ledger.Amounts{Requests: 1}
	limit := func(name string, tier ledger.Tier, budget bool, wait time.Duration, fits bool) LimitState {
		l := &policy.Limit{Name: name, Tier: tier, Rate: &policy.Rate{Unit: ledger.UnitRequests, Algorithm: ledger.AlgorithmSlidingLog}}
		if budget {
			l.Rate, l.Budget = nil, &policy.Budget{Unit: ledger.UnitRequests}
		}
		return LimitState{Applied: policy.Applied{Limit: l}, Wait: wait, Fits: fits}
	}
	for name, c := range map[string]struct {
		states    []LimitState
		layer     string
		wait      time.Duration
		exhausted bool
	}{
		"the first is told, the longest wait": {[]LimitState{
			limit("a", ledger.TierPlatform, false, 0, true), limit("b", ledger.TierApp, false, 2*time.Second, false), limit("c", ledger.TierKey, false, 9*time.Second, false),
		}, "b", 9 * time.Second, false},
		"a budget exhausts":      {[]LimitState{limit("b", ledger.TierApp, false, 2*time.Second, false), limit("c", ledger.TierKey, true, time.Hour, false)}, "b", time.Hour, true},
		"a held budget does not": {[]LimitState{limit("b", ledger.TierApp, true, heldOnly, false), limit("c", ledger.TierKey, false, 500*time.Millisecond, false)}, "b", heldOnly, false},
		"one never resets":       {[]LimitState{limit("b", ledger.TierApp, false, 2*time.Second, false), limit("c", ledger.TierKey, true, 0, false)}, "b", 0, true},
	} {
		r := refusalOf(c.states, need)
		require.Equal(t, c.layer, r.LimitName, name)
		require.Equal(t, c.wait, r.RetryAfter, name)
		require.Equal(t, c.exhausted, r.Exhausted, name)
	}
	require.Nil(t, refusalOf([]LimitState{limit("a", ledger.TierApp, true, 0, true)}, need))
}

func TestReserveOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, `limits:
  - {name: key, tier: key, rate: {requests: 1, per: minute, algorithm: sliding_log}}
  - {name: user, tier: user, budget: {requests: 1, per: day}}
  - {name: platform, tier: platform, budget: {requests: 1, per: day}}
  - {name: app, tier: app, budget: {requests: 1, per: total}}
`)
	require.Nil(t, w.reserve(ask()).Refusal)
	v := w.reserve(ask())
	require.Equal(t, "platform", v.Refusal.LimitName, "the widest tier is told")
	require.Greater(t, v.Refusal.RetryAfter, heldOnly, "the wait is the rate's")
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	for limit, most := range map[string]int64{
		"{name: l, tier: app, budget: {usd: 0.00005, per: day}}":                                      50_000,
		"{name: l, tier: app, budget: {tokens: 99, per: total}}":                                      99,
		"{name: l, tier: app, rate: {tokens: 99, per: minute, algorithm: sliding_log}}":               99,
		"{name: l, tier: app, rate: {tokens: 9999, per: minute, burst: 99, algorithm: token_bucket}}": 99,
		"{name: l, tier: app, budget: {requests: 9, per: day}, overrides: {checkout: {requests: 0}}}": 0,
	} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, settings{}, "limits:\n  - "+limit+"\n")
			r := w.reserve(ask()).Refusal
			require.NotNil(t, r)
			require.Equal(t, ledger.ReasonRequestTooLarge, r.Reason)
			require.Equal(t, most, r.Limit)
			require.Greater(t, r.Needed, most)
			require.Empty(t, w.state())
		})
	}
}

func TestModelsAndPrices(t *testing.T) {
	t.Parallel()
	const tokens, money = "limits:\n  - {name: t, tier: app, budget: {tokens: 1000, per: day}}\n", "limits:\n  - {name: m, tier: app, budget: {usd: 10, per: day}}\n"
	w := newWorld(t, settings{}, tokens)
	a := ask()
	a.Model = "nobody's"
	require.Equal(t, ledger.ReasonUnknownModel, w.reserve(a).Refusal.Reason)
	a.Model = "unpriced"
	v := w.reserve(a)
	require.Nil(t, v.Refusal)
	require.Equal(t, []string{"unpriced"}, v.Reservation.Flags)
	require.Nil(t, v.Price)
	require.Zero(t, v.Reservation.Held.NanoUSD)

	// A policy that comes while requests are judged holds from the next one on.
	require.NoError(t, w.SetPolicy(w.rules(money), nil))
	r := w.reserve(a).Refusal
	require.Equal(t, ledger.ReasonUnpricedModel, r.Reason)
	require.Equal(t, "m", r.LimitName)
	a = ask()
	a.Estimate = estimate(20, 1<<62) // costs more than can be counted
	require.Equal(t, ledger.ReasonRequestTooLarge, w.reserve(a).Refusal.Reason)
}

// Whatever this machine's clock says, windows are those of Redis's.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{0, 5 * time.Second, -5 * time.Second, 30 * time.Hour, -30 * time.Hour, 400 * 24 * time.Hour, -400 * 24 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			t.Parallel()
			berlin, err := time.LoadLocation("Europe/Berlin")
			require.NoError(t, err)
			stack.AwayFromMidnight(t, berlin)
			w := newWorld(t, settings{now: func() time.Time { return time.Now().Add(skew) }}, `timezone: Europe/Berlin
limits:
  - {name: d, tier: app, budget: {requests: 5, per: day}}
  - {name: m, tier: key, budget: {requests: 5, per: month}}
`)
			for range 2 {
				before := time.Now()
				v := w.reserve(ask())
				slack := time.Since(before) // an answer tells the time no better than it is quick
				require.Nil(t, v.Refusal)
				for _, c := range v.Reservation.Counters {
					require.Equal(t, w.Policy().Calendar.Window(c.Period, v.Reservation.ReservedAt), c.Window)
				}
				require.WithinRange(t, v.Reservation.ReservedAt, before.Add(-time.Second), before.Add(slack+time.Second))
				before = time.Now()
				now := w.clock.Now()
				require.WithinRange(t, now, before.Add(-slack-3*time.Second), time.Now().Add(slack+3*time.Second))
			}
			v := w.reserve(ask())
			require.Equal(t, int64(2), v.Limits[0].Held, "all were counted in one window")
		})
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 29, 1, 59, 59, 0, time.FixedZone("CET", 3600))
	clock := NewClock(func() time.Time { return at })
	require.Equal(t, at.UTC(), clock.Now())
	require.Equal(t, time.UTC, clock.Now().Location())
	sent := at
	at = at.Add(100 * time.Millisecond) // the answer took so long; Redis read its clock half-way
	clock.Observe(sent.Add(time.Hour+50*time.Millisecond), at.Sub(sent))
	require.Equal(t, at.Add(time.Hour).UTC(), clock.Now())
}

// Many at once get exactly what there is room for.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "limits:\n  - {name: l, tier: app, budget: {requests: 30, per: day}}\n")
	var allowed atomic.Int64
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			for range 8 {
				v, err := w.Admit(context.Background(), ask())
				if err != nil {
					t.Error(err)
				} else if v.Refusal == nil {
					allowed.Add(1)
				}
			}
		})
	}
	workers.Wait()
	require.Equal(t, int64(30), allowed.Load())
}

const roomy = "limits:\n  - {name: l, tier: app, budget: {requests: 1000, per: day}}\n"

// settle plays the settler: it answers rebuilds, and counts them by slot.
func (w *world) settle(answer func(m *nats.Msg)) *atomic.Int64 {
	w.Helper()
	var asked atomic.Int64
	_, err := w.nc.Subscribe(event.RebuildSubject, func(m *nats.Msg) {
		asked.Add(1)
		answer(m)
	})
	require.NoError(w, err)
	require.NoError(w, w.nc.Flush())
	return &asked
}

// answered counts what Redis has answered to a client.
type answered struct{ counting }

func (a *answered) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil { // not one that does not know the script
			a.Add(1)
		}
		return err
	}
}

// Callers of one app whose counters are missing share one rebuild, and all are judged after it.
func TestRebuildOnce(t *testing.T) {
	t.Parallel()
	const callers = 20
	w := newWorld(t, settings{unmarked: true}, roomy)
	release := make(chan struct{})
	var calls answered
	w.client.AddHook(&calls)
	asked := w.settle(func(m *nats.Msg) {
		<-release // until everybody has come
		if string(m.Data) == app {
			w.mark("1")
		}
		if err := m.Respond(nil); err != nil {
			t.Error(err)
		}
	})
	var workers sync.WaitGroup
	for range callers {
		workers.Go(func() {
			v, err := w.Admit(context.Background(), ask())
			if err != nil || v.Refusal != nil {
				t.Errorf("%+v %v", v, err)
			}
		})
	}
	stack.Eventually(t, func() error {
		if calls.Load() < callers || asked.Load() == 0 {
			return errors.New("not everybody is here")
		}
		return nil
	})
	close(release)
	workers.Wait()
	require.LessOrEqual(t, asked.Load(), int64(4), "a late comer may ask once more")
}

// A new generation is learned by the rebuild that it makes necessary.
func TestGenerationChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, roomy)
	require.Nil(t, w.reserve(ask()).Refusal)
	w.generation("2")
	w.mark("2")
	w.settle(func(m *nats.Msg) { _ = m.Respond(nil) })
	w.run()
	v := w.reserve(ask())
	require.Equal(t, ledger.ReasonRebuilding, v.Refusal.Reason, "nobody waits for a rebuild who was judged before")
	stack.Eventually(t, func() error {
		if v = w.reserve(ask()); v.Refusal != nil || v.Degraded {
			return fmt.Errorf("%+v, degraded %v", v.Refusal, v.Degraded)
		}
		return nil
	})
	require.Equal(t, "2", w.control.Generation())
}

// Without counters nothing is allowed, whatever the settler does or does not do.
func TestRebuildFails(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(w *world){
		"no settler":                func(*world) {},
		"settler that cannot":       func(w *world) { w.settle(func(m *nats.Msg) { _ = m.Respond(nil) }) },
		"settler that says nothing": func(w *world) { w.settle(func(*nats.Msg) {}) },
		"nats is away": func(w *world) {
			require.NoError(w, w.nats.Shutdown(w.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, settings{unmarked: true}, roomy)
			w.rebuildTimeout = rebuildTimeout
			prepare(w)
			begun := time.Now()
			v := w.reserve(ask())
			require.Less(t, time.Since(begun), rebuildTimeout+patience)
			require.NotNil(t, v.Refusal)
			require.Equal(t, ledger.ReasonRebuilding, v.Refusal.Reason)
			require.Positive(t, v.Refusal.RetryAfter)
			require.Empty(t, w.state())
		})
	}
}

// Requests of a new app that come together: who was told that counters are missing just before another was judged asks again,
// and is not sent away.
func TestFirstRequestsComeTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{unmarked: true}, roomy)
	early := w.prepare(ask(), "gpt-4o-mini")
	d, err := w.askRedis(t.Context(), early.call)
	require.NoError(t, err)
	require.Equal(t, lua.StatusRebuild, d.Status)
	w.mark("1")
	require.Nil(t, w.reserve(ask()).Refusal)
	require.True(t, w.rebuiltNow(t.Context(), early), "the counters are there now")
	require.False(t, w.rebuiltNow(t.Context(), w.prepare(ask(), "gpt-4o-mini")), "missing again is a loss")
}
