package admission

import (
	"container/heap"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"tollgate/ledger"
)

// Exhausted remembers budgets that had no room when Redis was last asked, so that while it cannot be asked nobody is handed
// the local allowance of a budget that is known to be used up.
//
// What is remembered is how much was used, which within a window never becomes less, except by a correction of the ledger: a
// request is refused exactly when what was used and what it needs are more than the limit. So a raised limit helps at once, and
// a small request may still fit where a large one did not. It is forgotten when the window ends, or by Forget when a decision
// of Redis showed room again.
//
// Memory is bounded: when it is full, the budget that resets soonest is dropped, one that never resets last. That can admit no
// more than the local allowance does.
//
// Time is taken from the monotonic clock. An Exhausted is safe for concurrent use.
type Exhausted struct {
	clock *stopwatch
	size  atomic.Int64 // of resets: what is asked on every decision costs nothing while there is nothing to know

	mu     sync.RWMutex // guards what follows
	known  map[SpentBudget]*spent
	resets resetOrder
	most   int
}

// SpentBudget names one unit of one counter within its window.
type SpentBudget struct {
	Subject string
	Period  ledger.Period
	Unit    ledger.Unit
}

type spent struct {
	budget SpentBudget
	used   int64
	until  time.Duration // on the stopwatch
	place  int           // in the order of resets
}

// never is when a budget that does not reset is forgotten by itself.
const never = time.Duration(math.MaxInt64)

// NewExhausted makes an empty memory of at most so many budgets.
func NewExhausted(most int, now func() time.Time) *Exhausted {
	return &Exhausted{clock: newStopwatch(now), known: map[SpentBudget]*spent{}, most: most}
}

// Remember notes that Redis has just refused a request because of the budget, of which so much was used, and whose window
// ends after resets; 0 when it never does.
func (e *Exhausted) Remember(budget SpentBudget, used int64, resets time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.elapsed()
	e.expireLocked(now)
	until := never
	if resets > 0 && resets < never-now {
		until = now + resets
	}
	if s := e.known[budget]; s != nil {
		s.used, s.until = used, until
		heap.Fix(&e.resets, s.place)
		return
	}
	s := &spent{budget: budget, used: used, until: until}
	e.known[budget] = s
	heap.Push(&e.resets, s)
	if len(e.resets) > e.most {
		e.dropLocked(0)
	}
	e.size.Store(int64(len(e.resets)))
}

// Refuses reports whether the budget is known to have no room for need under the limit: how much of it was used, and after
// what time it resets, 0 for never.
func (e *Exhausted) Refuses(budget SpentBudget, limit, need int64) (used int64, resets time.Duration, refused bool) {
	if e.size.Load() == 0 {
		return 0, 0, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.elapsed()
	e.expireLocked(now)
	s := e.known[budget]
	switch {
	case s == nil || s.used <= limit-need:
		return 0, 0, false
	case s.until == never:
		return s.used, 0, true
	default:
		return s.used, s.until - now, true
	}
}

// Forget is told of every budget that had room when Redis was asked.
func (e *Exhausted) Forget(budget SpentBudget) {
	if e.size.Load() == 0 {
		return
	}
	e.mu.RLock()
	known := e.known[budget] != nil
	e.mu.RUnlock()
	if !known {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.known[budget]; s != nil {
		e.dropLocked(s.place)
	}
}

// Clear forgets everything: windows of another time zone end at other times.
func (e *Exhausted) Clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.known)
	e.resets = nil
	e.size.Store(0)
}

func (e *Exhausted) expireLocked(now time.Duration) {
	for len(e.resets) > 0 && e.resets[0].until <= now {
		e.dropLocked(0)
	}
}

func (e *Exhausted) dropLocked(place int) {
	s, ok := heap.Remove(&e.resets, place).(*spent)
	if ok {
		delete(e.known, s.budget)
	}
	e.size.Store(int64(len(e.resets)))
}

// resetOrder is a heap: the budget that resets soonest comes first.
type resetOrder []*spent

func (r resetOrder) Len() int           { return len(r) }
func (r resetOrder) Less(i, j int) bool { return r[i].until < r[j].until }

func (r resetOrder) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].place, r[j].place = i, j
}

// Push is for package heap.
func (r *resetOrder) Push(x any) {
	if s, ok := x.(*spent); ok {
		s.place = len(*r)
		*r = append(*r, s)
	}
}

// Pop is for package heap.
func (r *resetOrder) Pop() any {
	last := len(*r) - 1
	s := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return s
}
