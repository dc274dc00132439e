package lua

import (
	"cmp"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

// An entry leaves a log exactly one window after it came: among entries at every microsecond, the figure tells where the edge
// was.
func TestTheEdgeOfALogIsExact(t *testing.T) {
	t.Parallel()
	for _, identity := range []ledger.Rate{requestLog, tokenLog} {
		s := newStore(t).open("a")
		const length = 100_000
		first := time.Now().UnixMicro()
		sum, log := rateKeys("a", &identity)
		for from := 0; from < length; from += 1000 { // one script for all would shut others out of Redis
			require.NoError(t, s.redis.Eval(t.Context(), `
				for i = ARGV[2], ARGV[2] + 999 do redis.call('ZADD', KEYS[1], ARGV[1] + i, string.format('%d:1', i)) end
				redis.call('SET', KEYS[2], ARGV[3])
				return 1`, []string{log, cmp.Or(sum, "unused")}, first, from, length).Err())
		}
		c := &ReserveCall{App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1, Tokens: 1}}
		for hits, i := 0, 0; hits < 5; i++ {
			now, err := s.redis.Time(t.Context()).Result()
			require.NoError(t, err)
			window := now.Sub(time.UnixMicro(first + length/4))
			c.ID, c.Rates = fmt.Sprint(i), []Rate{{Rate: identity, Amount: 0, Window: window}}
			d := s.reserve(c)
			require.Equal(t, StatusRefused, d.Status)
			gone := d.Now.Add(-window).UnixMicro() - first + 1
			if gone > 0 && gone < length {
				require.Equal(t, length-gone, d.Rates[0].Used)
				hits++
			}
			require.Less(t, i, 100)
		}
	}
}

// A wait is a promise: at its end the same request fits, a microsecond before it did not.
func TestWaitIsKept(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]Rate{
		"log of requests": {Rate: requestLog, Amount: 1, Window: 30 * time.Millisecond},
		"log of tokens":   {Rate: tokenLog, Amount: 100, Window: 30 * time.Millisecond},
		"bucket":          {Rate: tokenBucket, Amount: 100, Window: 30 * time.Millisecond, Burst: 100},
		"fixed window":    {Rate: tokenWindow, Amount: 100, Window: 30 * time.Millisecond},
		"sliding counter": {Rate: tokenSliding, Amount: 100, Window: 30_007 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t).open("a")
			c := &ReserveCall{ID: "first", App: "a", Generation: generation, TTL: time.Minute, Rates: []Rate{rate}}
			c.Need = ledger.Amounts{Requests: 1, Tokens: 80}
			require.Equal(t, StatusAllowed, s.reserve(c).Status)
			for i := range 5 {
				c.ID = fmt.Sprint(i)
				d := s.reserve(c)
				fits := d.Now.Add(d.Rates[0].Wait)
				for d.Status == StatusRefused {
					require.True(t, d.Now.Before(fits), "refused at %s, promised for %s", d.Now, fits)
					require.WithinDuration(t, fits, d.Now.Add(d.Rates[0].Wait), 0, "the promise does not move")
					d = s.reserve(c)
				}
				require.False(t, d.Now.Before(fits), "admitted at %s, promised for %s", d.Now, fits)
			}
		})
	}
}

// More entries than the script looks through: the wait is then the whole window, never too short.
func TestWaitOfALongLogIsBounded(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	rate := Rate{Rate: tokenLog, Amount: 1200, Window: time.Hour}
	c := &ReserveCall{App: "a", Generation: generation, TTL: time.Minute, Rates: []Rate{rate}, Need: ledger.Amounts{Tokens: 1}}
	var first, hundredth time.Time
	for i := range 1200 {
		c.ID = fmt.Sprint(i)
		d := s.reserve(c)
		require.Equal(t, StatusAllowed, d.Status)
		if i == 0 {
			first = d.Now
		}
		if i == 149 {
			hundredth = d.Now
		}
	}
	c.ID = "x"
	for need, want := range map[ledger.Tokens]time.Time{1: first, 150: hundredth} {
		c.Need.Tokens = need
		d := s.reserve(c)
		require.Equal(t, want.Add(time.Hour), d.Now.Add(d.Rates[0].Wait))
	}
	c.Need.Tokens = 1200
	require.Equal(t, time.Hour, s.reserve(c).Rates[0].Wait)
}

func TestABucketKeepsItsDebtWhenItsLimitChanges(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	c := &ReserveCall{ID: "r", App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Tokens: 90}}
	c.Rates = []Rate{{Rate: tokenBucket, Amount: 100, Window: time.Hour, Burst: 100}}
	require.Equal(t, StatusAllowed, s.reserve(c).Status)
	for i, rate := range []Rate{
		{Rate: tokenBucket, Amount: 7, Window: 24 * time.Hour, Burst: 100}, {Rate: tokenBucket, Amount: 1000, Window: 24 * time.Hour, Burst: 5000}, {Rate: tokenBucket, Amount: 99, Window: time.Hour, Burst: 95},
	} {
		c.ID, c.Need.Tokens, c.Rates = fmt.Sprint(i), ledger.Tokens(rate.Burst-89), []Rate{rate}
		d := s.reserve(c)
		require.EqualValues(t, 90, d.Rates[0].Used)
		require.Equal(t, StatusRefused, d.Status)
	}
	c.Need.Tokens = 5
	require.Equal(t, StatusAllowed, s.reserve(c).Status)
	require.EqualValues(t, 95, s.reserve(&ReserveCall{
		ID: "last", App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Tokens: 90}, Rates: c.Rates,
	}).Rates[0].Used)
}

// An hour of a need far above the limit stays a time that Go can hold.
func TestWaitsAreNeverNegative(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	c := &ReserveCall{ID: "r", App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Tokens: 1 << 52}}
	c.Rates = []Rate{{Rate: tokenBucket, Amount: 1, Window: 24 * time.Hour, Burst: 1}, {Rate: tokenLog, Amount: 1, Window: 24 * time.Hour}}
	for _, r := range s.reserve(c).Rates {
		require.Positive(t, r.Wait)
	}
}

// However a bucket's figures are scaled, it never drains faster than its limit says, and at most a little slower.
func TestBucketScale(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(1, 1_000_000_000_000).Draw(t, "amount")
		window := rapid.SampledFrom([]time.Duration{
			time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour, 31 * 24 * time.Hour,
		}).Draw(t, "window")
		burst := rapid.Int64Range(0, amount).Draw(t, "burst")
		perUnit, drain := bucketScale(amount, window, burst)
		require.Positive(t, perUnit)
		require.Positive(t, drain)
		require.LessOrEqual(t, perUnit, most/(burst+1), "a full bucket fits a double")
		speed, limit := big.NewRat(drain, perUnit), big.NewRat(amount, window.Microseconds())
		require.LessOrEqual(t, speed.Cmp(limit), 0, "drains too fast")
		require.GreaterOrEqual(t, speed.Cmp(limit.Mul(limit, big.NewRat(999, 1000))), 0, "drains 0.1 % too slowly")
	})
}
