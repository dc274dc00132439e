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

func (s step) end() time.Duration { return s.at + s.lasts }

// plan is all that a seed decides.
type plan struct {
	seed               uint64
	gateways, settlers int
	local              int // requests per second that a gateway allows an app while Redis is away
	ttl                time.Duration
	load               time.Duration
	steps              []step
	pushes             []time.Duration // when another policy is pushed
}

// faultsPerSeed are drawn for each seed: so many from the deck, in which every fault comes before one comes again, and one more.
const (
	fromDeck      = 2
	faultsPerSeed = fromDeck + 1
)

// inTurn are the faults that are a seed's by its number: seeds in a row leave none out.
func inTurn(seed uint64) []int {
	order := rand.New(rand.NewPCG(1, 1)).Perm(len(faults))
	drawn := make([]int, fromDeck)
	for i := range drawn {
		drawn[i] = order[(int(seed%uint64(len(faults)))*fromDeck+i)%len(faults)]
	}
	return drawn
}

// planOf draws the plan of a seed; seed 0 is the calm run, without faults.
func planOf(seed uint64, long bool) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{seed: seed, gateways: 2 + r.IntN(2), settlers: 1 + r.IntN(2), local: r.IntN(2) * 5, ttl: time.Second}
	most := time.Second
	if long {
		most, p.ttl = 10*time.Second, 2*time.Second
	}
	var drawn []int
	if seed != 0 {
		drawn = append(inTurn(seed), r.IntN(len(faults)))
		r.Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
	}
	at := 300 * time.Millisecond
	busy := map[string]time.Duration{} // component -> until when
	for _, i := range drawn {
		f := &faults[i]
		s := step{fault: f, whom: r.IntN(6), at: max(at, busy[f.on])}
		if !f.instant {
			s.lasts = 200*time.Millisecond + time.Duration(r.Int64N(int64(most)))
		}
		busy[f.on] = s.end() + 200*time.Millisecond
		p.steps = append(p.steps, s)
		p.load = max(p.load, busy[f.on])
		// Half of the faults begin while the one before lasts.
		at = s.at + time.Duration(r.Int64N(int64(2*s.lasts+300*time.Millisecond)))
	}
	slices.SortStableFunc(p.steps, func(a, b step) int { return int(a.at - b.at) })
	p.load = max(p.load+300*time.Millisecond, 1500*time.Millisecond)
	p.pushes = []time.Duration{time.Duration(r.Int64N(int64(p.load)))}
	return p
}

func (p plan) needs(component string) bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return s.fault.on == component })
}

// calm tells whether nothing hurts any gateway, or its way to NATS, from an instant on for the time that a policy has to arrive.
func (p plan) calm(at time.Duration) bool {
	return !slices.ContainsFunc(p.steps, func(s step) bool {
		return slices.Contains([]string{onGateway, onNATS, onLinks}, s.fault.on) && s.at < at+policyLimit && s.end() > at-policyLimit
	})
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d gateways, %d settlers, local allowance %d/s, load for %s, policy pushed at %v\n", p.seed, p.gateways, p.settlers,
		p.local, p.load.Round(time.Millisecond), p.pushes)
	for _, s := range p.steps {
		fmt.Fprintf(&b, "  at %-6s for %-6s %s (%d)\n", s.at.Round(time.Millisecond), s.lasts.Round(time.Millisecond), s.fault.name, s.whom)
	}
	return b.String()
}

// The seed alone decides the plan, every fault is drawn in any twenty seeds in a row, and no component is hurt twice at a time.
func TestPlans(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, len(faults), 20*fromDeck, "twenty seeds draw every fault")
	for seed := range uint64(200) {
		p := planOf(seed, false)
		require.Equal(t, p.String(), planOf(seed, false).String())
		until := map[string]time.Duration{}
		for _, s := range p.steps {
			require.GreaterOrEqual(t, s.at, until[s.fault.on], "seed %d", seed)
			until[s.fault.on] = s.end()
			require.Less(t, until[s.fault.on], p.load, "seed %d", seed)
		}
		drawn := map[string]bool{}
		for other := seed + 1; other <= seed+20; other++ {
			for _, s := range planOf(other, false).steps {
				drawn[s.fault.name] = true
			}
		}
		require.Len(t, drawn, len(faults), "seeds %d to %d", seed+1, seed+20)
	}
}
