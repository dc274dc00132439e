package admission

import (
	"sync/atomic"
	"time"
)

// Clock tells Redis's time from its last answer and what has passed here since, which a wall clock that is set does not change.
// It is safe for concurrent use.
type Clock struct {
	local func() time.Time
	best  atomic.Pointer[sample]
}

// sample is Redis's time as one answer showed it.
type sample struct {
	redis time.Time     // when the answer came
	taken time.Time     // the same instant, local
	width time.Duration // how long the answer took: redis is right to half of it
}

// at is Redis's time at a local instant.
func (s *sample) at(local time.Time) time.Time { return s.redis.Add(local.Sub(s.taken)) }

// bestFor is for how long a sample stands against wider ones: clocks drift.
const bestFor = 10 * time.Second

// NewClock makes a clock that agrees with local until the first Observe.
func NewClock(local func() time.Time) *Clock { return &Clock{local: local} }

// Now is Redis's time as well as it is known, in UTC.
func (c *Clock) Now() time.Time {
	now := c.local()
	if best := c.best.Load(); best != nil {
		now = best.at(now)
	}
	return now.UTC()
}

// Observe calibrates the clock: redis was read in a call that took so long and has just ended. A slow answer says less than the
// quick one before it, unless the two cannot both be right, because a clock was set.
func (c *Clock) Observe(redis time.Time, took time.Duration) {
	seen := &sample{redis: redis.Add(took / 2), taken: c.local(), width: took}
	if best := c.best.Load(); best != nil && took > best.width && seen.taken.Sub(best.taken) < bestFor {
		if apart := seen.redis.Sub(best.at(seen.taken)).Abs(); apart <= (took+best.width)/2 {
			return
		}
	}
	c.best.Store(seen)
}
