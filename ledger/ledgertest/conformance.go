package ledgertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// System is an implementation of the limits under test. It judges at its own clock, and fails the test by itself on an error.
type System interface {
	Reserve(c Reserve) Decision
	Settle(s Settlement) Settled
	Rebuild(b Rebuild)
	Counters() map[CounterID]Figures // those that are not all zero
}

// LeaseTTL is the life that systems under Conformance give a lease: none lapses because a test stood still.
const LeaseTTL = time.Hour

// Conformance runs every scenario that any implementation must pass. fresh makes an empty system whose clock shows about the
// real time, and whose leases live for LeaseTTL.
func Conformance(t *testing.T, fresh func(t *testing.T) System) {
	for _, group := range []map[string]func(t *testing.T, d *desk){scenarios, rateScenarios} {
		for name, scenario := range group {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				scenario(t, &desk{System: fresh(t)})
			})
		}
	}
}

// desk is a system with the few calls that scenarios repeat.
type desk struct {
	System
	next int
}

const generation = "g1"

var (
	appTotal      = ledger.Counter{Tier: ledger.TierApp, Family: "app", Subject: "app:a", Period: ledger.PeriodTotal}
	platformTotal = ledger.Counter{Tier: ledger.TierPlatform, Family: "platform", Subject: "platform", Period: ledger.PeriodTotal}
)

func (d *desk) open() {
	d.Rebuild(Rebuild{Slot: "a", Generation: generation})
	d.Rebuild(Rebuild{Slot: Shared, Generation: generation})
}

// call is a request of 1, 10 tokens and 100 nano-dollars on one counter of the app and one of all.
func (d *desk) call(budgets ...Budget) Reserve {
	d.next++
	return Reserve{
		ID: fmt.Sprintf("r%d", d.next), App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1, Tokens: 10, NanoUSD: 100},
		Counters: []ledger.Counter{appTotal, platformTotal}, Budgets: budgets,
	}
}

func (c Reserve) opened() Open {
	return Open{ID: c.ID, App: c.App, Held: c.Need, Counters: c.Counters, Deadline: time.Now().Add(c.TTL)}
}

func (c Reserve) ended(spent ledger.Amounts) Ending {
	e := Ending{ID: c.ID, Counters: c.Counters, Held: c.Need, Spent: spent}
	for _, r := range c.Rates {
		e.Rates = append(e.Rates, r.Rate)
	}
	return e
}

func rows(version int64, used ledger.Amounts) []Row {
	return []Row{{appTotal, used, version}, {platformTotal, used, version}}
}

var scenarios = map[string]func(t *testing.T, d *desk){
	"all or nothing": func(t *testing.T, d *desk) {
		d.open()
		c := d.call(Budget{Counter: 0, Unit: ledger.UnitRequests, Limit: 5}, Budget{Counter: 1, Unit: ledger.UnitUSD, Limit: 99})
		got := d.Reserve(c)
		require.Equal(t, Decision{Outcome: Refused, Budgets: []BudgetFigures{{Fits: true}, {}}}, got)
		require.Empty(t, d.Counters())
		c.Budgets[1].Limit = 100
		require.Equal(t, Allowed, d.Reserve(c).Outcome, "a refused id may ask again")
		require.Equal(t, c.Need, d.Counters()[IDOf("a", platformTotal)].Held)
	},
	"the same id holds once": func(t *testing.T, d *desk) {
		d.open()
		c := d.call(Budget{Counter: 0, Unit: ledger.UnitRequests, Limit: 1})
		require.Equal(t, Allowed, d.Reserve(c).Outcome)
		require.Equal(t, Decision{Outcome: Held}, d.Reserve(c))
		require.Equal(t, c.Need, d.Counters()[IDOf("a", appTotal)].Held)
	},
	"what ended is never held again": func(t *testing.T, d *desk) {
		d.open()
		c := d.call()
		require.Equal(t, Settled{Applied: true}, d.Settle(Settlement{App: "a", Endings: []Ending{c.ended(c.Need)}}))
		require.Equal(t, Decision{Outcome: Ended}, d.Reserve(c))
		require.Equal(t, Settled{Applied: true}, d.Settle(Settlement{App: "a", Opens: []Open{c.opened()}}))
		require.Empty(t, d.Counters())
	},
	"settlement replaces held by used": func(t *testing.T, d *desk) {
		d.open()
		c := d.call()
		require.Equal(t, Allowed, d.Reserve(c).Outcome)
		spent := ledger.Amounts{Requests: 1, Tokens: 7, NanoUSD: 333}
		s := Settlement{App: "a", Rows: rows(1, spent), Endings: []Ending{c.ended(spent)}}
		require.Equal(t, Settled{Applied: true, Ended: 1}, d.Settle(s))
		want := map[CounterID]Figures{IDOf("a", appTotal): {Used: spent}, IDOf("a", platformTotal): {Used: spent}}
		require.Equal(t, want, d.Counters())
		require.Equal(t, Settled{Applied: true}, d.Settle(s), "again")
		require.Equal(t, want, d.Counters())

		over := d.call(Budget{Counter: 0, Unit: ledger.UnitUSD, Limit: 332})
		require.Equal(t, []BudgetFigures{{Used: 333}}, d.Reserve(over).Budgets, "used may pass the limit, the next is refused")
	},
	"an older version writes nothing": func(t *testing.T, d *desk) {
		d.open()
		newer, older := ledger.Amounts{Requests: 2, Tokens: 2, NanoUSD: 2}, ledger.Amounts{Requests: 1, Tokens: 1, NanoUSD: 1}
		d.Settle(Settlement{App: "a", Rows: rows(2, newer)})
		d.Settle(Settlement{App: "a", Rows: rows(1, older)})
		d.Settle(Settlement{App: "a", Rows: rows(2, older)})
		require.Equal(t, newer, d.Counters()[IDOf("a", appTotal)].Used)
	},
	"one batch registers and ends": func(t *testing.T, d *desk) {
		d.open()
		c := d.call()
		require.Equal(t, Settled{Applied: true, Registered: 1, Ended: 1},
			d.Settle(Settlement{App: "a", Opens: []Open{c.opened()}, Endings: []Ending{c.ended(c.Need)}}))
		require.Empty(t, d.Counters())
	},
	"one batch ends the same reservation twice": func(t *testing.T, d *desk) {
		d.open()
		c, other := d.call(), d.call()
		require.Equal(t, Allowed, d.Reserve(c).Outcome)
		require.Equal(t, Allowed, d.Reserve(other).Outcome)
		e := c.ended(c.Need)
		require.Equal(t, Settled{Applied: true, Ended: 1}, d.Settle(Settlement{App: "a", Endings: []Ending{e, e}}))
		require.Equal(t, other.Need, d.Counters()[IDOf("a", appTotal)].Held)
	},
	"settling nothing leaves a large figure exact": func(t *testing.T, d *desk) {
		d.open()
		large, free := d.call(), d.call()
		large.Need.NanoUSD, free.Need.NanoUSD = 1<<53+1, 0
		require.Equal(t, Allowed, d.Reserve(large).Outcome)
		d.Settle(Settlement{App: "a", Opens: []Open{free.opened()}})
		require.EqualValues(t, 1<<53+1, d.Counters()[IDOf("a", appTotal)].Held.NanoUSD)
		d.Settle(Settlement{App: "a", Endings: []Ending{free.ended(free.Need)}})
		require.Equal(t, large.Need, d.Counters()[IDOf("a", appTotal)].Held)
	},
	"a missing mark stops everything": func(t *testing.T, d *desk) {
		d.Rebuild(Rebuild{Slot: "a", Generation: generation})
		c := d.call()
		require.Equal(t, Decision{Outcome: Lost}, d.Reserve(c))
		require.Equal(t, Settled{}, d.Settle(Settlement{App: "a", Rows: rows(1, c.Need), Opens: []Open{c.opened()}}))
		require.Empty(t, d.Counters())
		d.Rebuild(Rebuild{Slot: Shared, Generation: "g2"})
		require.Equal(t, Decision{Outcome: Lost}, d.Reserve(c), "another generation")
	},
	"a window must contain now": func(t *testing.T, d *desk) {
		d.open()
		for _, start := range []time.Duration{-48 * time.Hour, 24 * time.Hour} {
			c := d.call()
			at := time.Now().UTC().Truncate(time.Hour).Add(start)
			c.Counters[0].Period, c.Counters[0].Window = ledger.PeriodDay, ledger.Window{Start: at, End: at.Add(24 * time.Hour)}
			require.Equal(t, Decision{Outcome: Stale}, d.Reserve(c))
		}
		require.Empty(t, d.Counters())
	},
	"a rebuild replaces": func(t *testing.T, d *desk) {
		d.open()
		unknown, known := d.call(), d.call()
		unknown.Counters = unknown.Counters[:1]
		require.Equal(t, Allowed, d.Reserve(unknown).Outcome, "its event never arrived anywhere")
		used := ledger.Amounts{Requests: 3, Tokens: 30, NanoUSD: 300}
		for _, slot := range []string{"a", Shared} {
			counter := map[string]ledger.Counter{"a": appTotal, Shared: platformTotal}[slot]
			d.Rebuild(Rebuild{
				Slot: slot, Generation: generation, Rows: []Row{{counter, used, 5}}, Opens: []Open{known.opened()},
			})
		}
		require.Equal(t, map[CounterID]Figures{
			IDOf("a", appTotal): {used, known.Need}, IDOf("a", platformTotal): {used, known.Need},
		}, d.Counters())
		require.Equal(t, Decision{Outcome: Held}, d.Reserve(known))
		require.Equal(t, Settled{Applied: true, Ended: 1}, d.Settle(Settlement{
			App: "a", Rows: rows(4, ledger.Amounts{}), Endings: []Ending{known.ended(known.Need), unknown.ended(known.Need)},
		}))
		require.Equal(t, Figures{Used: used}, d.Counters()[IDOf("a", appTotal)], "version 4 is older than the rebuild")
	},
	"a rebuild forgets counters the ledger never knew": func(t *testing.T, d *desk) {
		d.open()
		c := d.call()
		c.Counters = c.Counters[:1]
		require.Equal(t, Allowed, d.Reserve(c).Outcome)
		d.Rebuild(Rebuild{Slot: "a", Generation: generation})
		require.Empty(t, d.Counters())
	},
	"budgets are exact to the last unit": func(t *testing.T, d *desk) {
		for _, edge := range []int64{1, 999_999_999, 1_000_000_000, 999_999_999_999_999, 1e15, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1e18, 1<<63 - 2, 1<<63 - 1} {
			for _, used := range []int64{0, edge / 3, edge - 1, edge} {
				d.open()
				subject := appTotal
				subject.Subject = fmt.Sprintf("app:%d/%d", edge, used)
				d.Settle(Settlement{App: "a", Rows: []Row{{subject, ledger.Amounts{NanoUSD: ledger.NanoUSD(used)}, 1}}})
				c := d.call()
				c.Counters, c.Budgets = []ledger.Counter{subject}, []Budget{{Counter: 0, Unit: ledger.UnitUSD, Limit: edge}}
				left := edge - used
				if left < 1<<63-1 {
					c.Need.NanoUSD = ledger.NanoUSD(left + 1)
					require.Equal(t, Refused, d.Reserve(c).Outcome, "%d of %d, need %d", used, edge, c.Need.NanoUSD)
				}
				c.Need.NanoUSD = ledger.NanoUSD(left / 2)
				require.Equal(t, Allowed, d.Reserve(c).Outcome)
				c.ID, c.Need.NanoUSD = c.ID+"b", ledger.NanoUSD(left-left/2)
				require.Equal(t, Allowed, d.Reserve(c).Outcome, "%d of %d, need %d", used, edge, c.Need.NanoUSD)
				require.EqualValues(t, left, d.Counters()[IDOf("a", subject)].Held.NanoUSD)
				c.ID, c.Need.NanoUSD = c.ID+"c", 1
				require.Equal(t, Refused, d.Reserve(c).Outcome)
			}
		}
	},
}
