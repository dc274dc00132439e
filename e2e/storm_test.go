package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// D5: 500 clients that come again at once whatever they are told. What reaches the provider is exactly what was admitted, the
// gateway's memory and goroutines stay bounded, and another caller is served all the while.
func TestStormOfRetries(t *testing.T) {
	t.Parallel()
	const clients, length, perSecond = 500, 6 * time.Second, 40
	s := system.New(t, system.Options{
		Limits: `
  - {name: second, tier: app, rate: {requests: 40, per: second, algorithm: sliding_log}}
  - {name: day, tier: app, budget: {requests: 1000000, per: day}}
`,
		Gateways: 1, Settlers: 1,
	})
	secrets := manyKeys(t, s, owner{app: "storm"}, owner{app: "calm"})
	send := func(ctx context.Context, key string) system.Answer {
		r := steady(0)
		r.Key = key
		return s.Send(ctx, s.Gateways[0].URL, r)
	}
	alone := paced(time.Second, func() system.Answer { return send(t.Context(), secrets[1]) })
	stop := system.Traffic(clients, func(int) system.Answer { return send(t.Context(), secrets[0]) })
	watch := watchProcess(t, s, s.Gateways[0])
	amid := paced(length, func() system.Answer { return send(t.Context(), secrets[1]) })
	highest := watch()
	answers := stop()
	tally := system.Tally(answers)
	t.Logf("storm %v; calm caller: median %s, p99 %s before, median %s, p99 %s amid; at most %.0f goroutines, %.0f MiB",
		tally, alone.at(0.5), alone.at(0.99), amid.at(0.5), amid.at(0.99), highest.goroutines, highest.resident/(1<<20))

	require.Len(t, tally, 2, "admitted or told to wait, nothing else")
	require.Positive(t, tally["passed"])
	require.Greater(t, tally["RPM_LIMIT"], tally["passed"], "a storm")
	for _, a := range slices.Concat(alone.answers, amid.answers) {
		require.True(t, a.Passed(), a.String())
	}
	for _, a := range answers {
		if !a.Passed() {
			require.Equal(t, "1", a.Header.Get("Retry-After"), a.String())
		}
	}
	s.Check()
	admitted := tally["passed"] + len(alone.answers) + len(amid.answers)
	require.EqualValues(t, admitted, billed(t, s), "the provider sees what was admitted")
	require.EqualValues(t, admitted, s.Int(`SELECT count(*) FROM finance.requests WHERE state = 'settled'`))
	var instants []time.Time
	for _, row := range s.Rows(`SELECT occurred_at FROM finance.requests WHERE app = 'storm'`) {
		instants = append(instants, row[0].(time.Time))
	}
	require.LessOrEqual(t, most(instants, time.Second), perSecond)
	// Two goroutines a connection and what each request needs; no more than a few dozen kilobytes for either.
	require.Less(t, highest.goroutines, 4.0*clients+300)
	require.Less(t, highest.resident, float64(256<<20))
}

// pace is how often a well-behaved caller asks.
const pace = 40 * time.Millisecond

// series are the answers of one caller and how long each took.
type series struct {
	answers []system.Answer
	took    []time.Duration
}

// paced makes calls for the time, each its pace after the one before or as soon as that has its answer. Who was held up does not
// hurry afterwards: that would be another storm.
func paced(length time.Duration, call func() system.Answer) series {
	var s series
	for start := time.Now(); time.Since(start) < length; {
		began := time.Now()
		s.answers = append(s.answers, call())
		s.took = append(s.took, time.Since(began).Round(100*time.Microsecond))
		time.Sleep(time.Until(began.Add(pace)))
	}
	return s
}

func (s *series) at(quantile float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s.took))
	return sorted[min(len(sorted)-1, int(quantile*float64(len(sorted))))]
}

type footprint struct{ goroutines, resident float64 }

// watchProcess looks at what a part uses until it is stopped, and returns the most it saw.
func watchProcess(t *testing.T, s *system.System, p *system.Part) (stop func() footprint) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var highest footprint
	var wait sync.WaitGroup
	failed := make(chan error, 1)
	wait.Go(func() {
		for ctx.Err() == nil {
			goroutines, err := s.Metric(ctx, p, "go_goroutines")
			if err == nil {
				highest.goroutines = max(highest.goroutines, goroutines)
				goroutines, err = s.Metric(ctx, p, "process_resident_memory_bytes")
				highest.resident = max(highest.resident, goroutines)
			}
			if err != nil && ctx.Err() == nil {
				failed <- err
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return func() footprint {
		cancel()
		wait.Wait()
		select {
		case err := <-failed:
			require.NoError(t, err)
		default:
		}
		require.Positive(t, highest.goroutines)
		return highest
	}
}
