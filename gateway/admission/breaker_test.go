package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/ledger/policy"
	"tollgate/lua"
)

var usual = policy.Breaker{ConsecutiveTimeouts: 3, ErrorRatio: 1000, Latency: 500 * time.Millisecond, ProbeEvery: time.Second}

// sick is a Redis that answers as it is told, and a breaker before it, in a bubble of fake time.
type sick struct {
	*Breaker
	t       *testing.T
	mu      sync.Mutex
	err     error         // of the next probes
	takes   time.Duration // how long they take
	probes  []time.Time
	changes []string
	most    atomic.Int64 // probes at once
	probing atomic.Int64
}

// bubble runs a test with a breaker that is running.
func bubble(t *testing.T, config policy.Breaker, test func(s *sick)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &sick{t: t}
		s.Breaker = NewBreaker(s.answer, s.change, time.Now)
		s.SetConfig(config)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		test(s)
		cancel()
		require.NoError(t, <-done)
	})
}

func (s *sick) answer(ctx context.Context) error {
	s.most.Store(max(s.most.Load(), s.probing.Add(1)))
	defer s.probing.Add(-1)
	s.mu.Lock()
	s.probes = append(s.probes, time.Now())
	err, takes := s.err, s.takes
	s.mu.Unlock()
	select {
	case <-time.After(takes):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *sick) change(open bool, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = append(s.changes, fmt.Sprint(open, " ", why))
}

// heal sets how probes go from now on.
func (s *sick) heal(takes time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes, s.err = takes, err
}

func (s *sick) told() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

func (s *sick) probed() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.probes)
}

// call makes one call that takes so long and ends so.
func (s *sick) call(took time.Duration, err error) {
	s.t.Helper()
	require.True(s.t, s.Allow(), "the breaker is open: %v", s.changes)
	time.Sleep(took)
	s.Done(took, err)
}

var (
	errLate   = fmt.Errorf("reserve r1: %w", os.ErrDeadlineExceeded)
	errFull   = fmt.Errorf("reserve r1: %w", redisError("OOM command not allowed when used memory > 'maxmemory'."))
	errBroken = fmt.Errorf("reserve r1: %w", redisError("WRONGTYPE Operation against a key holding the wrong kind of value"))
	errReply  = fmt.Errorf("reserve r1: %w", lua.ErrReply)
	errCall   = fmt.Errorf("reserve r1: %w", lua.ErrCall)
)

func TestBreakerOpensOnTimeoutsInARow(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"no answer": errLate, "an answer that all get": errFull} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, usual, func(s *sick) {
				for range 5 {
					s.call(time.Millisecond, err)
					s.call(time.Millisecond, err)
					s.call(time.Millisecond, nil) // not in a row
				}
				for range 2 {
					s.call(time.Millisecond, err)
				}
				require.False(t, s.Open())
				s.call(time.Millisecond, err)
				require.True(t, s.Open())
				require.False(t, s.Allow())
				require.Equal(t, []string{"true consecutive_timeouts"}, s.told())
			})
		})
	}
}

// What is wrong with one app's keys, or with a call itself, opens nothing, however often it comes.
func TestBreakerIgnoresWhatConcernsOneCall(t *testing.T) {
	t.Parallel()
	bubble(t, usual, func(s *sick) {
		for range 100 {
			s.call(time.Millisecond, errBroken)
			s.call(time.Millisecond, errReply)
			s.call(time.Millisecond, errCall)
		}
		s.call(time.Millisecond, errLate)
		s.call(time.Millisecond, errLate)
		s.call(time.Millisecond, errCall) // was not sent, so it says nothing
		require.False(t, s.Open())
		s.call(time.Millisecond, errLate)
		require.True(t, s.Open())
	})
	bubble(t, usual, func(s *sick) {
		s.call(time.Millisecond, errLate)
		s.call(time.Millisecond, errLate)
		s.call(time.Millisecond, errBroken) // Redis answers
		s.call(time.Millisecond, errLate)
		require.False(t, s.Open())
	})
}

func TestBreakerOpensOnTheShareOfErrors(t *testing.T) {
	t.Parallel()
	config := usual
	config.ConsecutiveTimeouts = 1000
	bubble(t, config, func(s *sick) {
		for range 18 {
			s.call(0, nil)
		}
		s.call(0, errLate)
		require.False(t, s.Open(), "19 calls are too few to tell")
		s.call(0, errLate)
		require.True(t, s.Open(), "2 of 20")
		require.Equal(t, []string{"true error_ratio"}, s.told())
	})
	bubble(t, config, func(s *sick) {
		for range 40 {
			s.call(0, nil)
		}
		for range 4 {
			s.call(0, errLate)
		}
		require.False(t, s.Open(), "4 of 44 is below a tenth")
		time.Sleep(10 * time.Second)
		s.call(0, errLate)
		for range 18 {
			s.call(0, nil)
		}
		require.False(t, s.Open())
		s.call(0, errLate)
		require.True(t, s.Open(), "2 of the last 20, what is older does not count")
	})
}

func TestBreakerOpensOnLatency(t *testing.T) {
	t.Parallel()
	const slow = 501 * time.Millisecond
	bubble(t, usual, func(s *sick) {
		for range 64 {
			s.call(slow-time.Millisecond, nil)
		}
		for range 6 {
			s.call(slow, nil)
		}
		require.False(t, s.Open(), "6 of 64 are below a tenth")
		s.call(slow, nil)
		require.True(t, s.Open(), "7 are not")
		require.Equal(t, []string{"true latency"}, s.told())
	})
	bubble(t, usual, func(s *sick) {
		for range 19 {
			s.call(slow, nil)
		}
		require.False(t, s.Open(), "too few to tell")
		s.call(slow, nil)
		require.True(t, s.Open())
	})
	bubble(t, usual, func(s *sick) {
		for range 6 {
			s.call(slow, nil)
		}
		for range 64 {
			s.call(0, nil)
		}
		for range 6 {
			s.call(slow, nil)
		}
		require.False(t, s.Open(), "slow answers of long ago do not count")
	})
}

// While it is open nobody asks, one probe at a time does, about once in probe_every, and two in a row close it.
func TestBreakerProbes(t *testing.T) {
	t.Parallel()
	bubble(t, usual, func(s *sick) {
		s.heal(100*time.Millisecond, errLate)
		opened := time.Now()
		for range 3 {
			s.call(0, errLate)
		}
		time.Sleep(100 * time.Second)
		require.InDelta(t, 100/1.1, s.probed(), 10)
		for i, at := range s.probes {
			since := at.Sub(opened)
			if i > 0 {
				since = at.Sub(s.probes[i-1]) - 100*time.Millisecond
			}
			require.GreaterOrEqual(t, since, 750*time.Millisecond)
			require.Less(t, since, 1250*time.Millisecond)
		}
		require.Positive(t, distinct(s.probes), "probes are spread")
		require.True(t, s.Open())
		require.EqualValues(t, 1, s.most.Load())

		// The first that succeeds is followed at once by another, which may fail.
		s.heal(10*time.Millisecond, nil)
		before := s.probed()
		s.Eventually(func() bool { return s.probed() == before+1 })
		s.heal(10*time.Millisecond, errFull)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, before+2, s.probed())
		require.True(t, s.Open())

		s.heal(10*time.Millisecond, nil)
		time.Sleep(1300 * time.Millisecond)
		require.False(t, s.Open())
		require.Equal(t, before+4, s.probed())
		require.Equal(t, []string{"true consecutive_timeouts", "false consecutive_timeouts"}, s.told())
		time.Sleep(time.Minute)
		require.Equal(t, before+4, s.probed(), "a closed breaker does not probe")

		// What was counted before is forgotten.
		s.call(0, errLate)
		s.call(0, errLate)
		require.False(t, s.Open())
		s.call(0, errLate)
		require.True(t, s.Open())
		require.Len(t, s.told(), 3)
	})
}

// Eventually steps through time until it holds.
func (s *sick) Eventually(holds func() bool) {
	s.t.Helper()
	for range 10_000 {
		if holds() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	s.t.Fatal("it never holds")
}

func distinct(at []time.Time) int {
	gaps := map[time.Duration]bool{}
	for i := 1; i < len(at); i++ {
		gaps[at[i].Sub(at[i-1])] = true
	}
	return len(gaps)
}

// A probe that is slower than the policy allows is no success, and one that hangs is ended.
func TestBreakerProbesTakeTheirTime(t *testing.T) {
	t.Parallel()
	bubble(t, usual, func(s *sick) {
		s.heal(501*time.Millisecond, nil)
		for range 3 {
			s.call(0, errLate)
		}
		time.Sleep(time.Minute)
		require.True(t, s.Open())
		s.heal(time.Hour, nil)
		before := s.probed()
		time.Sleep(time.Minute)
		require.Greater(t, s.probed(), before+5)
		require.True(t, s.Open())
		s.heal(time.Millisecond, nil)
		time.Sleep(7 * time.Second)
		require.False(t, s.Open())
	})
}

// A call that began before the breaker last opened or closed says nothing about what came after.
func TestBreakerIgnoresLateResults(t *testing.T) {
	t.Parallel()
	bubble(t, usual, func(s *sick) {
		for range 10 {
			require.True(t, s.Allow())
		}
		for range 3 {
			s.Done(0, errLate)
		}
		require.True(t, s.Open())
		s.Done(0, nil)
		s.Eventually(func() bool { return !s.Open() })
		time.Sleep(time.Second)
		for range 6 {
			s.Done(10*time.Second, errLate)
		}
		require.False(t, s.Open())
		require.Zero(t, s.asking.Load())
	})
}

// A pushed policy binds at once: thresholds, what counts as slow, and a probe that is waited for.
func TestBreakerTakesAPolicyAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, policy.Breaker{}, func(s *sick) {
		for range 1000 {
			s.call(time.Millisecond, errLate)
		}
		require.False(t, s.Open(), "without thresholds it never opens")
		s.SetConfig(usual)
		s.call(0, errLate)
		require.True(t, s.Open())
	})
	config := usual
	config.ProbeEvery = time.Hour
	bubble(t, config, func(s *sick) {
		for range 30 {
			s.call(100*time.Millisecond, nil)
		}
		config.Latency = 50 * time.Millisecond
		s.SetConfig(config)
		s.call(51*time.Millisecond, nil)
		require.True(t, s.Open())
		require.Equal(t, []string{"true latency"}, s.told())
		time.Sleep(10 * time.Second)
		require.Zero(t, s.probed())
		s.SetConfig(usual)
		synctest.Wait()
		require.Equal(t, 2, s.probed(), "it was due long ago")
		require.False(t, s.Open())
	})
}

// Whoever comes on top of those that Redis keeps waiting is turned away at once, which is no sign of an outage.
func TestBreakerBoundsWhoWaits(t *testing.T) {
	t.Parallel()
	bubble(t, usual, func(s *sick) {
		for range maxAsking {
			require.True(t, s.Allow())
		}
		for range 100 {
			require.False(t, s.Allow())
		}
		require.False(t, s.Open())
		s.Done(0, nil)
		require.True(t, s.Allow())
		require.False(t, s.Allow())
		for range maxAsking {
			s.Done(0, nil)
		}
		require.False(t, s.Open())
		require.Zero(t, s.asking.Load())
	})
}

// A run that was ended leaves it to the next one to close what is open.
func TestBreakerRunsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sick{t: t, err: errLate}
		s.Breaker = NewBreaker(s.answer, s.change, time.Now)
		s.SetConfig(usual)
		for range 3 {
			s.call(0, errLate)
		}
		require.True(t, s.Open())
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			require.NoError(t, s.Run(ctx))
			cancel()
			require.True(t, s.Open())
		}
		s.heal(0, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Run(ctx))
		require.False(t, s.Open())
	})
}

func TestBreakerMetrics(t *testing.T) {
	t.Parallel()
	b := NewBreaker(nil, nil, time.Now)
	b.SetConfig(usual)
	reg := prometheus.NewRegistry()
	reg.MustRegister(b)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Equal(t, len(resultNames)+len(whys)+len(probeResults), testutil.CollectAndCount(b), "known label values are there at the start")

	for _, err := range []error{nil, nil, errBroken, errCall, errLate, errFull, errLate} {
		require.True(t, b.Allow())
		b.Done(0, err)
	}
	require.False(t, b.Allow())
	counts := map[string]int64{}
	for i, name := range resultNames {
		counts[name] = b.counts.calls[i].Load()
	}
	require.Equal(t, map[string]int64{"answered": 2, "broken": 1, "unsent": 1, "outage": 3, "shed": 0, "open": 1}, counts)
	require.EqualValues(t, 1, b.counts.openings[0].Load())
}

// Many callers and pushes of a policy at once, for the race detector: in the end nobody is counted as waiting, and changes
// were told in turn.
func TestBreakerUnderConcurrency(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	var changes []bool
	b := NewBreaker(func(context.Context) error {
		if failing.Load() {
			return errLate
		}
		return nil
	}, func(open bool, _ string) { changes = append(changes, open) }, time.Now)
	config := usual
	config.ProbeEvery = time.Millisecond
	b.SetConfig(config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	var workers sync.WaitGroup
	var asked, kept atomic.Int64
	for range 8 {
		workers.Go(func() {
			for i := range 20_000 {
				if !b.Allow() {
					kept.Add(1)
					continue
				}
				asked.Add(1)
				var err error
				if failing.Load() {
					err = errLate
				}
				b.Done(time.Microsecond, err)
				if i%1000 == 0 {
					b.SetConfig(config)
				}
			}
		})
	}
	stop := make(chan struct{})
	var flips sync.WaitGroup
	flips.Go(func() {
		for {
			select {
			case <-stop:
				failing.Store(false)
				return
			case <-time.After(500 * time.Microsecond):
				failing.Store(!failing.Load())
			}
		}
	})
	workers.Wait()
	close(stop)
	flips.Wait()
	deadline := time.Now().Add(patience)
	for b.Open() && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	require.False(t, b.Open())
	cancel()
	require.NoError(t, <-done)
	require.Zero(t, b.asking.Load())
	require.Positive(t, asked.Load())
	for i, open := range changes {
		require.Equal(t, i%2 == 0, open, "told in turn")
	}
	t.Logf("%d asked, %d kept away, %d changes", asked.Load(), kept.Load(), len(changes))
}

var errGone = errors.New("dial tcp: connection refused")

func BenchmarkBreaker(b *testing.B) {
	for _, row := range []struct {
		name string
		open bool
	}{{"closed", false}, {"open", true}} {
		b.Run(row.name, func(b *testing.B) {
			breaker := NewBreaker(nil, nil, time.Now)
			breaker.SetConfig(usual)
			if row.open {
				for range 3 {
					breaker.Allow()
					breaker.Done(0, errGone)
				}
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if breaker.Allow() {
						breaker.Done(50*time.Microsecond, nil)
					}
				}
			})
		})
	}
}
