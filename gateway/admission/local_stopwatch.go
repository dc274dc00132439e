package admission

import (
	"sync/atomic"
	"time"
)

// stopwatch tells how much time has passed since it was made. Where now carries a monotonic reading, as time.Now does, a step
// of the wall clock changes nothing; where it does not, a step backwards stops the stopwatch until the clock has caught up. It
// is safe for concurrent use.
type stopwatch struct {
	now    func() time.Time
	start  time.Time
	latest atomic.Int64 // nanoseconds
}

func newStopwatch(now func() time.Time) *stopwatch { return &stopwatch{now: now, start: now()} }

// elapsed never goes back.
func (s *stopwatch) elapsed() time.Duration {
	e := int64(s.now().Sub(s.start))
	for {
		latest := s.latest.Load()
		if e <= latest {
			return time.Duration(latest)
		}
		if s.latest.CompareAndSwap(latest, e) {
			return time.Duration(e)
		}
	}
}
