package lua

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

// admission is one admitted request, by Redis's clock.
type admission struct {
	at     time.Time
	amount int64
}

// mostWithin is what any window of the length admitted: the sum over each that ends at an admission. Windows are half-open, (end -
// length, end].
func mostWithin(admitted []admission, length time.Duration) *big.Int {
	largest, inside, first := new(big.Int), new(big.Int), 0
	for _, a := range admitted {
		inside.Add(inside, big.NewInt(a.amount))
		for ; a.at.Sub(admitted[first].at) >= length; first++ {
			inside.Sub(inside, big.NewInt(admitted[first].amount))
		}
		if inside.Cmp(largest) > 0 {
			largest.Set(inside)
		}
	}
	return largest
}

// bound is what a window of the length may admit: the limit, and of a bucket its burst with what drains in the window.
func bound(rate Rate, length time.Duration) *big.Int {
	if rate.Algorithm != ledger.AlgorithmTokenBucket {
		return big.NewInt(rate.Amount)
	}
	drained := new(big.Int).Mul(big.NewInt(rate.Amount), big.NewInt(length.Microseconds()))
	return drained.Add(drained.Div(drained, big.NewInt(rate.Window.Microseconds())), big.NewInt(rate.Burst))
}

var algorithms = []ledger.Algorithm{
	ledger.AlgorithmTokenBucket, ledger.AlgorithmSlidingLog, ledger.AlgorithmSlidingCounter, ledger.AlgorithmFixedWindow,
}

// drawRate is a rate over some milliseconds, or a few microseconds more, whose amounts are small or as large as may be.
func drawRate(t *rapid.T, algorithm ledger.Algorithm, name string) (rate Rate, needs []int64) {
	rate = Rate{Rate: ledger.Rate{Tier: ledger.TierApp, Limit: name, Subject: "app:a", Algorithm: algorithm, Unit: ledger.UnitRequests}}
	rate.Window = time.Duration(rapid.Int64Range(1500, 15_000).Draw(t, "window")) * time.Microsecond
	if rapid.Bool().Draw(t, "requests") {
		rate.Amount, rate.Burst = rapid.Int64Range(1, 6).Draw(t, "amount"), rapid.Int64Range(1, 6).Draw(t, "burst")
		return rate, []int64{1}
	}
	rate.Unit = ledger.UnitTokens
	rate.Amount = rapid.OneOf(rapid.Int64Range(1, 2000), rapid.Int64Range(most-5, most)).Draw(t, "amount")
	room := rate.Amount
	if algorithm == ledger.AlgorithmTokenBucket {
		rate.Burst = rapid.Int64Range(1, min(rate.Amount, most-1)).Draw(t, "burst")
		room = rate.Burst
	}
	needs = rapid.SliceOfN(rapid.OneOf(
		rapid.Int64Range(0, room), rapid.Int64Range(max(0, room/3-2), room/3+2), rapid.Int64Range(room-1, min(room+1, most)),
	), 0, 3).Draw(t, "needs")
	needs = append([]int64{room}, needs...)
	return rate, needs
}

// nextWindow is the start of the next fixed window of the rate.
func nextWindow(rate Rate, now time.Time) time.Time {
	us := rate.Window.Microseconds()
	offset := windowOffset(&rate.Rate, us)
	return time.UnixMicro(((now.UnixMicro()-offset)/us+1)*us + offset)
}

// flood asks without pause from the instant on, for a while, and gives what was admitted.
func (s *store) flood(rate Rate, needs []int64, from time.Time, length time.Duration) []admission {
	s.waitUntil(from)
	var admitted []admission
	for i := 0; ; i++ {
		c := &ReserveCall{
			ID: fmt.Sprint(rate.Limit, "/", from.UnixMicro(), "/", i), App: "a", Generation: generation, TTL: time.Minute, Rates: []Rate{rate},
			Need: ledger.Amounts{Requests: 1},
		}
		if rate.Unit == ledger.UnitTokens {
			c.Need.Tokens = ledger.Tokens(needs[i%len(needs)])
		}
		d := s.reserve(c)
		if d.Status == StatusAllowed {
			admitted = append(admitted, admission{d.Now, c.Need.In(rate.Unit)})
		}
		if d.Now.After(from.Add(length)) {
			return admitted
		}
	}
}

// TestB7NoWindowAdmitsMoreThanItsLimit floods rates over random spans around the edges of windows: whatever window of the
// stated length is looked at, it admitted at most the limit. Only the plain fixed window is held to less, its own windows: it
// admits up to twice its limit around an edge, which the next test shows.
func TestB7NoWindowAdmitsMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		t.Run(string(algorithm), func(t *testing.T) {
			t.Parallel()
			s := newStore(t).open("a")
			n := 0
			rapid.Check(t, func(t *rapid.T) {
				n++
				rate, needs := drawRate(t, algorithm, fmt.Sprint(n))
				lead := time.Duration(rapid.Int64Range(0, rate.Window.Microseconds()).Draw(t, "lead")) * time.Microsecond
				now, err := s.redis.Time(s.t.Context()).Result()
				require.NoError(t, err)
				length := rate.Window * time.Duration(rapid.IntRange(1, 4).Draw(t, "windows"))
				admitted := s.flood(rate, needs, nextWindow(rate, now).Add(-lead), length)
				require.NotEmpty(t, admitted)
				if algorithm == ledger.AlgorithmFixedWindow {
					requireEachWindow(t, rate, admitted)
					return
				}
				for _, length := range []time.Duration{rate.Window / 3, rate.Window, 2*rate.Window + time.Microsecond} {
					if length > rate.Window && algorithm != ledger.AlgorithmTokenBucket {
						continue
					}
					require.LessOrEqual(t, mostWithin(admitted, length).Cmp(bound(rate, length)), 0, "%+v in %s: %v", rate, length, admitted)
				}
			})
		})
	}
}

// requireEachWindow holds a fixed window to its own windows, and any span of its length to two of them.
func requireEachWindow(t require.TestingT, rate Rate, admitted []admission) {
	sums := map[time.Time]*big.Int{}
	for _, a := range admitted {
		end := nextWindow(rate, a.at)
		if sums[end] == nil {
			sums[end] = new(big.Int)
		}
		sums[end].Add(sums[end], big.NewInt(a.amount))
	}
	for end, sum := range sums {
		require.LessOrEqual(t, sum.Cmp(big.NewInt(rate.Amount)), 0, "%s until %s", sum, end)
	}
	twice := new(big.Int).Mul(big.NewInt(2), big.NewInt(rate.Amount))
	require.LessOrEqual(t, mostWithin(admitted, rate.Window).Cmp(twice), 0)
}

// The same flood just before and just after an edge: a fixed window admits its limit on both sides, twice its limit within one
// length of it. None of the others does.
func TestB7OnlyTheFixedWindowDoublesAtItsEdge(t *testing.T) {
	t.Parallel()
	const limit = 40
	for _, algorithm := range algorithms {
		for _, unit := range []ledger.Unit{ledger.UnitRequests, ledger.UnitTokens} {
			t.Run(fmt.Sprint(algorithm, " of ", unit), func(t *testing.T) {
				t.Parallel()
				s := newStore(t).open("a")
				rate := Rate{
					Rate:   ledger.Rate{Tier: ledger.TierApp, Limit: "edge", Subject: "app:a", Algorithm: algorithm, Unit: unit},
					Amount: limit, Window: 150 * time.Millisecond,
				}
				if algorithm == ledger.AlgorithmTokenBucket {
					rate.Burst = limit / 4
				}
				// A busy machine may be too slow to fill both sides within one length, or to be admitted at all; then within a longer one.
				doubled, admittedOnce, rounds := false, 0, 1
				if algorithm != ledger.AlgorithmFixedWindow {
					rounds = 4
				}
				for i := 0; i < 10 && !doubled && (i < rounds || admittedOnce < limit/4); i++ {
					if i >= rounds {
						rate.Limit, rate.Window = fmt.Sprint("edge", i), 2*rate.Window
					}
					now, err := s.redis.Time(t.Context()).Result()
					require.NoError(t, err)
					// Idle for a window first, so that every algorithm has all its room.
					edge := nextWindow(rate, nextWindow(rate, now))
					admitted := s.flood(rate, []int64{1}, edge.Add(-rate.Window/3), rate.Window*2/3)
					within := mostWithin(admitted, rate.Window)
					if algorithm != ledger.AlgorithmFixedWindow {
						require.LessOrEqual(t, within.Cmp(bound(rate, rate.Window)), 0, "%s", within)
						admittedOnce = max(admittedOnce, len(admitted))
						continue
					}
					doubled = within.Int64() == 2*limit
					before := slices.IndexFunc(admitted, func(a admission) bool { return !a.at.Before(edge) })
					require.LessOrEqual(t, before, limit)
				}
				require.Equal(t, algorithm == ledger.AlgorithmFixedWindow, doubled)
				require.True(t, doubled || admittedOnce >= limit/4, "there was room")
			})
		}
	}
}

// edges are instants at which calendar windows turn: ends of days, months and years, and the days on which clocks change, where
// a day has 23 or 25 hours, begins at 01:00, or its midnight comes twice.
var edges = map[string]struct {
	zone   string
	edge   string // the first instant of the new window, as the zone's clocks show it
	period ledger.Period
	before time.Duration // length of the window before the edge
	after  time.Duration
}{
	"end of a day":                {"UTC", "2026-11-30T00:00:00Z", ledger.PeriodDay, 24 * time.Hour, 24 * time.Hour},
	"end of a month":              {"Asia/Kathmandu", "2026-12-01T00:00:00+05:45", ledger.PeriodMonth, 30 * 24 * time.Hour, 31 * 24 * time.Hour},
	"end of February":             {"UTC", "2028-03-01T00:00:00Z", ledger.PeriodMonth, 29 * 24 * time.Hour, 31 * 24 * time.Hour},
	"end of a year":               {"America/New_York", "2027-01-01T00:00:00-05:00", ledger.PeriodMonth, 31 * 24 * time.Hour, 31 * 24 * time.Hour},
	"end of a week":               {"Europe/Berlin", "2026-10-26T00:00:00+01:00", ledger.PeriodWeek, (7*24 + 1) * time.Hour, 7 * 24 * time.Hour},
	"before the clocks go on":     {"Europe/Berlin", "2026-03-29T00:00:00+01:00", ledger.PeriodDay, 24 * time.Hour, 23 * time.Hour},
	"after the clocks went on":    {"Europe/Berlin", "2026-03-30T00:00:00+02:00", ledger.PeriodDay, 23 * time.Hour, 24 * time.Hour},
	"after the clocks went back":  {"Europe/Berlin", "2026-10-26T00:00:00+01:00", ledger.PeriodDay, 25 * time.Hour, 24 * time.Hour},
	"a month with a longer day":   {"Europe/Berlin", "2026-11-01T00:00:00+01:00", ledger.PeriodMonth, (31*24 + 1) * time.Hour, 30 * 24 * time.Hour},
	"a day that begins at 01:00":  {"Africa/Cairo", "2024-04-26T01:00:00+03:00", ledger.PeriodDay, 24 * time.Hour, 23 * time.Hour},
	"a day that ends twice":       {"Africa/Cairo", "2024-11-01T00:00:00+02:00", ledger.PeriodDay, 25 * time.Hour, 24 * time.Hour},
	"a day that was left out":     {"Pacific/Apia", "2011-12-31T00:00:00+14:00", ledger.PeriodDay, 24 * time.Hour, 24 * time.Hour},
	"half an hour of clocks back": {"Australia/Lord_Howe", "2026-04-06T00:00:00+10:30", ledger.PeriodDay, 24*time.Hour + 30*time.Minute, 24 * time.Hour},
}

// TestB7CalendarWindows moves the windows on both sides of an edge to the present and floods them over it: each admits its
// limit, to the last unit of amounts around 2^53 and 2^63, and no instant is in both or in none.
func TestB7CalendarWindows(t *testing.T) {
	t.Parallel()
	for name, row := range edges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(row.zone)
			require.NoError(t, err)
			edge, err := time.Parse(time.RFC3339, row.edge)
			require.NoError(t, err)
			calendar := ledger.Calendar{Location: zone, WeekStart: time.Monday}
			windows := [2]ledger.Window{calendar.Window(row.period, edge.Add(-time.Microsecond)), calendar.Window(row.period, edge)}
			require.True(t, windows[0].End.Equal(edge), "%s", windows[0].End)
			require.True(t, windows[1].Start.Equal(edge), "%s", windows[1].Start)
			require.Equal(t, row.before, windows[0].End.Sub(windows[0].Start))
			require.Equal(t, row.after, windows[1].End.Sub(windows[1].Start))
			for _, need := range []ledger.NanoUSD{1, 1<<53 - 1, 1<<53 + 1, 1 << 60} {
				floodCalendar(t, row.period, windows, edge, need)
			}
		})
	}
}

func floodCalendar(t *testing.T, period ledger.Period, windows [2]ledger.Window, edge time.Time, need ledger.NanoUSD) {
	t.Helper()
	s := newStore(t).open("a")
	now, err := s.redis.Time(t.Context()).Result()
	require.NoError(t, err)
	moved := now.Truncate(time.Millisecond).Add(25 * time.Millisecond)
	for i := range windows {
		windows[i] = ledger.Window{Start: windows[i].Start.Add(moved.Sub(edge)), End: windows[i].End.Add(moved.Sub(edge))}
	}
	const fit = 5 // requests of the need, and all but one unit of a sixth
	limit := fit*int64(need) + int64(need) - 1
	var sums [2]int64
	asked := [2]int{}
	for i := 0; asked[1] < 20; i++ {
		for side, w := range windows {
			c := &ReserveCall{
				ID: fmt.Sprint(i, "-", side), App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1, NanoUSD: need},
				Counters: []ledger.Counter{{Tier: ledger.TierApp, Family: "app", Subject: "app:a", Period: period, Window: w}},
				Budgets:  []Budget{{Counter: 0, Unit: ledger.UnitUSD, Limit: limit}},
			}
			d := s.reserve(c)
			if inside := (side == 0) == d.Now.Before(moved); !inside {
				require.Equal(t, StatusStaleWindow, d.Status)
				continue
			}
			asked[side]++
			require.Equal(t, asked[side] <= fit, d.Status == StatusAllowed)
			require.Equal(t, sums[side], d.Budgets[0].Used+d.Budgets[0].Held)
			if d.Status == StatusAllowed {
				sums[side] += int64(need)
			}
		}
	}
	require.Equal(t, min(int64(asked[0]), fit)*int64(need), sums[0])
	require.Equal(t, fit*int64(need), sums[1])
}
