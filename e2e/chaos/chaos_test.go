package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate/e2e/system"
)

// run is one seed under way.
type run struct {
	*system.System

	t    *testing.T
	plan plan
	keys []string
}

// Whatever fails, nothing is lost and nothing counts twice.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the whole system")
	}
	list := []uint64{0}
	for i := range *seeds {
		list = append(list, *first+uint64(i))
	}
	for _, seed := range list {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			runSeed(t, planOf(seed, *long))
		})
	}
}

func runSeed(t *testing.T, p plan) {
	t.Log(p)
	s := system.New(t, system.Options{
		Limits: limits, Sections: sections, Gateways: p.gateways, Settlers: p.settlers, TTL: 2 * time.Second,
		OwnPostgres: p.needs(onPostgres), Proxied: true,
		Degraded: fmt.Sprintf("{breaker: {latency: 1m}, local: {requests_per_second: %d, tokens_per_minute: 20000}, closed_plans: [free]}", p.local),
		Env: []string{
			"TOLLGATE_LIMITER_TIMEOUT=250ms", "TOLLGATE_PUBLISH_TIMEOUT=300ms", "TOLLGATE_SHUTDOWN_TIMEOUT=2s",
			"TOLLGATE_SETTLER_ACK_WAIT=1s", "TOLLGATE_SETTLER_BATCH=50",
		},
	})
	r := &run{System: s, t: t, plan: p}
	defer r.keep()
	s.CLI("app", "create", "depot")
	r.keys = []string{s.KnownKey(system.App), s.KnownKey(system.App), s.KnownKey("depot")}
	watch := r.watch()
	stop := system.Traffic(callers, r.call)
	r.schedule()
	r.recover()
	answers := stop()
	t.Logf("%v", system.Tally(answers))
	s.Check(s.CheckClients(answers), s.CheckStream, watch, r.within)
}

// schedule plays the plan: begins and ends of faults, each in its turn.
func (r *run) schedule() {
	type act struct {
		at   time.Duration
		what string
		do   func(r *run, whom int)
		whom int
	}
	var acts []act
	for _, s := range r.plan.steps {
		acts = append(acts, act{s.at, s.fault.name, s.fault.begin, s.whom})
		if s.fault.end != nil {
			acts = append(acts, act{s.at + s.lasts, "end of " + s.fault.name, s.fault.end, s.whom})
		}
	}
	slices.SortStableFunc(acts, func(a, b act) int { return int(a.at - b.at) })
	start := time.Now()
	for _, a := range acts {
		time.Sleep(time.Until(start.Add(a.at)))
		a.do(r, a.whom)
		r.t.Logf("%s %s (%d)", time.Since(start).Round(time.Millisecond), a.what, a.whom)
	}
	time.Sleep(time.Until(start.Add(r.plan.load)))
}

// recover starts what gave up while a server was away, as a supervisor does, until every part is ready.
func (r *run) recover() {
	for _, p := range slices.Concat(r.Gateways, r.Settlers) {
		select {
		case <-p.Done():
			r.t.Logf("%s had ended and is started again", p.Name)
			p.Launch()
		default:
		}
		p.WaitReady(p.Admin + "/readyz")
	}
}

// watch reads Redis during the run: used + held of the tight budget never passes its limit.
func (r *run) watch() func(context.Context) ([]system.Line, error) {
	var mu sync.Mutex
	samples, most := 0, int64(0)
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			counters, err := r.Counters(ctx)
			if err != nil {
				continue // Redis is away: the faults see to that
			}
			mu.Lock()
			samples++
			for k, c := range counters {
				if k.App == "depot" && k.Period == "day" && k.Subject == "app:depot" {
					most = max(most, c.Used[0]+c.Held[0])
				}
			}
			mu.Unlock()
		}
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	return func(context.Context) ([]system.Line, error) {
		mu.Lock()
		defer mu.Unlock()
		line := system.Line{Name: "I1 used + held of the tight budget", Figure: fmt.Sprintf("at most %d of %d in %d samples", most, tight, samples)}
		if most > tight {
			line.Problem = "above its limit"
		}
		return []system.Line{line}, nil
	}
}

// within looks at the tight budget in the ledger: what is above its limit must have been admitted without Redis.
func (r *run) within(ctx context.Context) ([]system.Line, error) {
	var used, degraded int64
	const query = `
SELECT count(*) FILTER (WHERE NOT 'degraded' = ANY(flags)), count(*) FILTER (WHERE 'degraded' = ANY(flags))
FROM reservations WHERE app = 'depot' AND charged_requests > 0`
	if err := r.Pool.QueryRow(ctx, query).Scan(&used, &degraded); err != nil {
		return nil, err
	}
	line := system.Line{Name: "I1 requests of the tight budget", Figure: fmt.Sprintf("%d of %d, and %d degraded", used, tight, degraded)}
	if used > tight {
		line.Problem = "overspent"
	}
	return []system.Line{line}, nil
}

// keep saves the logs of a run that failed, and says how to run it again.
func (r *run) keep() {
	if !r.t.Failed() {
		return
	}
	flags := fmt.Sprintf("-chaos.seeds 1 -chaos.first %d", r.plan.seed)
	if *long {
		flags += " -chaos.long"
	}
	r.t.Logf("again: go test ./e2e/chaos -run 'TestChaos/seed=%d$' %s", r.plan.seed, flags)
	folder, err := os.MkdirTemp("", fmt.Sprintf("tollgate-chaos-%d-", r.plan.seed))
	if err != nil {
		r.t.Error(err)
		return
	}
	for i, p := range slices.Concat(r.Gateways, r.Settlers) {
		name := filepath.Join(folder, fmt.Sprintf("%d-%s.log", i, strings.ReplaceAll(p.Name, " ", "-")))
		if err := os.WriteFile(name, []byte(p.Log()), 0o600); err != nil {
			r.t.Error(err)
		}
	}
	r.t.Logf("logs: %s", folder)
}
