package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// step is one fault: what, on which gateway or settler, when after the start of the load, and for how long.
type step struct {
	fault *fault
	whom  int
	at    time.Duration
	lasts time.Duration
}

// plan is all that a seed decides.
type plan struct {
	seed               uint64
	gateways, settlers int
	local              int // requests per second that a gateway allows an app while Redis is away
	load               time.Duration
	steps              []step
}

// planOf draws the plan of a seed; seed 0 is the calm run, without faults.
func planOf(seed uint64, long bool) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{seed: seed, gateways: 2 + r.IntN(2), settlers: 1 + r.IntN(2), local: r.IntN(2) * 5}
	most := 2 * time.Second
	if long {
		most = 10 * time.Second
	}
	at := 300 * time.Millisecond
	count := 3
	if seed == 0 {
		count = 0
	}
	busy := map[string]time.Duration{} // component -> until when
	for range count {
		f := &faults[r.IntN(len(faults))]
		s := step{fault: f, whom: r.IntN(6), at: max(at, busy[f.on])}
		if !f.instant {
			s.lasts = 300*time.Millisecond + time.Duration(r.Int64N(int64(most)))
		}
		busy[f.on] = s.at + s.lasts + 200*time.Millisecond
		p.steps = append(p.steps, s)
		p.load = max(p.load, busy[f.on])
		// Half of the faults begin while the one before lasts.
		at = s.at + time.Duration(r.Int64N(int64(2*s.lasts+300*time.Millisecond)))
	}
	slices.SortStableFunc(p.steps, func(a, b step) int { return int(a.at - b.at) })
	p.load = max(p.load+700*time.Millisecond, 2*time.Second)
	return p
}

func (p plan) needs(component string) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return s.fault.on == component })
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d gateways, %d settlers, local allowance %d/s, load for %s\n", p.seed, p.gateways, p.settlers, p.local, p.load)
	for _, s := range p.steps {
		fmt.Fprintf(&b, "  at %-6s for %-6s %s (%d)\n", s.at.Round(time.Millisecond), s.lasts.Round(time.Millisecond), s.fault.name, s.whom)
	}
	return b.String()
}

// The seed alone decides the plan, every fault is drawn, and no component is hurt twice at a time.
func TestPlans(t *testing.T) {
	t.Parallel()
	drawn := map[string]bool{}
	for seed := range uint64(200) {
		p := planOf(seed, false)
		require.Equal(t, p.String(), planOf(seed, false).String())
		until := map[string]time.Duration{}
		for _, s := range p.steps {
			drawn[s.fault.name] = true
			require.GreaterOrEqual(t, s.at, until[s.fault.on], "seed %d", seed)
			until[s.fault.on] = s.at + s.lasts
			require.Less(t, until[s.fault.on], p.load, "seed %d", seed)
		}
	}
	require.Len(t, drawn, len(faults))
}
