package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
	"tollgate/ledger/event"
)

// barrierBudget is how many requests may reach the provider.
const barrierBudget = 40

// barrierSystem has requests go on without the stream's acknowledgement after the timeout.
func barrierSystem(t *testing.T, ackTimeout time.Duration) (s *system.System, key string) {
	s = system.New(t, system.Options{
		Limits:   fmt.Sprintf("\n  - {name: app-total, tier: app, budget: {requests: %d, per: total}}\n", barrierBudget),
		Gateways: 2, Settlers: 1, TTL: time.Minute, Proxied: true, Env: []string{"TOLLGATE_PUBLISH_TIMEOUT=" + ackTimeout.String()},
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
	s, key := barrierSystem(t, 300*time.Millisecond)
	stalled, other := s.Gateways[0], s.Gateways[1]
	require.True(t, callOn(t, s, other, key)(0).Passed())
	require.True(t, callOn(t, s, stalled, key)(0).Passed())

	lapse := stayPresent(t, s, stalled)
	stalled.Links[system.LinkNATS].BlackHole(true)
	admitted := system.Tally(system.Load(30, 30, callOn(t, s, stalled, key)))
	require.Equal(t, 30, admitted["passed"], "%v", admitted)
	require.NoError(t, s.Flush(t.Context()))
	stop := system.Traffic(4, pacing(callOn(t, s, other, key)))
	time.Sleep(2500 * time.Millisecond) // several times what a rebuild takes
	early := system.Tally(stop())
	lapse()
	require.Zero(t, early["passed"], "judged before the other gateway's outbox was drained: %v", early)
	stalled.Links[system.LinkNATS].BlackHole(false)
	t.Logf("outbox let go: first decision after %s", firstDecision(t, s, key).Round(time.Millisecond))
	system.Load(barrierBudget, 8, pacing(spread(t, s, key, steady)))
	s.Check()
	require.EqualValues(t, barrierBudget, billed(t, s))
}

// presence is the gateway's entry among the live ones.
func presence(t *testing.T, s *system.System, g *system.Part) jetstream.KeyValueEntry {
	t.Helper()
	bucket, err := s.JetStream.KeyValue(t.Context(), event.PresenceBucket)
	require.NoError(t, err)
	entry, err := bucket.Get(t.Context(), s.Producer(g))
	require.NoError(t, err)
	return entry
}

// stayPresent renews the entry of a gateway that cannot do so itself, until it is told to stop.
func stayPresent(t *testing.T, s *system.System, g *system.Part) (stop func()) {
	t.Helper()
	entry := presence(t, s, g)
	bucket, err := s.JetStream.KeyValue(t.Context(), event.PresenceBucket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := bucket.Put(t.Context(), entry.Key(), entry.Value()); err != nil {
				done <- err
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		done <- nil
	}()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// A gateway is paused between a decision and the call for longer than it is waited for, and Redis is rebuilt without what it
// holds: the decision does not stand when it goes on, and it judges by the new generation.
func TestPausedGatewayMissesTheBarrier(t *testing.T) {
	t.Parallel()
	const ackTimeout = 20 * time.Second
	s, key := barrierSystem(t, ackTimeout)
	paused, other := s.Gateways[0], s.Gateways[1]
	require.True(t, callOn(t, s, other, key)(0).Passed())
	require.True(t, callOn(t, s, paused, key)(0).Passed())

	// Each waits for an acknowledgement that does not come, when the pause begins.
	present := presence(t, s, paused)
	paused.Links[system.LinkNATS].BlackHole(true)
	began := time.Now()
	answers := make(chan []system.Answer, 1)
	go func() { answers <- system.Load(20, 20, callOn(t, s, paused, key)) }()
	s.Eventually(system.Patience, "20 calls hold what they need", func() error {
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
	took := s.Eventually(system.Patience, "the other gateway judges again", func() error {
		if a := callOn(t, s, other, key)(0); !a.Passed() {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	t.Logf("paused: first decision after %s", took.Round(time.Millisecond))
	require.Greater(t, time.Now(), present.Created().Add(event.PresenceTTL), "it was waited for until its presence lapsed")
	system.Load(barrierBudget, 8, callOn(t, s, other, key))
	require.EqualValues(t, barrierBudget, billed(t, s), "the rest is spent")

	time.Sleep(time.Until(began.Add(ackTimeout + time.Second))) // none waits for the stream any more when it goes on
	paused.Links[system.LinkNATS].BlackHole(false)
	paused.Resume()
	late := system.Tally(<-answers)
	require.Zero(t, late["passed"], "%v", late)
	s.Check()
	require.EqualValues(t, barrierBudget, billed(t, s))
	s.Eventually(system.Patience, "the paused gateway judges", func() error {
		if a := callOn(t, s, paused, key)(0); a.Reason != "APP_QUOTA" {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
}
