package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/gateway/provider"
	"tollgate/ledger"
)

// traffic is what one caller sends: how its requests are estimated, and what they use.
type traffic struct {
	exact   bool // as with a tokenizer: estimated at 1.00 to 1.17 of what is reported; else, as with the heuristic, 0.9 to 1.4
	bounded ledger.Tokens
}

type planned struct {
	raw    provider.Estimate
	actual ledger.Usage
}

// plan draws requests: inputs of 600 and outputs of 250 tokens in the middle, some much longer.
func (tr traffic) plan(n int, r *rand.Rand) []planned {
	requests := make([]planned, n)
	for i := range requests {
		input := ledger.Tokens(600 * math.Exp(r.NormFloat64()))
		output := min(1+ledger.Tokens(250*math.Exp(0.6*r.NormFloat64())), provider.DefaultOutput)
		raw := provider.Estimate{Exact: tr.exact, Output: provider.DefaultOutput, Choices: 1}
		if tr.bounded > 0 {
			raw.Output, raw.Bounded, output = tr.bounded, true, min(output, tr.bounded)
		}
		factor := 0.9 + 0.5*r.Float64()
		if tr.exact {
			factor = 1 + 0.17*r.Float64()*r.Float64()
		}
		raw.Input = max(1, ledger.Tokens(float64(input)*factor))
		requests[i] = planned{raw, ledger.Usage{Input: input, Output: output}}
	}
	return requests
}

// simulate sends the requests, so many at a time, against a budget of what they all use and a request more, and counts what
// is refused. A refused request is not asked again; its sender goes on after the time of a usual answer.
func simulate(requests []planned, parallel int, estimate func(provider.Estimate) ledger.Tokens, learn func(planned)) (refused int) {
	limit, held, used := ledger.Tokens(0), ledger.Tokens(0), ledger.Tokens(0)
	for _, q := range requests {
		limit += q.actual.Total()
	}
	limit += limit / ledger.Tokens(len(requests))
	type flight struct {
		end  ledger.Tokens
		hold ledger.Tokens
		q    *planned
	}
	senders := make([]flight, parallel)
	for i := range requests {
		next := 0
		for s := range senders {
			if senders[s].end < senders[next].end {
				next = s
			}
		}
		s := &senders[next]
		if s.q != nil {
			held -= s.hold
			used += s.q.actual.Total()
			learn(*s.q)
			s.q = nil
		}
		if need := estimate(requests[i].raw); used+held+need <= limit {
			held += need
			*s = flight{s.end + requests[i].actual.Output, need, &requests[i]}
		} else {
			refused++
			s.end += 250
		}
	}
	return refused
}

// How often a caller is refused that has room: its budget is what its 1,000 requests really use, and one request more.
func TestFalseRefusals(t *testing.T) {
	t.Parallel()
	const requests, rounds = 1000, 20
	report := "refused of 1,000 requests that fit, at 1, 8 and 32 at a time:\n"
	shares := map[string]float64{}
	for _, tr := range []struct {
		name string
		traffic
	}{
		{"tokenizer, no bound", traffic{true, 0}},
		{"heuristic, no bound", traffic{false, 0}},
		{"tokenizer, bound 1,000", traffic{true, 1000}},
		{"heuristic, bound 1,000", traffic{false, 1000}},
	} {
		for _, learning := range []bool{false, true} {
			report += fmt.Sprintf("%-24s learning %-5v", tr.name, learning)
			for _, parallel := range []int{1, 8, 32} {
				refused := 0
				for round := range rounds {
					r := rand.New(rand.NewPCG(uint64(round), 1))
					l := NewLearner(1)
					learn := func(q planned) { l.Learn("app", "model", q.raw, q.actual) }
					estimate := func(raw provider.Estimate) ledger.Tokens { return raw.Corrected() + raw.Output }
					if learning {
						estimate = func(raw provider.Estimate) ledger.Tokens {
							input, output := l.Estimate("app", "model", raw)
							return input + output
						}
						for _, q := range tr.plan(200, r) { // the day before
							learn(q)
						}
					}
					refused += simulate(tr.plan(requests, r), parallel, estimate, learn)
				}
				share := float64(refused) / requests / rounds
				shares[fmt.Sprint(tr.name, learning, parallel)] = share
				report += fmt.Sprintf("  %5.2f %%", 100*share)
			}
			report += "\n"
		}
	}
	t.Log("\n" + report)
	for _, name := range []string{"tokenizer, no bound", "heuristic, no bound"} {
		require.LessOrEqual(t, shares[name+"true1"], 0.002)
		require.LessOrEqual(t, shares[name+"true32"], 0.03)
		for _, parallel := range []int{1, 8, 32} {
			require.Less(t, shares[fmt.Sprint(name, true, parallel)], shares[fmt.Sprint(name, false, parallel)]/2)
		}
	}
	for _, name := range []string{"tokenizer, bound 1,000", "heuristic, bound 1,000"} {
		require.LessOrEqual(t, shares[name+"true32"], 0.03)
	}
}

// An estimate that is right refuses nobody: what is measured above is overestimation alone.
func TestNoFalseRefusalsOfTheTruth(t *testing.T) {
	t.Parallel()
	for _, parallel := range []int{1, 8, 32} {
		requests := traffic{}.plan(1000, rand.New(rand.NewPCG(1, 2)))
		for i := range requests {
			requests[i].raw.Input = requests[i].actual.Total()
		}
		refused := simulate(requests, parallel, func(raw provider.Estimate) ledger.Tokens { return raw.Input }, func(planned) {})
		require.Zero(t, refused)
	}
}
