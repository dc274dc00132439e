package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate/e2e/system"
)

// totals are what all seeds of a process came to. They are safe for concurrent use.
type totals struct {
	mu            sync.Mutex
	seeds, failed []uint64
	faults        map[string]int
	answers       map[string]int
	samples       int
	refused       int64
	pushes        int
	took          []time.Duration // as of a run
}

// count adds what clients were answered.
func (a *totals) count(answers []system.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answers == nil {
		a.answers = map[string]int{}
	}
	for what, n := range system.Tally(answers) {
		a.answers[what] += n
		a.answers["all"] += n
	}
}

// add adds a run that is over.
func (a *totals) add(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.faults == nil {
		a.faults = map[string]int{}
	}
	a.seeds = append(a.seeds, r.plan.seed)
	if r.t.Failed() {
		a.failed = append(a.failed, r.plan.seed)
	}
	for _, s := range r.plan.steps {
		a.faults[s.fault.name]++
	}
	r.seen.mu.Lock()
	a.samples += r.seen.samples
	r.seen.mu.Unlock()
	a.refused += r.refused.Load()
	a.pushes += len(r.pushes)
	a.took = append(a.took, r.took...)
}

// requirePrompt holds I10 where there were so many pushes that it does not matter if some process stood still.
func (a *totals) requirePrompt(t *testing.T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.took)
	if n := len(a.took); n >= 10 && a.took[n/2] > policyLimit {
		t.Errorf("most policies were in force after more than %s: %s", policyLimit, a.took)
	}
}

func (a *totals) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.failed)
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds, failed: %v; %d samples of Redis, %d refused of a used-up budget, %d policies pushed\nanswers:", len(a.seeds), a.failed,
		a.samples, a.refused, a.pushes)
	for _, what := range slices.Sorted(maps.Keys(a.answers)) {
		fmt.Fprintf(&b, " %s %d,", what, a.answers[what])
	}
	b.WriteString("\nfaults:")
	for _, name := range slices.Sorted(maps.Keys(a.faults)) {
		fmt.Fprintf(&b, " %s %d,", name, a.faults[name])
	}
	return b.String()
}
