package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// barrierBudget is how many requests may reach the provider.
const barrierBudget = 40

func barrierSystem(t *testing.T) (s *system.System, key string) {
	s = system.New(t, system.Options{
		Limits:   fmt.Sprintf("\n  - {name: app-total, tier: app, budget: {requests: %d, per: total}}\n", barrierBudget),
		Gateways: 2, Settlers: 1, TTL: 10 * time.Second, Proxied: true,
	})
	return s, s.KnownKey(system.App)
}

// callOn sends one call to one gateway.
func callOn(t *testing.T, s *system.System, p *system.Part, key string) func(int) system.Answer {
	return func(i int) system.Answer {
		r := steady(i)
		r.Key = key
		return s.Send(t.Context(), p.URL, r)
	}
}

// Redis is emptied while a gateway cannot publish what it has admitted: the rebuild waits until it has, and the budget is spent
// to the last request and not beyond.
func TestRebuildWaitsForOutboxes(t *testing.T) {
	t.Parallel()
	s, key := barrierSystem(t)
	stalled, other := s.Gateways[0], s.Gateways[1]
	require.True(t, callOn(t, s, other, key)(0).Passed())
	require.True(t, callOn(t, s, stalled, key)(0).Passed())

	stalled.Links[system.LinkNATS].BlackHole(true)
	admitted := system.Tally(system.Load(30, 30, callOn(t, s, stalled, key)))
	require.Equal(t, 30, admitted["passed"], "%v", admitted)
	require.NoError(t, s.Flush(t.Context()))
	stop := system.Traffic(4, pacing(callOn(t, s, other, key)))
	time.Sleep(2500 * time.Millisecond) // several times what a rebuild takes, and less than the gateway's presence lasts
	early := system.Tally(stop())
	require.Zero(t, early["passed"], "judged before the other gateway's outbox was drained: %v", early)
	stalled.Links[system.LinkNATS].BlackHole(false)
	t.Logf("outbox let go: first decision after %s", firstDecision(t, s, key).Round(time.Millisecond))
	system.Load(barrierBudget, 8, pacing(spread(t, s, key, steady)))
	s.Check()
	require.EqualValues(t, barrierBudget, billed(t, s))
}

// A gateway is paused between a decision and the call for longer than it is waited for, and Redis is rebuilt without what it
// holds: the decision does not stand when it goes on, and it judges by the new generation.
func TestPausedGatewayMissesTheBarrier(t *testing.T) {
	t.Parallel()
	s, key := barrierSystem(t)
	paused, other := s.Gateways[0], s.Gateways[1]
	require.True(t, callOn(t, s, other, key)(0).Passed())
	require.True(t, callOn(t, s, paused, key)(0).Passed())

	// Each waits for an acknowledgement that does not come, when the pause begins.
	paused.Links[system.LinkNATS].BlackHole(true)
	answers := make(chan []system.Answer, 1)
	go func() { answers <- system.Load(20, 20, callOn(t, s, paused, key)) }()
	s.Eventually(5*time.Second, "20 calls hold what they need", func() error {
		counters, err := s.Counters(t.Context())
		var held int64
		for _, c := range counters {
			held += c.Held[0]
		}
		if err == nil && held < 20 {
			err = fmt.Errorf("%d held", held)
		}
		return err
	})
	paused.Pause()
	require.NoError(t, s.Flush(t.Context()))
	took := s.Eventually(40*time.Second, "the other gateway judges again", func() error {
		if a := callOn(t, s, other, key)(0); !a.Passed() {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	t.Logf("paused: first decision after %s", took.Round(time.Millisecond))
	require.Greater(t, took, 6*time.Second, "it was waited for until its presence lapsed")
	system.Load(barrierBudget, 8, callOn(t, s, other, key))
	require.EqualValues(t, barrierBudget, billed(t, s), "the rest is spent")

	paused.Links[system.LinkNATS].BlackHole(false)
	paused.Resume()
	late := system.Tally(<-answers)
	require.Zero(t, late["passed"], "%v", late)
	s.Check()
	require.EqualValues(t, barrierBudget, billed(t, s))
	s.Eventually(20*time.Second, "the paused gateway judges", func() error {
		if a := callOn(t, s, paused, key)(0); a.Reason != "APP_QUOTA" {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
}
