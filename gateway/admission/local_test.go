package admission

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// hand is a clock that is set by hand. Its readings are monotonic ones, as those of time.Now.
type hand struct {
	begin  time.Time
	passed time.Duration
	wall   time.Duration // by how much the wall clock was stepped
}

func newHand() *hand { return &hand{begin: time.Now()} }

func (h *hand) now() time.Time { return stepped(h.begin.Add(h.passed), h.wall) }

// stepped moves the wall clock's reading in t and leaves the monotonic one, which no function of package time does: the
// seconds since 1885 are the bits above the lower 30 of the first word.
func stepped(t time.Time, by time.Duration) time.Time {
	const secondsShift = 30
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << secondsShift
	return t
}

func TestSteppedClock(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, by := range []time.Duration{time.Hour, -30 * 24 * time.Hour} {
		after := stepped(at.Add(time.Second), by)
		require.Equal(t, time.Second, after.Sub(at), "monotonic")
		require.Equal(t, time.Second+by, after.Round(0).Sub(at.Round(0)), "wall")
	}
}

func limits(requests, tokens int64) policy.Local {
	return policy.Local{RequestsPerSecond: requests, TokensPerMinute: tokens}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	clock := newHand()
	l := NewLocal(clock.now)
	allow := func(app string, tokens ledger.Tokens, ok bool, wait time.Duration) {
		t.Helper()
		gotOK, gotWait := l.Allow(limits(2, 1000), app, tokens)
		require.Equal(t, ok, gotOK)
		require.Equal(t, wait, gotWait)
	}
	clock.passed = 50 * time.Millisecond
	allow("a", 100, true, 0)
	allow("a", 100, true, 0)
	allow("a", 100, false, 1050*time.Millisecond) // the tenth of a second in which they came counts whole
	allow("b", 100, true, 0)                      // another app has its own
	clock.passed = 1099 * time.Millisecond
	allow("a", 100, false, time.Millisecond)
	clock.passed = 1100 * time.Millisecond
	allow("a", 801, false, 63*time.Second-clock.passed)
	allow("a", 800, true, 0)
	allow("a", 0, true, 0)
	clock.passed = 3 * time.Second
	allow("a", 1, false, 60*time.Second)
	allow("a", 0, true, 0)
	clock.passed = 5 * time.Second
	allow("a", -5, true, 0)
	allow("a", 1, false, 58*time.Second) // that was no credit
	clock.passed = 63 * time.Second
	allow("a", 1000, true, 0)
}

// What can never be allowed says so: no wait helps, and nothing is taken.
func TestLocalNever(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		limits policy.Local
		tokens ledger.Tokens
	}{
		"no requests":          {limits(0, 1000), 1},
		"no tokens":            {limits(5, 0), 0},
		"nothing":              {limits(0, 0), 0},
		"more than a minute":   {limits(5, 1000), 1001},
		"more than there is":   {limits(5, math.MaxInt64-1), math.MaxInt64},
		"limits without sense": {limits(-1, -1), 0},
	} {
		l := NewLocal(newHand().now)
		ok, wait := l.Allow(row.limits, "a", row.tokens)
		require.False(t, ok, name)
		require.Zero(t, wait, name)
		require.Empty(t, l.apps, name)
	}
	l := NewLocal(newHand().now)
	ok, _ := l.Allow(limits(math.MaxInt64, math.MaxInt64), "a", math.MaxInt64)
	require.True(t, ok)
	ok, wait := l.Allow(limits(math.MaxInt64, math.MaxInt64), "a", math.MaxInt64)
	require.False(t, ok)
	require.Positive(t, wait)
}

// A policy that is pushed binds with the next request, and what was used counts against it.
func TestLocalLimitsChange(t *testing.T) {
	t.Parallel()
	l := NewLocal(newHand().now)
	allowed := func(limits policy.Local) (n int) {
		for range 100 {
			if ok, _ := l.Allow(limits, "a", 10); ok {
				n++
			}
		}
		return n
	}
	require.Equal(t, 5, allowed(limits(5, 1000)))
	require.Equal(t, 3, allowed(limits(8, 1000)), "raised")
	require.Equal(t, 0, allowed(limits(3, 1000)), "lowered below what is used")
	require.Equal(t, 2, allowed(limits(100, 100)), "the tokens bind: 80 of 100 were used")
	_, wait := l.Allow(limits(3, 50), "a", 10)
	require.Equal(t, 63*time.Second, wait)
}

// Steps of the wall clock neither grant nor take anything.
func TestLocalIgnoresTheWallClock(t *testing.T) {
	t.Parallel()
	clock := newHand()
	l := NewLocal(clock.now)
	for _, step := range []time.Duration{time.Hour, -time.Hour, 400 * 24 * time.Hour, -800 * 24 * time.Hour} {
		clock.passed += 2 * time.Minute
		clock.wall = 0
		for i := range 10 {
			ok, _ := l.Allow(limits(5, 1000), "a", 1)
			require.Equal(t, i < 5, ok, "before the step")
		}
		clock.wall = step
		ok, wait := l.Allow(limits(5, 1000), "a", 1)
		require.False(t, ok, "after a step of %s", step)
		require.LessOrEqual(t, wait, 1100*time.Millisecond)
		clock.passed += wait
		ok, _ = l.Allow(limits(5, 1000), "a", 1)
		require.True(t, ok)
	}
}

// A clock without monotonic readings that is set back stops time until it has caught up.
func TestLocalClockGoesBack(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 10, 25, 3, 0, 0, 0, time.UTC)
	l := NewLocal(func() time.Time { return at })
	for range 5 {
		ok, _ := l.Allow(limits(5, 1000), "a", 1)
		require.True(t, ok)
	}
	for _, back := range []time.Duration{time.Second, time.Hour} {
		at = at.Add(-back)
		ok, wait := l.Allow(limits(5, 1000), "a", 1)
		require.False(t, ok)
		require.Positive(t, wait)
	}
}

// Of many at once exactly as many pass as there is room for.
func TestLocalUnderConcurrency(t *testing.T) {
	t.Parallel()
	l := NewLocal(newHand().now)
	var passed [3]atomic.Int64
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range 3000 {
				if ok, _ := l.Allow(limits(100, 1000), fmt.Sprint("app", i%3), 1); ok {
					passed[i%3].Add(1)
				}
			}
		})
	}
	workers.Wait()
	for i := range passed {
		require.EqualValues(t, 100, passed[i].Load())
	}
}

// A million names: memory stays bounded, and no name is handed a spent allowance again, whether it has a record of its own or
// shares one (U40).
func TestLocalWithAMillionApps(t *testing.T) {
	clock := newHand()
	l := NewLocal(clock.now)
	before := heapInUse()
	passed := map[string]int{}
	for i := range 1_000_000 {
		if i%1000 == 0 {
			clock.passed += time.Millisecond // the whole takes a second
		}
		app := fmt.Sprint("app-", i)
		if ok, _ := l.Allow(limits(5, 20_000), app, 1); ok {
			passed["new"]++
		}
		if i%100 == 0 {
			if ok, _ := l.Allow(limits(5, 20_000), "app-0", 1); ok {
				passed["app-0"]++
			}
			if ok, _ := l.Allow(limits(5, 20_000), "app-999999", 1); ok {
				passed["late"]++
			}
		}
	}
	grown := heapInUse() - before
	t.Logf("%d records, %.1f MB, passed %v", len(l.apps), float64(grown)/1e6, passed)
	require.Len(t, l.apps, maxLocalApps)
	require.Less(t, grown, int64(4<<20))
	require.LessOrEqual(t, passed["app-0"], 5)
	require.LessOrEqual(t, passed["late"], 5)
	require.LessOrEqual(t, passed["new"], maxLocalApps+5, "those without a record share one allowance")
	require.Greater(t, passed["new"], maxLocalApps-5)

	// When nothing counts any more, records are reused, also by a name that shared one.
	clock.passed += 64 * time.Second
	for i := range 2 * maxLocalApps {
		if i%10 == 0 {
			clock.passed += 20 * time.Millisecond
		}
		ok, _ := l.Allow(limits(5, 20_000), fmt.Sprint("second-", i), 1)
		require.Equal(t, i < maxLocalApps, ok && l.apps[fmt.Sprint("second-", i)] != nil)
	}
	require.Len(t, l.apps, maxLocalApps)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A record is reused at the first instant at which nothing of it counts, not before; whoever gets it begins with what was used
// of the shared allowance and still counts.
func TestLocalReusesRecords(t *testing.T) {
	t.Parallel()
	clock := newHand()
	l := newLocal(clock.now, 1)
	allow := func(at time.Duration, app string, tokens ledger.Tokens, want bool) {
		t.Helper()
		clock.passed = at
		ok, _ := l.Allow(limits(5, 100), app, tokens)
		require.Equal(t, want, ok)
	}
	allow(0, "a", 100, true)
	allow(40*time.Second, "b", 60, true) // shared
	allow(41*time.Second, "c", 60, false)
	allow(63*time.Second-1, "b", 20, true)
	require.Contains(t, l.apps, "a", "its last part counts until now")
	allow(63*time.Second, "b", 21, false)
	allow(63*time.Second, "b", 20, true)
	require.Contains(t, l.apps, "b")
	allow(63*time.Second, "b", 1, false)
	allow(63*time.Second, "c", 20, true)
	require.NotContains(t, l.apps, "c")
	allow(63*time.Second, "a", 1, false) // shares with c now
}

// A name that is too long to be kept shares an allowance, and a name does not keep the text it is part of.
func TestLocalNames(t *testing.T) {
	t.Parallel()
	l := NewLocal(newHand().now)
	long := strings.Repeat("x", maxLocalName+1)
	for i := range 6 {
		ok, _ := l.Allow(limits(5, 1000), fmt.Sprint(i, long), 1)
		require.Equal(t, i < 5, ok)
	}
	require.Empty(t, l.apps)
	body := strings.Repeat("app", 1000)
	ok, _ := l.Allow(limits(10, 1000), body[:3], 1)
	require.True(t, ok)
	for name := range l.apps {
		require.False(t, unsafe.StringData(body) == unsafe.StringData(name))
	}
}

func BenchmarkLocal(b *testing.B) {
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprint("app-", i)
	}
	for _, row := range []struct {
		name   string
		apps   int
		limits policy.Local
	}{
		{"allowed", 1, limits(math.MaxInt64, math.MaxInt64)},
		{"refused", 1, limits(5, 20_000)},
		{"1000 apps", 1000, limits(5, 20_000)},
		{"100000 apps", len(names), limits(5, 20_000)},
	} {
		b.Run(row.name, func(b *testing.B) {
			l := NewLocal(time.Now)
			var next atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l.Allow(row.limits, names[next.Add(1)%int64(row.apps)], 100)
				}
			})
		})
	}
}
