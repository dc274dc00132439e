package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// shares reads the metric: ratio by tier, subject and limit.
func shares(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "tollgate_budget_remaining_ratio" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			found[strings.Join([]string{labels["tier"], labels["subject"], labels["limit"]}, " ")] = m.GetGauge().GetValue()
		}
	}
	return found
}

// budgetState is a budget of requests as a decision saw it.
func budgetState(name string, tier ledger.Tier, subject string, used, limit int64, reset time.Time, by ...policy.Dimension) admission.LimitState {
	return admission.LimitState{
		Applied: policy.Applied{
			Limit:   &policy.Limit{Name: name, Tier: tier, By: by, Budget: &policy.Budget{Unit: ledger.UnitRequests, Period: ledger.PeriodDay}},
			Subject: subject, Value: limit,
		},
		Used: used, Reset: reset,
	}
}

func TestRemainingShowsBudgetsWithFewSubjects(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := newRemaining(reg)
	end := noon.Add(time.Hour)
	matched := budgetState("of-a-user", ledger.TierApp, "app:shop?user=ada", 1, 2, end)
	matched.Applied.Limit.Match = []policy.Condition{{Key: policy.DimensionUser, Values: []string{"ada"}}}
	shadow := budgetState("shadow", ledger.TierApp, "app:shop", 1, 2, end)
	shadow.Applied.Limit.Shadow = true
	rate := budgetState("rate", ledger.TierApp, "app:shop", 1, 2, end)
	rate.Applied.Limit.Budget, rate.Applied.Limit.Rate = nil, &policy.Rate{Unit: ledger.UnitRequests}
	r.observe([]admission.LimitState{
		budgetState("app-day", ledger.TierApp, "app:shop", 89, 100, end),
		budgetState("platform-total", ledger.TierPlatform, "platform:all", 150, 100, time.Time{}),
		budgetState("model-day", ledger.TierProvider, "provider:openai[model=m]", 0, 100, end, policy.DimensionModel),
		budgetState("closed", ledger.TierApp, "app:shop", 0, 0, end),
		budgetState("key-day", ledger.TierKey, "key:k_1", 0, 100, end),
		budgetState("user-day", ledger.TierUser, "user:shop/ada", 0, 100, end),
		budgetState("ip-day", ledger.TierIP, "ip:1.2.3.4", 0, 100, end),
		budgetState("by-user", ledger.TierApp, "app:shop[user=shop/ada]", 0, 100, end, policy.DimensionUser),
		budgetState("by-ip", ledger.TierPlan, "plan:free[ip=1.2.3.4]", 0, 100, end, policy.DimensionIP),
		shadow, rate, matched,
	}, ledger.Amounts{Requests: 1}, noon)
	require.Equal(t, map[string]float64{
		"app app:shop app-day": 0.1, "platform platform:all platform-total": 0, "provider provider:openai[model=m] model-day": 0.99,
	}, shares(t, reg))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)

	r.observe([]admission.LimitState{budgetState("app-day", ledger.TierApp, "app:shop", 95, 100, end)}, ledger.Amounts{}, noon)
	require.Equal(t, 0.05, shares(t, reg)["app app:shop app-day"], "a later decision knows better")
	r.forget()
	require.Empty(t, shares(t, reg))
}

// A figure goes with its window, and some time after the last decision.
func TestRemainingForgetsWhatIsOld(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := newRemaining(reg)
	// The local clock is hours away from Redis's, by which windows end.
	local := noon.Add(5 * time.Hour)
	r.now = func() time.Time { return local }
	r.observe([]admission.LimitState{
		budgetState("ends-soon", ledger.TierApp, "app:shop", 0, 100, noon.Add(time.Minute)),
		budgetState("never-ends", ledger.TierApp, "app:shop", 0, 100, time.Time{}),
		budgetState("ended", ledger.TierApp, "app:shop", 0, 100, noon.Add(-time.Minute)),
	}, ledger.Amounts{}, noon)
	require.Len(t, shares(t, reg), 2)
	local = local.Add(time.Minute)
	require.Equal(t, map[string]float64{"app app:shop never-ends": 1}, shares(t, reg))
	local = local.Add(remainingFor)
	require.Empty(t, shares(t, reg))
	require.Empty(t, r.series)
	require.Zero(t, r.order.Len())
}

// However many apps there are, the metric is bounded: those judged last are shown.
func TestRemainingIsBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := newRemaining(reg)
	platform := budgetState("platform-day", ledger.TierPlatform, "platform:all", 1, 100, time.Time{})
	for i := range 3 * maxRemaining {
		subject := fmt.Sprintf("app:%d", i)
		r.observe([]admission.LimitState{platform, budgetState("app-day", ledger.TierApp, subject, 1, 100, time.Time{})}, ledger.Amounts{}, noon)
	}
	got := shares(t, reg)
	require.Len(t, got, maxRemaining)
	require.Len(t, r.series, maxRemaining)
	require.Contains(t, got, "platform platform:all platform-day")
	require.Contains(t, got, fmt.Sprintf("app app:%d app-day", 3*maxRemaining-1))
	require.NotContains(t, got, "app app:0 app-day")

	text := strings.Repeat("x", 1000)
	r.observe([]admission.LimitState{budgetState("app-day", ledger.TierApp, text[10:20], 1, 100, time.Time{})}, ledger.Amounts{}, noon)
	b := r.order.Front().Value.(*budgetShare)
	require.NotSame(t, unsafe.StringData(text[10:20]), unsafe.StringData(b.subject), "a subject is not what it was cut out of")
}

// What a caller is let through to, and refused by, is what the metric shows; a new policy begins anew.
func TestRemainingOfRequests(t *testing.T) {
	t.Parallel()
	w := start(t, `  - {name: app-total, tier: app, budget: {requests: 4, per: total}}
  - {name: key-day, tier: key, budget: {requests: 4, per: day}}
`, plain)
	require.Equal(t, 200, w.chat("").StatusCode)
	require.Equal(t, map[string]float64{"app app:checkout app-total": 0.75}, shares(t, w.registry))
	for range 3 {
		require.Equal(t, 200, w.chat("").StatusCode)
	}
	require.Equal(t, 429, w.chat("").StatusCode)
	require.Equal(t, map[string]float64{"app app:checkout app-total": 0}, shares(t, w.registry))
	require.NoError(t, w.gateway.setPolicy(w.rules(roomy)))
	require.Empty(t, shares(t, w.registry))
}

// A decision that no counter was asked for says nothing about what remains.
func TestNothingRemainsOfWhatWasNotAsked(t *testing.T) {
	t.Parallel()
	w := start(t, `  - {name: app-total, tier: app, budget: {requests: 2, per: total}}
  - {name: tiny, tier: key, match: {model: fast}, budget: {tokens: 1, per: day}}
  - {name: usd, tier: key, match: {model: unpriced}, budget: {usd: 1, per: day}}
`, plain)
	require.Equal(t, 200, w.chat("").StatusCode)
	for model, status := range map[string]int{"fast": 413, "unpriced": 403, "x": 404} {
		a := w.send("POST", chatPath, `{"model":"`+model+`","messages":[]}`)
		require.Equal(t, status, a.StatusCode)
		require.Empty(t, a.Header.Get("Ratelimit"), model)
		require.Equal(t, map[string]float64{"app app:checkout app-total": 0.5}, shares(t, w.registry), model)
	}
}

func BenchmarkRemaining(b *testing.B) {
	r := newRemaining(prometheus.NewRegistry())
	var states []admission.LimitState
	for _, tier := range ledger.Tiers() {
		states = append(states, budgetState(string(tier)+"-day", tier, string(tier)+":subject", 1, 100, noon.Add(time.Hour)))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.observe(states, ledger.Amounts{Requests: 1}, noon)
		}
	})
}
