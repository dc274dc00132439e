package e2e

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// steady is a request whose estimate is exact, so that a budget can be spent to the last unit and never beyond.
func steady(int) system.Request {
	return system.Request{Path: "/v1/embeddings", Body: system.EmbeddingBody(10), Header: map[string]string{"X-Sim-Latency": "5ms"}}
}

// requireReasons fails on an answer that neither passed nor was refused for one of the reasons.
func requireReasons(t *testing.T, answers []system.Answer, reasons ...string) map[string]int {
	t.Helper()
	tally := system.Tally(answers)
	allowed := map[string]bool{"passed": true}
	for _, r := range reasons {
		allowed[r] = true
	}
	for reason := range tally {
		require.True(t, allowed[reason], "%s among %v", reason, tally)
	}
	return tally
}

// firstDecision is how long after now the gateway judges again.
func firstDecision(t *testing.T, s *system.System, key string) time.Duration {
	t.Helper()
	return s.Eventually(30*time.Second, "the gateway judges again", func() error {
		a := spread(t, s, key, steady)(0)
		if a.Passed() || a.Status == http.StatusTooManyRequests && a.Reason != "REBUILDING" && a.Reason != "DEGRADED" {
			return nil
		}
		return fmt.Errorf("%s", a)
	})
}

// Redis is emptied again and again under load: no budget is overspent by a single request, and service resumes by itself.
func TestRedisEmptiedUnderLoad(t *testing.T) {
	t.Parallel()
	const budget = 600
	s := system.New(t, system.Options{
		Limits: fmt.Sprintf(`
  - {name: app-day, tier: app, budget: {requests: %d, per: day}}
  - {name: platform, tier: platform, budget: {requests: %d, per: total}}
`, budget, budget), Gateways: 2, Settlers: 1, TTL: 5 * time.Second,
	})
	key := s.KnownKey(system.App)
	stop := system.Traffic(16, pacing(spread(t, s, key, steady)))
	for range 3 {
		pause(500 * time.Millisecond)
		require.NoError(t, s.Flush(t.Context()))
		t.Logf("emptied: first decision after %s", firstDecision(t, s, key).Round(time.Millisecond))
	}
	// A server that is killed and comes back with nothing: emptied, its file says so too.
	require.NoError(t, s.Flush(t.Context()))
	require.NoError(t, s.Redis.Kill())
	pause(500 * time.Millisecond)
	require.NoError(t, s.Redis.Restart(t.Context()))
	t.Logf("killed and empty: first decision after %s", firstDecision(t, s, key).Round(time.Millisecond))
	s.Eventually(60*time.Second, "the budget is used up", func() error {
		if totals, err := s.Sim.Totals(t.Context()); err != nil || totals.Requests < budget*9/10 {
			return fmt.Errorf("%d of %d: %w", totals.Requests, budget, err)
		}
		return nil
	})
	pause(time.Second)
	answers := stop()
	t.Logf("%v", requireReasons(t, answers, "APP_QUOTA", "PLATFORM_QUOTA", "REBUILDING", "DEGRADED"))
	s.Check()
	// What came through after everything settled is still the budget's rest, and nothing more.
	rest := system.Tally(system.Load(100, 8, spread(t, s, key, steady)))
	t.Logf("afterwards %v", rest)
	s.Check()
	require.EqualValues(t, budget, billed(t, s), "exactly the budget reaches the provider")
}

// pacing waits a little after an answer that did not pass, so that refusals do not take the processors from the rest.
func pacing(call func(int) system.Answer) func(int) system.Answer {
	return func(i int) system.Answer {
		a := call(i)
		if !a.Passed() {
			time.Sleep(10 * time.Millisecond)
		}
		return a
	}
}

// Redis is killed and comes back with its file: what it knew still stands, and nothing is overspent.
func TestRedisRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits:   "\n  - {name: app-day, tier: app, budget: {requests: 400, per: day}}\n",
		Gateways: 2, Settlers: 1, TTL: 5 * time.Second,
	})
	key := s.KnownKey(system.App)
	stop := system.Traffic(8, pacing(spread(t, s, key, steady)))
	for range 3 {
		pause(300 * time.Millisecond)
		require.NoError(t, s.Redis.Kill())
		pause(100 * time.Millisecond)
		require.NoError(t, s.Redis.Restart(t.Context()))
		t.Logf("killed: first decision after %s", firstDecision(t, s, key).Round(time.Millisecond))
	}
	answers := stop()
	t.Logf("%v", requireReasons(t, answers, "APP_QUOTA", "REBUILDING", "DEGRADED"))
	s.Check()
	system.Load(450, 16, spread(t, s, key, steady))
	s.Check()
	require.EqualValues(t, 400, billed(t, s))
}

// A gateway that starts before any settler serves as soon as one is there, and not before the counters are.
func TestSettlerStartsLater(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1})
	key := s.KnownKey(system.App)
	early := s.Send(t.Context(), s.Gateways[0].URL, system.Request{Key: key, Path: "/v1/embeddings", Body: system.EmbeddingBody(3)})
	require.Equal(t, "REBUILDING", early.Reason, early.String())
	require.Equal(t, http.StatusTooManyRequests, early.Status)
	require.NotEmpty(t, early.Header.Get("Retry-After"))
	s.AddSettler()
	t.Logf("first decision %s after the settler is ready", firstDecision(t, s, key).Round(time.Millisecond))
	requireReasons(t, system.Load(50, 8, spread(t, s, key, steady)))
	s.Check()
}

// While Postgres is down, keys that are known are served; settlement catches up when it is back.
func TestPostgresDown(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1, Settlers: 1, OwnPostgres: true})
	key := s.KnownKey(system.App)
	requireReasons(t, system.Load(50, 8, spread(t, s, key, mixed)))
	stop := system.Traffic(4, spread(t, s, key, mixed))
	require.NoError(t, s.Postgres.Kill())
	during := requireReasons(t, system.Load(200, 8, spread(t, s, key, mixed)))
	require.Equal(t, 200, during["passed"], "%v", during)
	// A gateway that starts now has its keys from NATS and serves, too.
	second := s.AddGateway()
	a := s.Send(t.Context(), second.URL, system.Request{Key: key, Path: "/v1/embeddings", Body: system.EmbeddingBody(3)})
	require.True(t, a.Passed(), a.String())
	require.NoError(t, s.Postgres.Restart(t.Context()))
	requireReasons(t, stop())
	s.Check()
}

// While NATS is down requests go on, their events kept by the gateway, until its outbox has the most it may have; then they are
// refused, and the alarm's metrics say why. When NATS is back nothing is missing.
func TestNATSDown(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits: everyTier, Gateways: 2, Settlers: 1, TTL: 3 * time.Second, Env: []string{
			"TOLLGATE_PUBLISH_TIMEOUT=300ms", "TOLLGATE_OUTBOX_SEGMENT_BYTES=65536", "TOLLGATE_OUTBOX_MAX_BYTES=262144",
		},
	})
	key := s.KnownKey(system.App)
	stop := system.Traffic(8, spread(t, s, key, mixed))
	pause(300 * time.Millisecond)
	require.NoError(t, s.NATS.Shutdown(t.Context()))
	during := requireReasons(t, system.Load(200, 8, spread(t, s, key, mixed)), "EVENT_LOG_DOWN")
	t.Logf("without NATS: %v", during)
	require.Positive(t, during["passed"])
	s.Eventually(30*time.Second, "the outbox is full", func() error {
		reasons := system.Tally(system.Load(20, 8, spread(t, s, key, mixed)))
		if reasons["EVENT_LOG_DOWN"] == 0 {
			return fmt.Errorf("%v", reasons)
		}
		return nil
	})
	metric := func(name string) float64 {
		value, err := s.Metric(t.Context(), s.Gateways[0], name)
		require.NoError(t, err)
		return value
	}
	require.Greater(t, metric("tollgate_outbox_bytes")/metric("tollgate_outbox_limit_bytes"), 0.8, "as OutboxNearlyFull asks")
	require.Positive(t, metric("tollgate_outbox_oldest_unconfirmed_seconds"), "as OutboxNotConfirmed asks")
	require.Positive(t, metric("tollgate_spool_events"), "as SpoolNotDraining asks")
	// A gateway that dies now has its events on its disk.
	s.Gateways[1].Kill()
	require.NoError(t, s.NATS.Restart(t.Context()))
	s.Gateways[1].Start()
	pause(500 * time.Millisecond)
	tally := system.Tally(stop())
	t.Logf("over all: %v", tally)
	s.Check()
}

// A key that is revoked, and a policy that is pushed, take effect on every gateway within a second.
func TestChangesTakeEffectWithinASecond(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits:   "\n  - {name: app-day, tier: app, budget: {requests: 100000, per: day}}\n",
		Gateways: 2, Settlers: 1, Pushed: true,
	})
	key, other := s.KnownKey(system.App), s.KnownKey(system.App)
	var id string
	require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT key_id FROM api_keys ORDER BY created_at LIMIT 1`).Scan(&id))
	var passed atomic.Int64
	stop := system.Traffic(4, func(i int) system.Answer {
		a := spread(t, s, key, steady)(i)
		if a.Passed() {
			passed.Add(1)
		}
		return a
	})
	s.CLI("key", "revoke", id)
	took := s.Eventually(time.Second, "the revoked key is refused", func() error {
		for i := range s.Gateways {
			if a := spread(t, s, key, steady)(i); a.Status != http.StatusForbidden || a.Reason != "DISABLED_KEY" {
				return fmt.Errorf("gateway %d: %s", i, a)
			}
		}
		return nil
	})
	t.Logf("revoked after %s", took.Round(time.Millisecond))
	stop()
	require.Positive(t, passed.Load())
	require.True(t, spread(t, s, other, steady)(0).Passed(), "other keys are served on")

	s.WritePolicy("\n  - {name: app-tight, tier: app, budget: {requests: 1, per: day}}\n")
	s.CLI("policy", "push", s.PolicyFile)
	took = s.Eventually(time.Second, "the pushed policy is in force", func() error {
		for i := range s.Gateways {
			if a := spread(t, s, other, steady)(i); a.Reason != "APP_QUOTA" {
				return fmt.Errorf("gateway %d: %s", i, a)
			}
		}
		return nil
	})
	t.Logf("policy in force after %s", took.Round(time.Millisecond))
	_, err := s.TryCLI("policy", "push", "no-such-file.yaml")
	require.Error(t, err)
	s.Check()
}
