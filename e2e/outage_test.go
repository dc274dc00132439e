package e2e

import (
	"fmt"
	"net/http"
	"sync"
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
	return s.Eventually(system.Patience, "the gateway judges again", func() error { return judges(t, s, key, 0) })
}

// judges returns an error while gateway i judges without Redis, or not at all.
func judges(t *testing.T, s *system.System, key string, i int) error {
	a := spread(t, s, key, steady)(i)
	if a.Passed() || a.Status == http.StatusTooManyRequests && a.Reason != "REBUILDING" && a.Reason != "DEGRADED" {
		return nil
	}
	return fmt.Errorf("%s", a)
}

// allJudge waits until every gateway judges again.
func allJudge(t *testing.T, s *system.System, key string) {
	t.Helper()
	for i := range s.Gateways {
		s.Eventually(system.Patience, "each gateway judges again", func() error { return judges(t, s, key, i) })
	}
}

// promptly makes a change several times, until most of them were in force within the limit, or most were not: one may take longer
// because a process stood still. change makes one and returns how to find out.
func promptly(t *testing.T, s *system.System, limit time.Duration, what string, change func() (inForce func() error)) {
	t.Helper()
	var took []time.Duration
	for soon, late := 0, 0; soon < 3; {
		inForce := change()
		took = append(took, s.Eventually(system.Patience, what, inForce))
		if took[len(took)-1] <= limit {
			soon++
		} else {
			late++
		}
		require.Less(t, late, 3, "%s after %s", what, took)
	}
	t.Logf("%s after %s", what, took)
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
	s.Eventually(system.Patience, "the budget is used up", func() error {
		if totals, err := s.Sim.Totals(t.Context()); err != nil || totals.Requests < budget*9/10 {
			return fmt.Errorf("%d of %d: %w", totals.Requests, budget, err)
		}
		return nil
	})
	pause(time.Second)
	answers := stop()
	t.Logf("%v", requireReasons(t, answers, "APP_QUOTA", "PLATFORM_QUOTA", "REBUILDING", "DEGRADED"))
	s.Check()
	allJudge(t, s, key)
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
	allJudge(t, s, key)
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
	s.Eventually(system.Patience, "the second gateway serves", func() error {
		a := s.Send(t.Context(), second.URL, system.Request{Key: key, Path: "/v1/embeddings", Body: system.EmbeddingBody(3)})
		if !a.Passed() {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
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
	s.Eventually(system.Patience, "the outbox is full", func() error {
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
	s.Eventually(system.Patience, "the alarms' metrics say so", func() error {
		full := metric("tollgate_outbox_bytes") / metric("tollgate_outbox_limit_bytes")                       // OutboxNearlyFull
		age, spooled := metric("tollgate_outbox_oldest_unconfirmed_seconds"), metric("tollgate_spool_events") // OutboxNotConfirmed, SpoolNotDraining
		if full <= 0.8 || age <= 0 || spooled <= 0 {
			return fmt.Errorf("%f full, the oldest event %f s old, %f events", full, age, spooled)
		}
		return nil
	})
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
	other := s.KnownKey(system.App)
	promptly(t, s, time.Second, "the revoked key is refused", func() func() error {
		key := s.KnownKey(system.App)
		var id string
		require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT key_id FROM api_keys ORDER BY created_at DESC LIMIT 1`).Scan(&id))
		used := make(chan struct{})
		var once sync.Once
		stop := system.Traffic(4, func(i int) system.Answer {
			a := spread(t, s, key, steady)(i)
			if a.Passed() {
				once.Do(func() { close(used) })
			}
			return a
		})
		<-used
		s.CLI("key", "revoke", id)
		return func() error {
			for i := range s.Gateways {
				if a := spread(t, s, key, steady)(i); a.Status != http.StatusForbidden || a.Reason != "DISABLED_KEY" {
					return fmt.Errorf("gateway %d: %s", i, a)
				}
			}
			stop()
			return nil
		}
	})
	require.True(t, spread(t, s, other, steady)(0).Passed(), "other keys are served on")

	tight := false
	promptly(t, s, time.Second, "the pushed policy is in force", func() func() error {
		tight = !tight
		name, budget := "app-roomy", 100000
		if tight {
			name, budget = "app-tight", 1
		}
		s.WritePolicy(fmt.Sprintf("\n  - {name: %s, tier: app, budget: {requests: %d, per: day}}\n", name, budget))
		s.CLI("policy", "push", s.PolicyFile)
		return func() error {
			for i := range s.Gateways {
				if a := spread(t, s, other, steady)(i); tight && a.Reason != "APP_QUOTA" || !tight && !a.Passed() {
					return fmt.Errorf("gateway %d: %s", i, a)
				}
			}
			return nil
		}
	})
	_, err := s.TryCLI("policy", "push", "no-such-file.yaml")
	require.Error(t, err)
	s.Check()
}
