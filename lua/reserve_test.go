package lua

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
)

var (
	appTotal   = ledger.Counter{Tier: ledger.TierApp, Family: "app", Subject: "app:a", Period: ledger.PeriodTotal}
	planTotal  = ledger.Counter{Tier: ledger.TierPlan, Family: "plan", Subject: "plan:free", Period: ledger.PeriodTotal}
	requestLog = ledger.Rate{
		Tier: ledger.TierApp, Limit: "rpm", Subject: "app:a", Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitRequests,
	}
	tokenLog = ledger.Rate{
		Tier: ledger.TierApp, Limit: "tpm", Subject: "app:a", Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitTokens,
	}
	tokenBucket = ledger.Rate{
		Tier: ledger.TierApp, Limit: "tps", Subject: "app:a", Algorithm: ledger.AlgorithmTokenBucket, Unit: ledger.UnitTokens,
	}
	tokenWindow = ledger.Rate{
		Tier: ledger.TierPlan, Limit: "tph", Subject: "plan:free", Algorithm: ledger.AlgorithmFixedWindow, Unit: ledger.UnitTokens,
	}
	tokenSliding = ledger.Rate{
		Tier: ledger.TierApp, Limit: "tpd", Subject: "app:a", Algorithm: ledger.AlgorithmSlidingCounter, Unit: ledger.UnitTokens,
	}
)

// month is a window so long that a test seldom runs while it turns over.
const month = 30 * 24 * time.Hour

// fullCall meets every kind of state: two counters, and each kind of rate.
func fullCall(id string) *ReserveCall {
	return &ReserveCall{
		ID: id, App: "a", Generation: generation, TTL: time.Minute,
		Need:     ledger.Amounts{Requests: 1, Tokens: 10, NanoUSD: 100},
		Counters: []ledger.Counter{appTotal, planTotal},
		Budgets:  []Budget{{Counter: 0, Unit: ledger.UnitRequests, Limit: 100}, {Counter: 1, Unit: ledger.UnitUSD, Limit: 100_000}},
		Rates: []Rate{
			{Rate: requestLog, Amount: 100, Window: time.Minute},
			{Rate: tokenLog, Amount: 1000, Window: time.Minute},
			{Rate: tokenBucket, Amount: 1000, Window: time.Minute, Burst: 1000},
			{Rate: tokenWindow, Amount: 1000, Window: month},
			{Rate: tokenSliding, Amount: 1000, Window: month},
			{Rate: appInFlight, Amount: 100},
			{Rate: providerInFlight, Amount: 100},
		},
	}
}

func TestRefusalWritesNothing(t *testing.T) {
	t.Parallel()
	refuse := map[string]func(*ReserveCall){
		"budget":           func(c *ReserveCall) { c.Budgets[1].Limit = 199 },
		"limit 0":          func(c *ReserveCall) { c.Budgets[0].Limit = 0 },
		"log of requests":  func(c *ReserveCall) { c.Rates[0].Amount = 1 },
		"log of nothing":   func(c *ReserveCall) { c.Rates[0].Amount = 0 },
		"log of tokens":    func(c *ReserveCall) { c.Rates[1].Amount = 19 },
		"bucket":           func(c *ReserveCall) { c.Rates[2].Burst = 19; c.Rates[2].Amount = 1 },
		"fixed window":     func(c *ReserveCall) { c.Rates[3].Amount = 19 },
		"sliding counter":  func(c *ReserveCall) { c.Rates[4].Amount = 19 },
		"in flight":        func(c *ReserveCall) { c.Rates[5].Amount = 1 },
		"soft and hard":    func(c *ReserveCall) { c.Rates[3].Amount, c.Rates[3].Soft, c.Rates[6].Amount = 1, true, 1 },
		"need above burst": func(c *ReserveCall) { c.Need.Tokens = 1001; c.Rates[1].Amount = math.MaxInt32 },
		"everything at once": func(c *ReserveCall) {
			c.Budgets[1].Limit, c.Rates[0].Amount, c.Rates[1].Amount, c.Rates[2].Burst = 0, 0, 0, 0
		},
	}
	for name, change := range refuse {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t).open("a")
			require.Equal(t, StatusAllowed, s.reserve(fullCall("first")).Status)
			before := s.dump()
			c := fullCall("second")
			change(c)
			d := s.reserve(c)
			require.Equal(t, StatusRefused, d.Status)
			require.Equal(t, before, s.dump())
			for _, r := range d.Rates {
				require.True(t, r.Fits == (r.Wait == 0), "%+v", r)
				require.GreaterOrEqual(t, r.Reset, time.Duration(0))
			}
		})
	}
}

func TestAllowedWritesEverythingWithATimeToLive(t *testing.T) {
	t.Parallel()
	stack.AwayFromMidnight(t, time.UTC)
	s := newStore(t).open("a")
	c := fullCall("r")
	day := ledger.Calendar{}.Window(ledger.PeriodDay, time.Now())
	c.Counters = append(c.Counters, ledger.Counter{Tier: ledger.TierKey, Subject: "key:k", Period: ledger.PeriodDay, Window: day})
	d := s.reserve(c)
	require.Equal(t, StatusAllowed, d.Status)
	require.WithinDuration(t, time.Now(), d.Now, time.Minute)
	s.requireTTLs()
	ttl := s.redis.PTTL(t.Context(), counterKey("a", &c.Counters[2])).Val()
	require.InDelta(t, (day.End.Sub(d.Now) + windowGrace).Milliseconds(), ttl.Milliseconds(), 60_000, "a day outlives its end by the grace")
	require.Len(t, s.keys("*"), 2+3+1+1+8, "marks, counters, record, deadlines, rates")
}

func TestNeedEqualToTheLimitFits(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	c := fullCall("r")
	c.Budgets = []Budget{{Counter: 0, Unit: ledger.UnitRequests, Limit: 1}, {Counter: 0, Unit: ledger.UnitTokens, Limit: 10}, {Counter: 1, Unit: ledger.UnitUSD, Limit: 100}}
	c.Rates = []Rate{{Rate: requestLog, Amount: 1, Window: time.Minute}, {Rate: tokenLog, Amount: 10, Window: time.Minute}, {Rate: tokenBucket, Amount: 1, Window: time.Minute, Burst: 10}}
	require.Equal(t, StatusAllowed, s.reserve(c).Status)
	c.ID, c.Need = "again", ledger.Amounts{Requests: 1}
	d := s.reserve(c)
	for i, fits := range []bool{false, true, true} {
		require.Equal(t, fits, d.Budgets[i].Fits)
		require.Equal(t, fits, d.Rates[i].Fits)
	}
}

// A need or a held amount beyond 15 digits must not pass through a double on any field, whether a budget looks at it or not.
func TestHeldIsExactInEveryUnit(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{1<<53 - 1, 1 << 53, 1<<53 + 1, 1_000_000_000_000_001, math.MaxInt64/2 - 1} {
		s := newStore(t).open("a")
		c := &ReserveCall{App: "a", Generation: generation, TTL: time.Minute, Counters: []ledger.Counter{appTotal}}
		for field, need := range []ledger.Amounts{{Requests: n, NanoUSD: 1}, {Tokens: ledger.Tokens(n)}, {NanoUSD: ledger.NanoUSD(n), Requests: 7}} {
			c.ID, c.Need = fmt.Sprint(field), need
			require.Equal(t, StatusAllowed, s.reserve(c).Status)
		}
		held, err := s.redis.HMGet(t.Context(), counterKey("a", &appTotal), "held_requests", "held_tokens", "held_nanousd").Result()
		require.NoError(t, err)
		require.Equal(t, []any{fmt.Sprint(n + 7), fmt.Sprint(n), fmt.Sprint(n + 1)}, held)
	}
}

func TestOverflowIsAnErrorAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	c := fullCall("first")
	c.Budgets, c.Rates = nil, nil
	c.Need.NanoUSD = math.MaxInt64
	require.Equal(t, StatusAllowed, s.reserve(c).Status)
	before := s.dump()
	c.ID, c.Need.NanoUSD = "second", 1
	_, err := s.Scripts.Reserve(t.Context(), c)
	require.ErrorContains(t, err, "overflow")
	require.False(t, Unknown(err))
	require.Equal(t, before, s.dump())
}

func TestFullMemoryIsAnErrorAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	s := connectStore(t, stack.NewRedis(t).URL(0)).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("r")).Status)
	before := s.dump()
	require.NoError(t, s.redis.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := s.Scripts.Reserve(t.Context(), fullCall("other"))
	require.ErrorContains(t, err, "OOM")
	require.False(t, Unknown(err))
	_, err = s.Scripts.Settle(t.Context(), "a", nil, nil, []Ending{{ReservationID: "r", Counters: fullCall("r").Counters}})
	require.ErrorContains(t, err, "OOM")
	require.NoError(t, s.redis.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.Equal(t, before, s.dump())
	require.Equal(t, StatusHeld, s.reserve(fullCall("r")).Status)
}

func TestCallsThatCannotBeJudged(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	for name, change := range map[string]func(*ReserveCall){
		"negative need":             func(c *ReserveCall) { c.Need.Tokens = -1 },
		"unknown unit":              func(c *ReserveCall) { c.Budgets[0].Unit = "apples" },
		"no such counter":           func(c *ReserveCall) { c.Budgets[0].Counter = 2 },
		"rate in dollars":           func(c *ReserveCall) { c.Rates[1].Unit = ledger.UnitUSD },
		"no window":                 func(c *ReserveCall) { c.Rates[0].Window = 0 },
		"bucket without refill":     func(c *ReserveCall) { c.Rates[2].Amount = 0 },
		"burst beyond arithmetic":   func(c *ReserveCall) { c.Rates[2].Burst, c.Rates[2].Amount, c.Rates[2].Window = 1<<40, 1, 24*time.Hour },
		"several at once in a log":  func(c *ReserveCall) { c.Need.Requests, c.Rates = 2, c.Rates[:1] },
		"several at once in flight": func(c *ReserveCall) { c.Need.Requests, c.Rates = 0, c.Rates[5:] },
		"tokens in flight":          func(c *ReserveCall) { c.Rates[5].Unit = ledger.UnitTokens },
		"no such algorithm":         func(c *ReserveCall) { c.Rates[0].Algorithm = "leaky" },
		"no window to slide":        func(c *ReserveCall) { c.Rates[4].Window = time.Nanosecond },
	} {
		c := fullCall("r")
		change(c)
		_, err := s.Scripts.Reserve(t.Context(), c)
		require.ErrorIs(t, err, ErrCall, name)
		require.False(t, Unknown(err), name)
	}
}

func TestWindowEdges(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	now := time.Now().UTC().Truncate(time.Millisecond)
	for name, row := range map[string]struct {
		start, end time.Duration
		want       Status
	}{
		"over":          {-2 * time.Hour, -time.Hour, StatusStaleWindow},
		"just over":     {-time.Hour, 0, StatusStaleWindow},
		"not yet begun": {time.Hour, 2 * time.Hour, StatusStaleWindow},
		"running":       {-time.Hour, time.Hour, StatusAllowed},
		"just begun":    {0, time.Hour, StatusAllowed},
	} {
		s.waitUntil(now)
		c := fullCall(name)
		c.Counters[0].Period, c.Counters[0].Window = ledger.PeriodDay, ledger.Window{Start: now.Add(row.start), End: now.Add(row.end)}
		c.Counters[0].Subject = "app:" + name
		require.Equal(t, row.want, s.reserve(c).Status, name)
	}
}

// The edge itself, walked over by Redis's clock: a window that ends at an instant is over at it, and the next has begun.
func TestWindowsMeetWithoutGapOrOverlap(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	// The first edge may be over before anything was asked.
	for lead := 50 * time.Millisecond; s.walkOver(time.Now().UTC().Truncate(time.Millisecond).Add(lead)) == 0; lead *= 2 {
		require.Less(t, lead, patience)
	}
}

// walkOver asks for windows that meet at the edge until it is over, and returns how many of the first one were admitted.
func (s *store) walkOver(edge time.Time) int {
	t := s.t
	t.Helper()
	c := &ReserveCall{App: "a", Generation: generation, TTL: time.Minute, Counters: []ledger.Counter{appTotal}}
	c.Counters[0].Period = ledger.PeriodDay
	sides := map[bool]int{}
	for i := 0; sides[false] < 20; i++ {
		for before, window := range map[bool]ledger.Window{
			true: {Start: edge.Add(-time.Hour), End: edge}, false: {Start: edge, End: edge.Add(time.Hour)},
		} {
			c.ID, c.Counters[0].Window = fmt.Sprint(edge.UnixMilli(), i, before), window
			d := s.reserve(c)
			want := StatusStaleWindow
			if before == d.Now.Before(edge) {
				want = StatusAllowed
				sides[before]++
			}
			require.Equal(t, want, d.Status, "%s, edge %s", d.Now, edge)
		}
	}
	return sides[true]
}

func TestConcurrentReservesStopAtTheLimit(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		budget Budget
		want   int64
	}{
		"300 requests":                     {Budget{Counter: 0, Unit: ledger.UnitRequests, Limit: 300}, 300},
		"dollars for exactly 100":          {Budget{Counter: 0, Unit: ledger.UnitUSD, Limit: 100 * 12_345_678_901}, 100},
		"a nano-dollar short of the 100th": {Budget{Counter: 0, Unit: ledger.UnitUSD, Limit: 100*12_345_678_901 - 1}, 99},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t).open("a")
			var allowed, refused atomic.Int64
			var wg sync.WaitGroup
			for g := range 64 {
				wg.Go(func() {
					for i := range 12 {
						d, err := s.Scripts.Reserve(t.Context(), &ReserveCall{
							ID: fmt.Sprint(g, "-", i), App: "a", Generation: generation, TTL: time.Minute,
							Need:     ledger.Amounts{Requests: 1, NanoUSD: 12_345_678_901},
							Counters: []ledger.Counter{planTotal}, Budgets: []Budget{row.budget},
						})
						switch {
						case err != nil:
							t.Error(err)
						case d.Status == StatusAllowed:
							allowed.Add(1)
						case d.Status == StatusRefused:
							refused.Add(1)
						default:
							t.Errorf("status %d", d.Status)
						}
					}
				})
			}
			wg.Wait()
			require.Equal(t, row.want, allowed.Load())
			require.Equal(t, 64*12-row.want, refused.Load())
			held, err := s.redis.HGet(t.Context(), counterKey("a", &planTotal), "held_requests").Int64()
			require.NoError(t, err)
			require.Equal(t, row.want, held)
		})
	}
}

func TestMarkReadsTheGeneration(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, ok, err := s.Mark(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, ok)
	s.open("a")
	got, ok, err := s.Mark(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, generation, got)
	ttl, err := s.redis.PTTL(t.Context(), markKey("a")).Result()
	require.NoError(t, err)
	require.Less(t, ttl, totalTTL, "a mark must be gone before a counter can be")
	require.NoError(t, s.redis.Do(t.Context(), "LPUSH", markKey("b"), "x").Err())
	_, _, err = s.Mark(t.Context(), "b")
	require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), err)
}

// What Redis was told of without judging it does not pass for what it judged, not even when it is asked about later.
func TestReserveTellsWhatItDidNotJudge(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	c := fullCall("r")
	require.Equal(t, SettleResult{Applied: true, Registered: 1}, s.settle([]Open{opened(c)}))
	require.Equal(t, StatusForced, s.reserve(c).Status)
	require.Equal(t, SettleResult{Applied: true, Ended: 1}, s.settle(nil, ending(c, 10)))
	require.Equal(t, StatusEnded, s.reserve(c).Status)
}
