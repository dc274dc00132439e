package ledgertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

func appRate(name string, algorithm ledger.Algorithm, unit ledger.Unit) ledger.Rate {
	return ledger.Rate{Tier: ledger.TierApp, Limit: name, Subject: "app:a", Algorithm: algorithm, Unit: unit}
}

var (
	appLog      = appRate("tpm", ledger.AlgorithmSlidingLog, ledger.UnitTokens)
	appBucket   = appRate("tps", ledger.AlgorithmTokenBucket, ledger.UnitTokens)
	appWindow   = appRate("tph", ledger.AlgorithmFixedWindow, ledger.UnitTokens)
	appSliding  = appRate("tpd", ledger.AlgorithmSlidingCounter, ledger.UnitTokens)
	appInFlight = appRate("busy", ledger.AlgorithmConcurrency, ledger.UnitRequests)
)

// of is the four rates of tokens with one limit, over a day. The bucket hardly refills.
func of(limit int64) []Rate {
	return []Rate{
		{Rate: appLog, Amount: limit, Window: 24 * time.Hour},
		{Rate: appBucket, Amount: 1, Window: time.Hour, Burst: limit},
		{Rate: appWindow, Amount: limit, Window: 24 * time.Hour},
		{Rate: appSliding, Amount: limit, Window: 24 * time.Hour},
	}
}

// inFlightUpTo is a concurrency limit.
func inFlightUpTo(most int64) Rate { return Rate{Rate: appInFlight, Amount: most} }

// used is what each rate shows to the next request.
func (d *desk) used(rates []Rate) []int64 {
	c := d.call()
	c.Rates = rates
	var all []int64
	for _, f := range d.Reserve(c).Rates {
		all = append(all, f.Used)
	}
	return all
}

var rateScenarios = map[string]func(t *testing.T, d *desk){
	"rates start idle": func(t *testing.T, d *desk) {
		d.open()
		c := d.call()
		c.Rates = append(of(10), inFlightUpTo(1))
		require.Equal(t, []RateFigures{{Fits: true}, {Fits: true}, {Fits: true}, {Fits: true}, {Fits: true}}, d.Reserve(c).Rates)
	},
	"rates start as if used up where they may be lost": func(t *testing.T, d *desk) {
		d.open()
		d.Rebuild(Rebuild{Slot: "a", Generation: generation, Active: true})
		c := d.call()
		c.Rates = append(of(100), inFlightUpTo(100))
		got := d.Reserve(c)
		require.Equal(t, Refused, got.Outcome)
		// The log and the sliding counter wait for their window, the bucket for ten of its units, the fixed window for its end,
		// those in flight for the life of a lease.
		for i, longest := range []time.Duration{24 * time.Hour, 10 * time.Hour, 24 * time.Hour, 24 * time.Hour, LeaseTTL} {
			f := got.Rates[i]
			require.False(t, f.Fits)
			require.EqualValues(t, 100, f.Used)
			require.LessOrEqual(t, f.Wait, longest)
			require.Positive(t, f.Wait)
			if i != 2 {
				require.Greater(t, f.Wait, longest-longest/2)
			}
		}
	},
	"rates take the difference": func(t *testing.T, d *desk) {
		for _, spent := range []ledger.Tokens{0, 4, 25} {
			d.open()
			c := d.call()
			c.Rates = of(100)
			for i := range c.Rates {
				c.Rates[i].Limit = fmt.Sprint(c.Rates[i].Limit, spent)
			}
			require.Equal(t, Allowed, d.Reserve(c).Outcome)
			s := Settlement{App: "a", Endings: []Ending{c.ended(ledger.Amounts{Requests: 1, Tokens: spent})}}
			require.EqualValues(t, 1, d.Settle(s).Ended)
			require.EqualValues(t, 0, d.Settle(s).Ended)
			n := int64(spent)
			require.Equal(t, []int64{n, n, n, n}, d.used(c.Rates))
		}
	},
	"a rebuilt reservation is corrected, too": func(t *testing.T, d *desk) {
		d.open()
		c := d.call()
		c.Rates = of(100)
		require.Equal(t, Allowed, d.Reserve(c).Outcome)
		open := c.opened()
		open.ReservedAt = time.Now().UTC()
		d.Rebuild(Rebuild{Slot: "a", Generation: generation, Opens: []Open{open}})
		require.EqualValues(t, 1, d.Settle(Settlement{App: "a", Endings: []Ending{c.ended(ledger.Amounts{Tokens: 3})}}).Ended)
		require.Equal(t, []int64{3, 3, 3, 3}, d.used(c.Rates))
	},
	"what was never charged is not corrected": func(t *testing.T, d *desk) {
		d.open()
		charged, forced := d.call(), d.call()
		charged.Rates, forced.Rates = of(100), of(100)
		require.Equal(t, Allowed, d.Reserve(charged).Outcome)
		d.Settle(Settlement{App: "a", Opens: []Open{forced.opened()}})
		require.EqualValues(t, 1, d.Settle(Settlement{App: "a", Endings: []Ending{forced.ended(ledger.Amounts{})}}).Ended)
		require.Equal(t, []int64{10, 10, 10, 10}, d.used(charged.Rates))
	},
	"a correction does not revive what was lost": func(t *testing.T, d *desk) {
		d.open()
		c := d.call()
		c.Rates = of(100)
		require.Equal(t, Allowed, d.Reserve(c).Outcome)
		open := c.opened()
		open.ReservedAt = time.Now().UTC()
		d.Rebuild(Rebuild{Slot: "a", Generation: generation, Opens: []Open{open}, Active: true})
		require.EqualValues(t, 1, d.Settle(Settlement{App: "a", Endings: []Ending{c.ended(ledger.Amounts{})}}).Ended)
		require.Equal(t, []int64{100, 100, 100, 100}, d.used(c.Rates), "what was lost may have been all of it")
	},
	"a soft budget refuses nobody and holds": func(t *testing.T, d *desk) {
		d.open()
		for i := range int64(3) {
			c := d.call(Budget{Counter: 0, Unit: ledger.UnitRequests, Limit: 1, Soft: true}, Budget{Counter: 0, Unit: ledger.UnitRequests, Limit: 3})
			require.Equal(t, Decision{Outcome: Allowed, Budgets: []BudgetFigures{{i < 1, 0, i}, {true, 0, i}}}, d.Reserve(c))
		}
		c := d.call(Budget{Counter: 1, Unit: ledger.UnitUSD, Limit: 1, Soft: true}, Budget{Counter: 0, Unit: ledger.UnitRequests, Limit: 3})
		require.Equal(t, Decision{Outcome: Refused, Budgets: []BudgetFigures{{Held: 300}, {Held: 3}}}, d.Reserve(c), "the other is hard")
	},
	"a soft rate refuses nobody and stays within its limit": func(t *testing.T, d *desk) {
		d.open()
		rates := append(of(25), inFlightUpTo(2))
		for i := range rates {
			rates[i].Soft = true
		}
		for i := range int64(4) {
			c := d.call()
			c.Rates = rates
			got := d.Reserve(c)
			require.Equal(t, Allowed, got.Outcome)
			for j, f := range got.Rates {
				require.Equal(t, i < 2, f.Fits)
				require.Equal(t, i >= 2, f.Wait > 0)
				require.Equal(t, min(i, 2)*[]int64{10, 10, 10, 10, 1}[j], f.Used)
			}
		}
		rates[4].Soft = false
		c := d.call()
		c.Rates = rates
		require.Equal(t, Refused, d.Reserve(c).Outcome, "one is hard")
	},
	"requests in flight end with their reservation": func(t *testing.T, d *desk) {
		d.open()
		var calls []Reserve
		for range 3 {
			c := d.call()
			c.Rates = []Rate{inFlightUpTo(2)}
			calls = append(calls, c)
			got := d.Reserve(c)
			require.Equal(t, len(calls) <= 2, got.Outcome == Allowed)
		}
		end := func(c Reserve) { d.Settle(Settlement{App: "a", Endings: []Ending{c.ended(c.Need)}}) }
		end(calls[2])
		require.Equal(t, []int64{2}, d.used([]Rate{inFlightUpTo(2)}), "the refused one had none")
		end(calls[0])
		end(calls[0])
		require.Equal(t, []int64{1}, d.used([]Rate{inFlightUpTo(0)}))
		d.Rebuild(Rebuild{Slot: "a", Generation: generation})
		end(calls[1])
		require.Equal(t, []int64{0}, d.used([]Rate{inFlightUpTo(2)}), "also where the reservation is not known any more")
	},
}
