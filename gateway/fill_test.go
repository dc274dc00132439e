package gateway

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// settlers stands for those that fill budgets.
type settlers struct {
	mu     sync.Mutex
	asked  []string // "family period" of every request, in order
	answer string
	hold   chan struct{} // answers wait for it, where it is not nil
}

func (s *settlers) fill(f *event.Fill) string {
	s.mu.Lock()
	for _, x := range f.Families {
		s.asked = append(s.asked, fmt.Sprintf("%s %s %s", x.Family, x.Period, f.Timezone))
	}
	hold, answer := s.hold, s.answer
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return answer
}

func (s *settlers) set(answer string, hold chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.hold = answer, hold
}

func (s *settlers) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

// serving waits until the gateway has done all that comes before its first request.
func serving(w *world) {
	w.Helper()
	stack.Eventually(w, func() error {
		if !strings.Contains(w.logs.String(), "gateway is serving") {
			return errors.New("not serving yet")
		}
		return nil
	})
}

// pushed is the text of a policy with the given limits.
func pushed(w *world, limits string) []byte {
	return []byte(strings.Replace(policyText(w), roomy, limits, 1))
}

func inForce(w *world, text []byte) bool {
	return w.gateway.admission.Policy().Revision == policy.RevisionOf(text)
}

// A policy is not judged by before its new budgets are filled, and only the new ones are asked for.
func TestPolicyWaitsForItsBudgets(t *testing.T) {
	t.Parallel()
	w, s := begin(t, plain), &settlers{answer: event.FillDone}
	w.fills = s.fill
	serving(w.run(roomy))
	require.Equal(t, []string{"app day UTC"}, s.take(), "at the start")

	hold := make(chan struct{})
	s.set(event.FillDone, hold)
	text := pushed(w, roomy+`  - {name: key-day, tier: key, by: model, budget: {usd: 1, per: day}}
  - {name: key-tokens, tier: key, by: model, budget: {tokens: 1000, per: day}}
  - {name: rpm, tier: key, rate: {requests: 100, per: minute}}
  - {name: ip, tier: ip, budget: {usd: 1, per: day}}
`)
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		w.gateway.takePolicy(t.Context(), text)
	}()
	var asked []string
	stack.Eventually(t, func() error {
		if asked = append(asked, s.take()...); len(asked) == 0 {
			return errors.New("nothing is asked for")
		}
		return nil
	})
	require.Equal(t, []string{"key[model] day UTC"}, asked)
	require.False(t, inForce(w, text))
	close(hold)
	<-taken
	require.True(t, inForce(w, text))
	require.NotContains(t, w.logs.String(), "count from zero")

	w.gateway.takePolicy(t.Context(), pushed(w, roomy))
	require.Empty(t, s.take(), "nothing new")
	w.gateway.takePolicy(t.Context(), text)
	require.Equal(t, []string{"key[model] day UTC"}, s.take(), "it was gone in between")
	w.gateway.takePolicy(t.Context(), []byte(strings.Replace(string(text), "version: 1\n", "version: 1\ntimezone: Europe/Berlin\n", 1)))
	require.Equal(t, []string{"app day Europe/Berlin", "key[model] day Europe/Berlin"}, s.take(), "other windows")
}

// A policy comes into force also when nobody fills, half a second later; then it is asked again until somebody has.
func TestPolicyDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	w, s := begin(t, plain), &settlers{answer: event.FillDone}
	w.fills = s.fill
	w.prepare = func(g *Gateway) { g.waits.fill = usualWaits.fill }
	serving(w.run(roomy))
	require.LessOrEqual(t, usualWaits.fill, 500*time.Millisecond, "a push is in force within a second")
	degraded := func() float64 { return testutil.ToFloat64(w.gateway.metrics.degraded.WithLabelValues("ledger")) }
	filled := func() error {
		if degraded() != 0 {
			return errors.New("not filled")
		}
		return nil
	}
	stack.Eventually(t, filled)

	for _, row := range []struct{ answer, by string }{{"", "user"}, {"error: Redis is away", "plan"}} {
		s.set(row.answer, nil)
		s.take()
		text := pushed(w, roomy+"  - {name: new, tier: key, by: "+row.by+", budget: {usd: 1, per: day}}\n")
		w.gateway.takePolicy(t.Context(), text) // returns, though nobody has filled
		require.True(t, inForce(w, text))
		require.Equal(t, 1.0, degraded())
		require.Contains(t, w.logs.String(), "new budgets count from zero until a settler has filled them")
		s.set(event.FillDone, nil)
		stack.Eventually(t, filled)
		require.GreaterOrEqual(t, len(s.take()), 2, "asked for again")
	}
}

// Many families are asked for in several requests.
func TestFillInParts(t *testing.T) {
	t.Parallel()
	w, s := begin(t, plain), &settlers{answer: event.FillDone}
	var sizes []int
	w.fills = func(f *event.Fill) string {
		s.mu.Lock()
		sizes = append(sizes, len(f.Families))
		s.mu.Unlock()
		return s.fill(f)
	}
	var limits strings.Builder
	for i := range 2*fillChunk + 1 {
		fmt.Fprintf(&limits, "  - {name: l%d, tier: app, match: {key: k%d}, budget: {usd: 1, per: day}}\n", i, i)
	}
	serving(w.run(limits.String()))
	require.Len(t, s.take(), 2*fillChunk+1)
	require.Equal(t, []int{fillChunk, fillChunk, 1}, sizes)
}
