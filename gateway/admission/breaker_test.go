package admission

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
		defer func() {
			cancel()
			require.NoError(t, <-done)
		}()
		test(s)
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
		for range 18 {
			s.call(0, nil)
		}
		s.call(slow, nil)
		s.call(slow, nil)
		require.False(t, s.Open(), "exactly a tenth is not more")
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
