package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
	"tollgate/lua"
)

// peak is the most requests that the provider ever had at once.
func peak(t *testing.T, s *system.System) int64 {
	t.Helper()
	totals, err := s.Sim.Totals(t.Context())
	require.NoError(t, err)
	return totals.PeakInFlight
}

// H4, B5, U37, U51: of all that come at once over two gateways, the provider never has more than the limit in flight, and as
// many as that. Slots come back however a request ends.
func TestInFlightIsNeverPassed(t *testing.T) {
	t.Parallel()
	const limit = 8
	s := system.New(t, system.Options{
		Limits: fmt.Sprintf(`
  - {name: at-once, tier: app, concurrency: %d}
  - {name: rpm, tier: app, rate: {requests: 1000000, per: minute, algorithm: sliding_counter}}
`, limit),
		Gateways: 2, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	var answers []system.Answer
	for latency := 150 * time.Millisecond; latency < time.Minute; latency *= 2 { // until they have come close enough to each other once
		answers = append(answers, system.Load(300, 48, spread(t, s, key, func(i int) system.Request {
			return system.Request{
				Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "How many of us?", 9, i%3 == 0),
				Header: map[string]string{"X-Sim-Latency": latency.String(), "X-Sim-Chunks": "3"},
			}
		}))...)
		require.LessOrEqual(t, peak(t, s), int64(limit))
		if peak(t, s) == limit {
			break
		}
	}
	tally := system.Tally(answers)
	t.Logf("%v", tally)
	require.EqualValues(t, limit, peak(t, s), "the limit is reached")
	require.Len(t, tally, 2, "passed and refused")
	require.Positive(t, tally["CONCURRENCY"])
	requireSlots(t, s, key, limit, "after answers")

	// U34, U35, litellm #20256, #17323: the provider times out, fails or breaks off, or the caller leaves.
	// One gateway alone has little patience: the others must not take a provider that is slow for one that is gone.
	hasty := s.AddGateway("TOLLGATE_UPSTREAM_HEADER_TIMEOUT=3s")
	s.AwaitKey(key)
	s.AwaitCounters(system.App)
	for name, header := range map[string]map[string]string{
		"time out": {"X-Sim-Latency": "10m"}, "fail": {"X-Sim-Status": "500"}, "break off": {"X-Sim-Cut-After": "1"},
	} {
		ill := func(i int) system.Answer {
			to := s.Gateways[i%2]
			if name == "time out" {
				to = hasty
			}
			return s.Send(t.Context(), to.URL, system.Request{
				Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "How many of us?", 9, false), Header: header,
			})
		}
		for _, a := range system.Load(limit, limit, ill) {
			require.False(t, a.Passed(), a.String())
			require.NotEqual(t, "CONCURRENCY", a.Reason, a.String())
		}
		requireSlots(t, s, key, limit, name)
	}
	for range limit {
		occupy(t, s, s.Gateways[0].URL, key, "")()
	}
	requireSlots(t, s, key, limit, "callers that left")
	s.Check()
}

// requireSlots fails unless all slots are free: so many requests can be in flight, and one more cannot.
func requireSlots(t *testing.T, s *system.System, key string, limit int, after string) {
	t.Helper()
	// A slot is given back when its answer is complete, which its caller knows a moment earlier.
	free := func() error {
		keys, err := s.RedisClient.Keys(t.Context(), "*:inflight:*").Result()
		if err == nil && len(keys) > 0 {
			err = fmt.Errorf("%s: slots are taken: %v", after, keys)
		}
		return err
	}
	s.Eventually(system.Patience, after, free)
	var releases []func()
	for range limit {
		releases = append(releases, occupy(t, s, s.Gateways[1].URL, key, ""))
	}
	r := steady(0)
	r.Key = key
	a := s.Send(t.Context(), s.Gateways[0].URL, r)
	require.Equal(t, http.StatusTooManyRequests, a.Status, a.String())
	require.Equal(t, "CONCURRENCY", a.Reason, a.String())
	require.Equal(t, "1", a.Header.Get("Retry-After"))
	for _, release := range releases {
		release()
	}
	s.Eventually(system.Patience, after, free)
}

// B5, U34, litellm #20256: slots of a gateway that is killed come back within the life of a lease, while its reservations are
// still open. Until then nobody else gets them.
func TestSlotsOfAKilledGatewayComeBack(t *testing.T) {
	t.Parallel()
	const limit = 3
	s := system.New(t, system.Options{
		Limits:   fmt.Sprintf("\n  - {name: at-once, tier: provider, concurrency: %d}\n", limit),
		Gateways: 2, Settlers: 1, TTL: 40 * time.Second,
	})
	key := s.KnownKey(system.App)
	r := steady(0)
	r.Key = key
	second := func() system.Answer { return s.Send(t.Context(), s.Gateways[1].URL, r) }
	for range limit {
		t.Cleanup(occupyUntilKilled(t, s, key))
	}
	// Leases are renewed: longer than one lives, none is free.
	for held := time.Now().Add(lua.LeaseTTL + 2*time.Second); time.Now().Before(held); time.Sleep(500 * time.Millisecond) {
		a := second()
		require.Equal(t, "CONCURRENCY", a.Reason, a.String())
	}
	s.Gateways[0].Kill()
	took := s.Eventually(system.Patience, "a slot is free", func() error {
		if a := second(); !a.Passed() {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	open := s.Int(`SELECT count(*) FROM reservations WHERE state = 'pending'`)
	t.Logf("a slot was free %s after the kill, %d reservations still open", took.Round(100*time.Millisecond), open)
	require.EqualValues(t, limit, peak(t, s))
	s.Check()
	require.EqualValues(t, limit, s.Int(`SELECT count(*) FROM reservations WHERE state = 'expired'`))
}

// occupyUntilKilled has the first gateway send a request that the provider does not answer, and does not mind how it ends. The
// returned function waits for that.
func occupyUntilKilled(t *testing.T, s *system.System, key string) (wait func()) {
	t.Helper()
	before, err := s.Sim.Totals(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	answer := began(func() system.Answer {
		return s.Send(ctx, s.Gateways[0].URL, system.Request{
			Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "Hold the line", 9, false),
			Header: map[string]string{"X-Sim-Latency": "10m"},
		})
	})
	s.Eventually(system.Patience, "the provider has the request", func() error {
		now, err := s.Sim.Totals(t.Context())
		if err == nil && now.Calls == before.Calls {
			err = fmt.Errorf("%d calls", now.Calls)
		}
		return err
	})
	return func() {
		cancel()
		<-answer
	}
}
