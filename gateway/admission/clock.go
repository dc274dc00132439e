package admission

import (
	"sync/atomic"
	"time"
)

// Clock tells Redis's time from the local clock and the last known difference. It is safe for concurrent use.
type Clock struct {
	local func() time.Time
	best  atomic.Pointer[sample]
}

// sample is the difference as one answer showed it.
type sample struct {
	offset time.Duration // to add to local
	width  time.Duration // how long the answer took: the offset is right to half of it
	taken  time.Time     // local
}

// bestFor is for how long a sample stands against wider ones: clocks drift.
const bestFor = 10 * time.Second

// NewClock makes a clock that agrees with local until the first Observe.
func NewClock(local func() time.Time) *Clock {
	c := &Clock{local: local}
	c.best.Store(&sample{})
	return c
}

// Now is Redis's time as well as it is known, in UTC.
func (c *Clock) Now() time.Time { return c.local().Add(c.best.Load().offset).UTC() }

// Observe calibrates the clock: redis was read between sent and now, both local. A slow answer says less than the quick one
// before it, unless the two cannot both be right, because a clock was set.
func (c *Clock) Observe(redis, sent time.Time) {
	received := c.local()
	width := received.Sub(sent)
	seen := &sample{offset: redis.Sub(sent.Add(width / 2)), width: width, taken: received}
	if best := c.best.Load(); !best.taken.IsZero() && width > best.width && received.Sub(best.taken) < bestFor {
		if apart := (seen.offset - best.offset).Abs(); apart <= (width+best.width)/2 {
			return
		}
	}
	c.best.Store(seen)
}
