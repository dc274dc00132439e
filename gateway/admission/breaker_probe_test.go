package admission

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

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
