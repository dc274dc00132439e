package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tollgate/e2e/system"
)

// run is one seed under way.
type run struct {
	*system.System

	t       *testing.T
	plan    plan
	seen    watch
	refused atomic.Int64 // calls of the app whose budget was used up
	replica *system.Replica
	losses  []span // in which Redis took writes that its replica lacked
	pushes  []push
	took    []time.Duration // until a gateway that nothing hurt judged by a pushed policy
	owed    bool            // a policy is to be pushed
	began   time.Time
	phases  []string
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
	var all totals
	t.Cleanup(func() {
		t.Log(&all)
		all.requirePrompt(t)
	})
	for _, seed := range list {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			runSeed(t, planOf(seed, *long), &all)
		})
	}
}

// ackWait is how long settlers have to acknowledge an event before another gets it.
const ackWait = time.Second

func runSeed(t *testing.T, p plan, all *totals) {
	t.Log(p)
	r := &run{t: t, plan: p, began: time.Now()}
	r.System = system.New(t, system.Options{
		Limits: limits(10), Sections: sections, Gateways: p.gateways, Settlers: p.settlers, TTL: p.ttl,
		OwnPostgres: p.needs(onPostgres), Proxied: true, Pushed: true, Prepared: true,
		Degraded: fmt.Sprintf("{breaker: {latency: 1m}, local: {requests_per_second: %d, tokens_per_minute: 20000}, closed_plans: [free]}", p.local),
		Env: []string{
			"TOLLGATE_LIMITER_TIMEOUT=250ms", "TOLLGATE_PUBLISH_TIMEOUT=300ms", "TOLLGATE_SHUTDOWN_TIMEOUT=2s",
			"TOLLGATE_SETTLER_ACK_WAIT=" + ackWait.String(), "TOLLGATE_SETTLER_BATCH=50",
		},
	})
	defer r.keep()
	defer all.add(r)
	for _, secrets := range secrets {
		r.AwaitKey(secrets[len(secrets)-1])
	}
	r.spendUp()
	r.phase("start")
	unwatch := r.watch()
	stop := system.Traffic(callers, r.call)
	r.schedule()
	r.phase("load")
	r.recover()
	answers := stop()
	r.phase("recovery")
	t.Logf("%v", system.Tally(answers))
	all.count(answers)
	r.Check(r.CheckClients(answers), r.CheckStream, r.sampled, r.spending, r.refusals, r.policies)
	unwatch()
	r.refuseAtRest()
	r.phase("check")
	t.Log("seconds: " + strings.Join(r.phases, ", "))
}

// phase notes how long the part of the run that ends now took.
func (r *run) phase(name string) {
	now := time.Now()
	r.phases = append(r.phases, fmt.Sprintf("%s %.1f", name, now.Sub(r.began).Seconds()))
	r.began = now
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
			acts = append(acts, act{s.end(), "end of " + s.fault.name, s.fault.end, s.whom})
		}
	}
	for _, at := range r.plan.pushes {
		acts = append(acts, act{at, "policy pushed", func(r *run, _ int) { r.pushPolicy(r.plan.calm(at)) }, 0})
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

// recover does what who runs Tollgate does after an outage: it pushes the policy that was lost, and starts what gave up while a
// server was away, as a supervisor does, until every part is ready.
func (r *run) recover() {
	for r.owed {
		r.pushPolicy(false)
	}
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
