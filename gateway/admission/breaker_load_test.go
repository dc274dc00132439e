package admission

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

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

// Many callers and pushes of a policy at once, for the race detector: changes are told in turn.
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
