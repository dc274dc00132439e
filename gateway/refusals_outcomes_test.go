package gateway

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

// A request counts when it is refused in the end, and once, whatever was tried before.
func TestRefusalsAfterOtherOutcomes(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	w.run(`  - {name: throttled, tier: user, match: {user: ada}, rate: {requests: 1, per: day, algorithm: sliding_log}, on_exceed: {action: throttle, max_wait: 50ms}}
  - {name: slots, tier: user, match: {user: bob}, concurrency: 1, on_exceed: {action: throttle, max_wait: 1h}}
  - {name: big, tier: key, match: {model: gpt-4o-mini, user: eve}, budget: {requests: 1, per: day}, on_exceed: {action: fallback}}
  - {name: small, tier: key, match: {model: fast, user: eve}, budget: {requests: 1, per: day}}
  - {name: shadow, tier: app, budget: {requests: 1, per: total}, shadow: true}
  - {name: flag, tier: app, rate: {requests: 1, per: day, algorithm: fixed_window}, on_exceed: {action: flag}}
apps:
  checkout: {fallback: {gpt-4o-mini: fast}}
`)
	status := func(user string) int { return w.chat("", "X-Tollgate-User", user).StatusCode }
	require.Equal(t, 200, status("ada"))
	require.Equal(t, 429, status("ada"), "it waited in vain")
	require.Equal(t, 200, status("eve"))
	require.Equal(t, 200, status("eve"), "the other model")
	require.Equal(t, 429, status("eve"), "neither model")
	require.NoError(t, w.stop())

	got, err := w.refusedEvents()
	require.NoError(t, err)
	require.Equal(t, map[event.RefusalCount]int64{
		{Layer: ledger.TierUser, Reason: ledger.ReasonRPMLimit, Limit: "throttled", Subject: "user:checkout/ada?user=ada", App: app, Endpoint: chatPath}:  1,
		{Layer: ledger.TierKey, Reason: ledger.ReasonKeyQuota, Limit: "big", Subject: "key:k_1?model=gpt-4o-mini,user=eve", App: app, Endpoint: chatPath}: 1,
	}, got)
}

// A caller that gives up waiting was not refused.
func TestWaitingCallerThatLeavesIsNotRefused(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
		<-answer
		plain(rw, r)
	})
	w.run("  - {name: slots, tier: app, concurrency: 1, on_exceed: {action: throttle, max_wait: 1h}}\n")
	done := make(chan int, 1)
	go func() { done <- w.chat("").StatusCode }()
	w.events(1) // it has the only slot
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- w.sendContext(ctx, http.MethodPost, chatPath, chatBody("")).err }()
	w.awaitWaiting(1)
	leave()
	require.ErrorIs(t, <-gone, context.Canceled)
	lines := w.requestLines(1)
	require.Equal(t, "CLIENT_GONE", lines[0]["reason"])
	close(answer)
	require.Equal(t, 200, <-done)
	require.NoError(t, w.stop())
	got, err := w.refusedEvents()
	require.NoError(t, err)
	require.Empty(t, got)
}

// awaitWaiting waits until so many requests wait for a limit.
func (w *world) awaitWaiting(n float64) {
	w.Helper()
	stack.Eventually(w, func() error {
		families, err := w.registry.Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			if f.GetName() == "tollgate_waiting_requests" && f.GetMetric()[0].GetGauge().GetValue() == n {
				return nil
			}
		}
		return fmt.Errorf("not %v requests wait", n)
	})
}

// What the gateway refuses by itself while Redis is away is on record, too.
func TestDegradedRefusalsAreRecorded(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	link := w.proxied()
	w.run(roomy + "degraded:\n  local: {requests_per_second: 0, tokens_per_minute: 0}\n")
	require.Equal(t, 200, w.chat("").StatusCode)
	shown := map[string]float64{"app app:checkout app-day": 1 - 1e-6}
	require.Equal(t, shown, shares(t, w.registry))
	link.Refuse(true)
	link.Drop()
	for range 5 {
		require.Equal(t, "DEGRADED", w.problemOf(w.chat("")).Tollgate.Reason)
	}
	require.Equal(t, shown, shares(t, w.registry), "nothing is known of what remains now")
	stack.Eventually(t, func() error {
		if got := testutil.ToFloat64(w.gateway.metrics.degraded.WithLabelValues("redis")); got != 1 {
			return fmt.Errorf("degraded is %v", got)
		}
		return nil
	})
	require.NoError(t, w.stop())
	got, err := w.refusedEvents()
	require.NoError(t, err)
	require.Equal(t, map[event.RefusalCount]int64{{Reason: ledger.ReasonDegraded, App: app, Endpoint: chatPath}: 5}, got)
}

// Limits in shadow and with the action flag refuse nobody; the metric, the log and the reservation say what they would have
// done, and no refusal is counted.
func TestPassedOver(t *testing.T) {
	t.Parallel()
	w := start(t, `  - {name: shadow, tier: app, budget: {requests: 1, per: total}, shadow: true}
  - {name: flag, tier: endpoint, rate: {requests: 1, per: day, algorithm: sliding_log}, on_exceed: {action: flag}}
  - {name: real, tier: app, budget: {requests: 100, per: total}}
`, plain)
	for range 3 {
		require.Equal(t, 200, w.chat("").StatusCode)
	}
	passed := w.gateway.metrics.passed
	require.Equal(t, 2.0, testutil.ToFloat64(passed.WithLabelValues("shadow", "APP_QUOTA", "app")))
	require.Equal(t, 2.0, testutil.ToFloat64(passed.WithLabelValues("flag", "ENDPOINT_LIMIT", "endpoint")))
	require.Equal(t, 2*(7*5+2), testutil.CollectAndCount(passed), "both were there from the start")
	require.Equal(t, map[string]float64{"app app:checkout real": 0.97}, shares(t, w.registry))
	lines := w.requestLines(3)
	require.NotContains(t, lines[0], "passed_over")
	for _, line := range lines[1:] {
		require.Equal(t, "OK", line["reason"])
		require.ElementsMatch(t, []any{"shadow shadow APP_QUOTA", "flag flag ENDPOINT_LIMIT"}, line["passed_over"])
	}
	require.ElementsMatch(t, []string{"shadow", "flagged"}, w.events(6)[event.KindUsed][2].Reservation.Flags)
	require.NoError(t, w.stop())
	got, err := w.refusedEvents()
	require.NoError(t, err)
	require.Empty(t, got)
}
