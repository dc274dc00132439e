package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

var appDay = SpentBudget{Subject: "app:checkout", Period: ledger.PeriodDay, Unit: ledger.UnitTokens}

func TestExhausted(t *testing.T) {
	t.Parallel()
	clock := newHand()
	e := NewExhausted(10, clock.now)
	refuses := func(budget SpentBudget, limit, need int64, want bool, wantUsed int64, wantResets time.Duration) {
		t.Helper()
		used, resets, refused := e.Refuses(budget, limit, need)
		require.Equal(t, want, refused)
		require.Equal(t, wantUsed, used)
		require.Equal(t, wantResets, resets)
	}
	refuses(appDay, 100, 1, false, 0, 0)
	e.Remember(appDay, 95, time.Hour)
	clock.passed = 20 * time.Minute
	clock.wall = 30 * 24 * time.Hour // a step of the wall clock forgets nothing
	refuses(appDay, 100, 10, true, 95, 40*time.Minute)
	refuses(appDay, 100, 6, true, 95, 40*time.Minute)
	refuses(appDay, 100, 5, false, 0, 0)             // as much as is left may still be used
	refuses(appDay, 105, 10, false, 0, 0)            // a raised limit helps at once
	refuses(appDay, 90, 0, true, 95, 40*time.Minute) // a lowered one binds at once
	for _, other := range []SpentBudget{
		{"app:search", ledger.PeriodDay, ledger.UnitTokens},
		{"app:checkout", ledger.PeriodMonth, ledger.UnitTokens},
		{"app:checkout", ledger.PeriodDay, ledger.UnitRequests},
	} {
		refuses(other, 100, 10, false, 0, 0)
	}
	clock.passed = time.Hour - 1
	refuses(appDay, 100, 10, true, 95, 1)
	clock.passed = time.Hour
	refuses(appDay, 100, 10, false, 0, 0)
	require.Empty(t, e.known)
	require.Empty(t, e.resets)
}

func TestExhaustedForGood(t *testing.T) {
	t.Parallel()
	clock := newHand()
	e := NewExhausted(10, clock.now)
	e.Remember(appDay, 100, 0)
	clock.passed = 100 * 365 * 24 * time.Hour
	used, resets, refused := e.Refuses(appDay, 100, 1)
	require.True(t, refused)
	require.EqualValues(t, 100, used)
	require.Zero(t, resets)
	e.Forget(appDay) // a grant made room
	_, _, refused = e.Refuses(appDay, 100, 1)
	require.False(t, refused)
	e.Forget(appDay)
	e.Remember(appDay, 100, time.Hour)
	e.Clear()
	_, _, refused = e.Refuses(appDay, 100, 1)
	require.False(t, refused)
	e.Remember(appDay, 100, time.Hour)
	_, _, refused = e.Refuses(appDay, 100, 1)
	require.True(t, refused)
}

// exhaustedWalk is a random history told to the memory and to a plain map, of which the entry that resets soonest leaves when
// there are too many.
type exhaustedWalk struct {
	*Exhausted
	clock *hand
	plain map[SpentBudget]plainSpent
	nth   time.Duration
}

type plainSpent struct {
	used  int64
	until time.Duration
}

// plainNever is later than any window's end; budgets that never reset come after each other all the same.
const plainNever = 1 << 62

var spentBudgets = rapid.Custom(func(t *rapid.T) SpentBudget {
	return SpentBudget{
		Subject: fmt.Sprint("app:", rapid.IntRange(0, 3).Draw(t, "app")), Period: ledger.PeriodDay,
		Unit: rapid.SampledFrom([]ledger.Unit{ledger.UnitRequests, ledger.UnitUSD}).Draw(t, "unit"),
	}
})

func TestExhaustedAgainstReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &exhaustedWalk{clock: newHand(), plain: map[SpentBudget]plainSpent{}}
		w.Exhausted = NewExhausted(rapid.IntRange(1, 6).Draw(t, "most"), w.clock.now)
		for range rapid.IntRange(50, 200).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"remember", "remember", "remember", "forget", "wait", "ask"}).Draw(t, "step") {
			case "remember":
				w.remember(t)
			case "forget":
				budget := spentBudgets.Draw(t, "budget")
				w.Forget(budget)
				delete(w.plain, budget)
			case "wait":
				w.clock.passed += time.Duration(rapid.IntRange(0, 20).Draw(t, "s")) * time.Second
				maps.DeleteFunc(w.plain, func(_ SpentBudget, p plainSpent) bool { return p.until <= w.clock.passed })
			case "ask":
				w.ask(t)
			}
			require.LessOrEqual(t, len(w.known), w.most)
			require.Len(t, w.resets, len(w.known))
		}
	})
}

func (w *exhaustedWalk) remember(t *rapid.T) {
	budget, used := spentBudgets.Draw(t, "budget"), rapid.Int64Range(0, 10).Draw(t, "used")
	w.nth++ // no two reset at the same instant, so it is clear which one is dropped
	resets := time.Duration(rapid.IntRange(0, 30).Draw(t, "resets"))*time.Second + w.nth
	until := w.clock.passed + resets
	if resets < time.Second {
		resets, until = 0, plainNever
	}
	w.Remember(budget, used, resets)
	w.plain[budget] = plainSpent{used, until}
	if len(w.plain) <= w.most {
		return
	}
	drop := slices.MinFunc(slices.Collect(maps.Keys(w.plain)), func(a, b SpentBudget) int {
		return cmp.Compare(w.plain[a].until, w.plain[b].until)
	})
	for budget, p := range w.plain {
		if p.until == w.plain[drop].until && w.known[budget] == nil {
			drop = budget // of those that never reset any may go
			break
		}
	}
	delete(w.plain, drop)
}

func (w *exhaustedWalk) ask(t *rapid.T) {
	budget, limit, need := spentBudgets.Draw(t, "budget"), rapid.Int64Range(0, 12).Draw(t, "limit"), rapid.Int64Range(0, 5).Draw(t, "need")
	used, resets, refused := w.Refuses(budget, limit, need)
	p, known := w.plain[budget]
	require.Equal(t, known && p.used+need > limit, refused)
	switch {
	case !refused:
		p = plainSpent{}
		fallthrough
	case p.until == plainNever:
		require.Zero(t, resets)
	default:
		require.Equal(t, p.until-w.clock.passed, resets)
	}
	require.Equal(t, p.used, used)
}

// A million subjects that used up their budgets leave the heap as bounded as a thousand.
func TestExhaustedWithAMillionSubjects(t *testing.T) {
	e := NewExhausted(4096, newHand().now)
	before := heapInUse()
	for i := range 1_000_000 {
		e.Remember(SpentBudget{Subject: fmt.Sprint("user:shop/user-", i), Period: ledger.PeriodDay, Unit: ledger.UnitUSD}, 100, time.Duration(i+1)*time.Millisecond)
	}
	grown := heapInUse() - before
	t.Logf("%d budgets, %.1f MB", len(e.known), float64(grown)/1e6)
	require.Len(t, e.known, 4096)
	require.Less(t, grown, int64(2<<20))
	for i, want := range map[int]bool{999_999: true, 1_000_000 - 4096: true, 1_000_000 - 4097: false} {
		_, _, refused := e.Refuses(SpentBudget{Subject: fmt.Sprint("user:shop/user-", i), Period: ledger.PeriodDay, Unit: ledger.UnitUSD}, 100, 1)
		require.Equal(t, want, refused, "the one that resets soonest is dropped")
	}
}

// For the race detector.
func TestExhaustedUnderConcurrency(t *testing.T) {
	t.Parallel()
	e := NewExhausted(8, time.Now)
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := range 2000 {
				budget := appDay
				budget.Subject = fmt.Sprint((i * w) % 16)
				switch i % 4 {
				case 0:
					e.Forget(budget)
				case 1:
					e.Remember(budget, 100, time.Duration(i)*time.Microsecond)
				default:
					e.Refuses(budget, 100, 1)
				}
			}
			e.Clear()
		})
	}
	workers.Wait()
	require.Empty(t, e.known)
	require.Zero(t, e.size.Load())
}

func BenchmarkExhausted(b *testing.B) {
	b.Run("empty", func(b *testing.B) {
		e := NewExhausted(4096, time.Now)
		b.ReportAllocs()
		for b.Loop() {
			e.Forget(appDay)
		}
	})
	b.Run("full", func(b *testing.B) {
		e := NewExhausted(4096, time.Now)
		for i := range 4096 {
			e.Remember(SpentBudget{Subject: fmt.Sprint(i)}, 100, time.Hour)
		}
		e.Remember(appDay, 100, 0)
		b.ReportAllocs()
		for b.Loop() {
			e.Refuses(appDay, 100, 1)
		}
	})
}
