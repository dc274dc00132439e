package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

// tokenCall needs tokens under one rate of the app a.
func tokenCall(id string, tokens ledger.Tokens, rate Rate) *ReserveCall {
	return &ReserveCall{
		ID: id, App: "a", Generation: generation, TTL: time.Minute, Rates: []Rate{rate},
		Need: ledger.Amounts{Requests: 1, Tokens: tokens},
	}
}

func (s *store) state(rate *ledger.Rate) string {
	s.t.Helper()
	text, _ := rateKeys("a", rate)
	state, err := s.redis.Get(s.t.Context(), text).Result()
	require.NoError(s.t, err)
	return state
}

func (s *store) setState(rate *ledger.Rate, format string, values ...any) {
	s.t.Helper()
	text, _ := rateKeys("a", rate)
	require.NoError(s.t, s.redis.Set(s.t.Context(), text, fmt.Sprintf(format, values...), time.Hour).Err())
}

// The windows of one length begin at another instant for each tier and subject, on every gateway at the same.
func TestFixedWindowsDoNotTurnOverAtOnce(t *testing.T) {
	t.Parallel()
	const minute = 60_000_000
	require.EqualValues(t, 47_743_628, windowOffset(&ledger.Rate{Tier: ledger.TierKey, Subject: "key:k_1"}, minute), "for ever")
	require.Equal(t, windowOffset(&ledger.Rate{Tier: ledger.TierKey, Subject: "key:k_1"}, minute),
		windowOffset(&ledger.Rate{Tier: ledger.TierKey, Subject: "key:k_1", Limit: "rpm", Unit: ledger.UnitTokens}, minute))
	tenths := map[int64]int{}
	for i := range 1000 {
		offset := windowOffset(&ledger.Rate{Tier: ledger.TierKey, Subject: fmt.Sprint("key:k_", i)}, minute)
		require.GreaterOrEqual(t, offset, int64(0))
		require.Less(t, offset, int64(minute))
		tenths[offset/(minute/10)]++
	}
	for i := range int64(10) {
		require.InDelta(t, 100, tenths[i], 50, "%d", i)
	}
}

// Every microsecond belongs to one fixed window, and what it shows is what was admitted since its start.
func TestTheEdgeOfAFixedWindowIsExact(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	rate := Rate{Rate: tokenWindow, Amount: 1 << 40, Window: 1009 * time.Microsecond}
	offset := windowOffset(&rate.Rate, 1009)
	windows, used, turns := int64(0), int64(0), 0
	for i := 0; turns < 300; i++ {
		d := s.reserve(tokenCall(fmt.Sprint(i), 7, rate))
		if now := (d.Now.UnixMicro() - offset) / 1009; now != windows {
			windows, used = now, 0
			turns++
		}
		require.Equal(t, used, d.Rates[0].Used)
		used += 7
		left := (windows+1)*1009 + offset - d.Now.UnixMicro()
		require.Equal(t, fmt.Sprintf("%d 1009 %d", windows*1009+offset, used), s.state(&rate.Rate))
		if d.Rates[0].Used > 0 {
			require.EqualValues(t, left, d.Rates[0].Reset.Microseconds())
		}
	}
}

// Redis's clock went back: a state of later windows is in place. The windows that lie before it are not opened again, and what
// is admitted counts where the later window counts.
func TestAClockThatStepsBackOpensNoWindowTwice(t *testing.T) {
	t.Parallel()
	t.Run("fixed window", func(t *testing.T) {
		t.Parallel()
		s := newStore(t).open("a")
		rate := Rate{Rate: tokenWindow, Amount: 100, Window: time.Hour}
		require.Equal(t, StatusAllowed, s.reserve(tokenCall("first", 10, rate)).Status)
		start := number(t, strings.Fields(s.state(&rate.Rate))[0]) + 3*time.Hour.Microseconds()
		s.setState(&rate.Rate, "%d %d 90", start, time.Hour.Microseconds())
		d := s.reserve(tokenCall("fits", 10, rate))
		require.Equal(t, StatusAllowed, d.Status)
		require.EqualValues(t, 90, d.Rates[0].Used)
		d = s.reserve(tokenCall("full", 1, rate))
		require.Equal(t, StatusRefused, d.Status)
		require.Equal(t, start+time.Hour.Microseconds(), d.Now.Add(d.Rates[0].Wait).UnixMicro(), "the end of the later window")
		require.Equal(t, fmt.Sprintf("%d %d 100", start, time.Hour.Microseconds()), s.state(&rate.Rate))
	})
	t.Run("sliding counter", func(t *testing.T) {
		t.Parallel()
		s := newStore(t).open("a")
		rate := Rate{Rate: tokenSliding, Amount: 100, Window: time.Hour}
		step := time.Hour.Microseconds() / 20
		newest := time.Now().UnixMicro()/step + 5
		// The last of these leaves the window as the later sub-window sees it; one more to the left would count.
		s.setState(&rate.Rate, "%d %d 50 0 0 0 0 20 0 0 0 0 0 0 0 0 0 0 0 0 0 0 15 7000", step, newest)
		d := s.reserve(tokenCall("fits", 15, rate))
		require.Equal(t, StatusAllowed, d.Status)
		require.EqualValues(t, 85, d.Rates[0].Used)
		d = s.reserve(tokenCall("full", 1, rate))
		require.Equal(t, StatusRefused, d.Status)
		require.Equal(t, (newest-20+1)*step-1+time.Hour.Microseconds(), d.Now.Add(d.Rates[0].Wait).UnixMicro())
		require.Equal(t, fmt.Sprintf("%d %d 65 0 0 0 0 20 0 0 0 0 0 0 0 0 0 0 0 0 0 0 15", step, newest), s.state(&rate.Rate))
	})
	t.Run("bucket", func(t *testing.T) {
		t.Parallel()
		s := newStore(t).open("a")
		rate := Rate{Rate: tokenBucket, Amount: 3600, Window: time.Hour, Burst: 100}
		later := time.Now().Add(time.Hour).UnixMicro()
		s.setState(&rate.Rate, "%d %d 1000000 1", 90*1_000_000, later)
		require.Equal(t, StatusAllowed, s.reserve(tokenCall("fits", 10, rate)).Status)
		require.Equal(t, StatusRefused, s.reserve(tokenCall("full", 1, rate)).Status, "nothing drains before the later instant")
		require.Equal(t, fmt.Sprintf("%d %d 1000000 1", 100*1_000_000, later), s.state(&rate.Rate))
	})
}

// A sub-window counts whole up to its last microsecond. Its counts are powers of two, so the figure tells which were in.
func TestTheEdgeOfASlidingCounterIsExact(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	edges, late := 0, int64(0) // how late Redis was asked the last time, in microseconds
	for i := 0; edges < 20 && i < 200_000; i++ {
		// A window that is no multiple of twenty: its sub-windows together are longer than it.
		rate := Rate{Rate: tokenSliding, Amount: 1, Window: time.Duration(1981+i%40) * time.Microsecond}
		length := rate.Window.Microseconds()
		step := slidingStep(length)
		began := time.Now().UnixMicro()
		newest := (began+late)/step + 2 - int64(i%23)
		counts := make([]string, 40)
		for k := range counts {
			counts[k] = fmt.Sprint(int64(1) << k)
		}
		s.setState(&rate.Rate, "%d %d %s", step, newest, strings.Join(counts, " "))
		d := s.reserve(tokenCall(fmt.Sprint(i), 1, rate))
		late = max(0, d.Now.UnixMicro()-began-200)
		at := max(d.Now.UnixMicro(), newest*step)
		want, reset, wait := int64(0), int64(0), length
		for k := range counts {
			// It overlaps (now - window, now], were it by a single microsecond.
			last := (newest-int64(k)+1)*step - 1
			if last > at-length {
				want += 1 << k
				if reset == 0 {
					reset = last + length - d.Now.UnixMicro()
				}
				if last-1 == at-length || last == at-length+1 {
					edges++
				}
			}
		}
		require.Equal(t, want, d.Rates[0].Used)
		require.EqualValues(t, reset, d.Rates[0].Reset.Microseconds())
		if want == 0 {
			wait = 0
		} else {
			// A need of the whole limit fits when the newest has left.
			wait = reset
		}
		require.EqualValues(t, wait, d.Rates[0].Wait.Microseconds())
	}
	require.Equal(t, 20, edges, "edges met to the microsecond")
}

// The window of a limit is changed while it is in use: nothing that is younger than both windows is forgotten.
func TestASlidingCounterKeepsItsCountsWhenItsWindowChanges(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		rate := Rate{Rate: tokenSliding, Amount: 1 << 50}
		rate.Limit = fmt.Sprint(n)
		window := rapid.SampledFrom([]time.Duration{
			time.Minute, time.Hour, 24 * time.Hour, 90 * time.Second, 61_234_567 * time.Microsecond, 20 * time.Microsecond,
		})
		rate.Window = window.Draw(t, "first")
		step := slidingStep(rate.Window.Microseconds())
		now := time.Now().UnixMicro()
		newest := now / step
		var counts []string
		type entry struct{ at, units int64 } // the latest instant it can have come at
		var entries []entry
		for k := range rapid.Int64Range(0, 20).Draw(t, "more") + 1 {
			units := rapid.Int64Range(0, 1<<45).Draw(t, "units")
			counts = append(counts, fmt.Sprint(units))
			entries = append(entries, entry{min((newest-k+1)*step-1, now), units})
		}
		s.setState(&rate.Rate, "%d %d %s", step, newest, strings.Join(counts, " "))
		shortest := rate.Window
		for i := range 3 {
			rate.Window = window.Draw(t, "next")
			shortest = min(shortest, rate.Window)
			d := s.reserve(tokenCall(fmt.Sprint(n, "-", i), 3, rate))
			require.Equal(t, StatusAllowed, d.Status)
			var least, all int64
			for _, e := range entries {
				all += e.units
				if d.Now.UnixMicro()-e.at < shortest.Microseconds() {
					least += e.units
				}
			}
			require.GreaterOrEqual(t, d.Rates[0].Used, least)
			require.LessOrEqual(t, d.Rates[0].Used, all)
			entries = append(entries, entry{d.Now.UnixMicro(), 3})
			require.LessOrEqual(t, len(strings.Fields(s.state(&rate.Rate))), 2+22, "memory stays constant")
		}
	})
}

func TestAFixedWindowKeepsItsUseWhenItsLimitChanges(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	rate := Rate{Rate: tokenWindow, Amount: 100, Window: month}
	require.Equal(t, StatusAllowed, s.reserve(tokenCall("r", 90, rate)).Status)
	rate.Amount = 95
	d := s.reserve(tokenCall("lowered", 10, rate))
	require.Equal(t, StatusRefused, d.Status)
	require.EqualValues(t, 90, d.Rates[0].Used)
	rate.Amount, rate.Window = 1000, 12*month
	require.EqualValues(t, 90, s.reserve(tokenCall("longer", 10, rate)).Rates[0].Used)
}

// The correction goes to the window that the reservation was charged to, and nowhere when that has gone.
func TestCorrectionOfWindowsFindsItsWindow(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	fixed, sliding := Rate{Rate: tokenWindow, Amount: 1000, Window: month}, Rate{Rate: tokenSliding, Amount: 1000, Window: time.Hour}
	step, length := time.Hour.Microseconds()/20, month.Microseconds()
	for spent, want := range map[ledger.Tokens]int64{0: 50, 40: 90, 500: 550} {
		c := tokenCall(fmt.Sprint("r", spent), 40, fixed)
		c.Rates = append(c.Rates, sliding)
		require.Equal(t, StatusAllowed, s.reserve(c).Status)
		at := number(t, strings.Fields(s.record(c.ID))[4])

		// The same window, with 50 of others.
		start := number(t, strings.Fields(s.state(&fixed.Rate))[0])
		s.setState(&fixed.Rate, "%d %d 90", start, length)
		s.setState(&sliding.Rate, "%d %d 7 0 90 5", step, at/step+2)
		require.EqualValues(t, 1, s.settle(nil, ending(c, spent)).Ended)
		require.Equal(t, fmt.Sprintf("%d %d %d", start, length, want), s.state(&fixed.Rate))
		require.Equal(t, fmt.Sprintf("%d %d 7 0 %d 5", step, at/step+2, want), s.state(&sliding.Rate))
		s.requireTTLs()
		require.NoError(t, s.redis.FlushDB(t.Context()).Err())
		s.open("a")
	}
	for name, states := range map[string][2][3]int64{
		"gone":            {{1, length, 5}, {step, 25, 5}},
		"a clock ahead":   {{-1, length, 5}, {step, -1, 5}},
		"less than it is": {{0, length, 5}, {step, 0, 5}},
	} {
		c := tokenCall(name, 40, fixed)
		c.Rates = append(c.Rates, sliding)
		require.Equal(t, StatusAllowed, s.reserve(c).Status)
		at := number(t, strings.Fields(s.record(c.ID))[4])
		start := number(t, strings.Fields(s.state(&fixed.Rate))[0])
		s.setState(&fixed.Rate, "%d %d %d", start+states[0][0]*length, length, states[0][2])
		s.setState(&sliding.Rate, "%d %d %d", step, at/step+states[1][1], states[1][2])
		before := []string{s.state(&fixed.Rate), s.state(&sliding.Rate)}
		require.EqualValues(t, 1, s.settle(nil, ending(c, 0)).Ended)
		if name == "less than it is" { // which cannot happen
			before = []string{fmt.Sprintf("%d %d 0", start, length), fmt.Sprintf("%d %d 0", step, at/step)}
		}
		require.Equal(t, before, []string{s.state(&fixed.Rate), s.state(&sliding.Rate)}, name)
		require.NoError(t, s.redis.FlushDB(t.Context()).Err())
		s.open("a")
	}
}

// A reservation from before a loss corrects no window, nor does one whose record is of before the time was kept.
func TestCorrectionOfWindowsNeedsATimeAfterTheLoss(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{true, false} {
		s := newStore(t).open("a")
		fixed, sliding := Rate{Rate: tokenWindow, Amount: 1000, Window: month}, Rate{Rate: tokenSliding, Amount: 1000, Window: time.Hour}
		c := tokenCall("r", 40, fixed)
		c.Rates = append(c.Rates, sliding, Rate{Rate: tokenLog, Amount: 1000, Window: time.Hour})
		d := s.reserve(c)
		require.Equal(t, StatusAllowed, d.Status)
		if old {
			fields := strings.Fields(s.record("r"))
			require.NoError(t, s.redis.Set(t.Context(), reservationKey("a", "r"), strings.Join(fields[:4], " "), time.Hour).Err())
		} else {
			open := opened(c)
			open.ReservedAt = d.Now
			require.NoError(t, s.Scripts.Rebuild(t.Context(), RebuildCall{Slot: "a", Generation: generation, Open: []Open{open}, Active: true}))
			require.NoError(t, s.Scripts.Rebuild(t.Context(), RebuildCall{Slot: SharedSlot, Generation: generation, Active: true}))
		}
		before := []string{s.state(&fixed.Rate), s.state(&sliding.Rate)}
		require.EqualValues(t, 1, s.settle(nil, ending(c, 3)).Ended)
		require.Equal(t, before, []string{s.state(&fixed.Rate), s.state(&sliding.Rate)})
		require.Equal(t, "3", s.state(&tokenLog), "a log knows its entries by name")
	}
}

func (s *store) record(id string) string {
	s.t.Helper()
	record, err := s.redis.Get(s.t.Context(), reservationKey("a", id)).Result()
	require.NoError(s.t, err)
	return record
}
