package admission

import (
	"sync/atomic"
	"time"
)

// Clock tells Redis's time from the local clock and the last known difference. It is safe for concurrent use.
type Clock struct {
	local  func() time.Time
	offset atomic.Int64 // nanoseconds to add to local
}

// NewClock makes a clock that agrees with local until the first Observe.
func NewClock(local func() time.Time) *Clock { return &Clock{local: local} }

// Now is Redis's time as well as it is known, in UTC.
func (c *Clock) Now() time.Time { return c.local().Add(time.Duration(c.offset.Load())).UTC() }

// Observe calibrates the clock: redis was read between sent and now, both local.
func (c *Clock) Observe(redis, sent time.Time) {
	received := c.local()
	middle := sent.Add(received.Sub(sent) / 2)
	c.offset.Store(int64(redis.Sub(middle)))
}
