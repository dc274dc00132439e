package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A slow answer does not move the clock by what it was slow; a clock that was set does, at once.
func TestClockBelievesTheQuickestAnswer(t *testing.T) {
	t.Parallel()
	local := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := NewClock(func() time.Time { return local })
	answer := func(ahead, there, back time.Duration) {
		redis := local.Add(there + ahead)
		local = local.Add(there + back)
		c.Observe(redis, there+back)
	}
	ahead := func() time.Duration { return c.Now().Sub(local) }

	answer(time.Second, time.Millisecond, time.Millisecond)
	require.Equal(t, time.Second, ahead())
	answer(time.Second, 80*time.Millisecond, 0)
	answer(time.Second, 0, 80*time.Millisecond)
	require.Equal(t, time.Second, ahead(), "what the slow ones show is less exact")
	answer(time.Second+time.Millisecond/2, time.Millisecond/2, time.Millisecond/2)
	require.Equal(t, time.Second+time.Millisecond/2, ahead(), "a quicker one is more exact")

	answer(-time.Hour, 40*time.Millisecond, 40*time.Millisecond)
	require.Equal(t, -time.Hour, ahead(), "one of the clocks was set")
	local = local.Add(bestFor)
	answer(-time.Hour, 50*time.Millisecond, 30*time.Millisecond)
	require.Equal(t, -time.Hour+10*time.Millisecond, ahead(), "an old sample gives way: clocks drift")
}
