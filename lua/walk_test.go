package lua

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
	"tollgate/ledger/ledgertest"
)

// walk is a random history told to Redis and to the reference alike, with a ledger beside them as Postgres would be: it has
// every reservation as soon as it is made, its rows carry versions, and what it once committed may be told again.
type walk struct {
	t     *rapid.T
	redis *store
	ref   *ledgertest.Reference
	world ledgertest.World

	calls   map[string]ledgertest.Reserve // every reservation ever held, by id, with the rates it was charged to
	times   map[string]time.Time          // when each was reserved, by Redis's clock; none for those not judged
	open    map[string]bool
	gone    map[string]bool // ended, and Redis has a tombstone
	rows    map[ledgertest.CounterID]*ledgertest.Row
	history []ledgertest.Settlement
	broken  map[string]bool // slots that need a rebuild
	next    int
}

// TestRandomWalk holds the scripts against the reference after every step: outcome and figures of each decision, every counter,
// every open reservation. A refusal leaves every key as it was.
func TestRandomWalk(t *testing.T) {
	t.Parallel()
	shared := newStore(t)
	shared.leaseTTL, shared.tombstoneTTL = 80*time.Millisecond, time.Hour
	rapid.Check(t, func(t *rapid.T) {
		require.NoError(t, shared.redis.FlushDB(shared.t.Context()).Err())
		w := &walk{
			t: t, redis: shared, ref: ledgertest.NewReference(), calls: map[string]ledgertest.Reserve{}, times: map[string]time.Time{},
			open: map[string]bool{}, gone: map[string]bool{}, world: ledgertest.World{Apps: []string{"a", "b"}, Generation: generation, At: time.Now().UTC()},
			rows: map[ledgertest.CounterID]*ledgertest.Row{}, broken: map[string]bool{"a": true, "b": true, SharedSlot: true},
		}
		w.ref.LeaseTTL = shared.leaseTTL
		w.rebuild()
		t.Repeat(map[string]func(*rapid.T){
			"":             func(*rapid.T) { w.compare() },
			"reserve":      func(t *rapid.T) { w.reserveSome(t, 1) },
			"reserve more": func(t *rapid.T) { w.reserveSome(t, 12) },
			"again":        w.again,
			"settle":       w.settle,
			"redeliver":    w.redeliver,
			"register":     w.register,
			"renew":        w.renew,
			"release":      w.release,
			"lose a mark":  w.lose,
			"rebuild":      func(*rapid.T) { w.rebuild() },
			"time passes": func(t *rapid.T) {
				w.redis.waitUntil(time.Now().Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "ms")) * time.Millisecond))
			},
		})
		w.rebuild()
		w.settleAll()
		for id, c := range w.redis.Counters() {
			require.Zero(t, c.Held, "%v holds after all has ended", id)
		}
	})
}

// reserveSome makes calls in quick succession, so that rates with windows of some milliseconds fill up.
func (w *walk) reserveSome(t *rapid.T, most int) {
	for range rapid.IntRange(1, most).Draw(t, "calls") {
		w.reserve(w.world.Reserve(t, w.newID()))
	}
}

func (w *walk) newID() string {
	w.next++
	return fmt.Sprintf("r%d", w.next)
}

// again asks with an id that was asked before. One whose ending was dropped for want of a mark has no tombstone: it would be
// held until its deadline, as package lua says.
func (w *walk) again(t *rapid.T) {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		if w.open[id] || w.gone[id] {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("none yet")
	}
	w.reserve(w.calls[rapid.SampledFrom(ids).Draw(t, "id")])
}

func (w *walk) reserve(c ledgertest.Reserve) {
	before := w.redis.dump()
	got := w.redis.Reserve(c)
	want := w.ref.Reserve(w.redis.last.Now, c)
	for i, f := range want.Rates {
		// A wait for more than the limit means nothing.
		if limit := max(c.Rates[i].Amount, c.Rates[i].Burst); !f.Fits && c.Need.In(c.Rates[i].Unit) > limit {
			want.Rates[i].Wait, got.Rates[i].Wait = 0, 0
		}
	}
	require.Equal(w.t, want, got, "%+v", c)
	if got.Outcome == ledgertest.Allowed {
		// What is soft and did not fit was not charged, and is no part of the settlement.
		c.Rates = slices.DeleteFunc(slices.Clone(c.Rates), func(r ledgertest.Rate) bool {
			i := slices.Index(c.Rates, r)
			return !got.Rates[i].Fits
		})
		w.calls[c.ID], w.open[c.ID], w.times[c.ID] = c, true, w.redis.last.Now
		return
	}
	for key, value := range w.redis.dump() {
		require.Equal(w.t, before[key], value, "%s changed by a call that was %s", key, got.Outcome)
	}
}

// commit moves the ledger on: the reservation is over and spent is used on all its counters.
func (w *walk) commit(s *ledgertest.Settlement, c ledgertest.Reserve, spent ledger.Amounts) {
	delete(w.open, c.ID)
	e := ledgertest.Ending{ID: c.ID, Counters: c.Counters, Held: c.Need, Spent: spent}
	for _, r := range c.Rates {
		e.Rates = append(e.Rates, r.Rate)
	}
	s.Endings = append(s.Endings, e)
	for _, counter := range c.Counters {
		id := ledgertest.IDOf(c.App, counter)
		row, ok := w.rows[id]
		if !ok {
			row = &ledgertest.Row{Counter: counter}
			w.rows[id] = row
		}
		row.Used, row.Version = row.Used.Add(spent), row.Version+1
		s.Rows = slices.DeleteFunc(s.Rows, func(r ledgertest.Row) bool { return ledgertest.IDOf(c.App, r.Counter) == id })
		s.Rows = append(s.Rows, *row)
	}
}

func (w *walk) settle(t *rapid.T) {
	ids := slices.Sorted(maps.Keys(w.open))
	if len(ids) == 0 {
		t.Skip("none open")
	}
	first := w.calls[rapid.SampledFrom(ids).Draw(t, "id")]
	s := ledgertest.Settlement{App: first.App}
	w.commit(&s, first, w.world.Spent(t, first.Need))
	for _, id := range ids {
		if c := w.calls[id]; w.open[id] && c.App == first.App && rapid.Bool().Draw(t, "also "+id) {
			w.commit(&s, c, w.world.Spent(t, c.Need))
		}
	}
	w.history = append(w.history, s)
	w.tell(s)
}

// redeliver tells an older settlement again. Only its opens are looked up anew: what has ended since is not open any more.
func (w *walk) redeliver(t *rapid.T) {
	if len(w.history) == 0 {
		t.Skip("none yet")
	}
	s := rapid.SampledFrom(w.history).Draw(t, "settlement")
	s.Opens = slices.DeleteFunc(slices.Clone(s.Opens), func(o ledgertest.Open) bool { return !w.open[o.ID] })
	w.tell(s)
}

// register is a request that was admitted while Redis was not asked; it may have ended before Redis hears of it.
func (w *walk) register(t *rapid.T) {
	c := w.world.Reserve(t, w.newID())
	w.calls[c.ID], w.open[c.ID] = c, true
	s := ledgertest.Settlement{App: c.App, Opens: []ledgertest.Open{w.opened(c)}}
	if rapid.Bool().Draw(t, "ended") {
		w.commit(&s, c, w.world.Spent(t, c.Need))
	}
	w.history = append(w.history, s)
	w.tell(s)
}

func (w *walk) opened(c ledgertest.Reserve) ledgertest.Open {
	deadline := time.Now().Add(c.TTL).UTC().Truncate(time.Millisecond)
	if known, ok := w.ref.Open(c.App)[c.ID]; ok {
		deadline = known
	}
	return ledgertest.Open{
		ID: c.ID, App: c.App, Held: c.Need, Counters: c.Counters, Deadline: deadline, ReservedAt: w.times[c.ID],
	}
}

func (w *walk) tell(s ledgertest.Settlement) {
	got := w.redis.Settle(s)
	want := w.ref.Settle(w.redis.ended, s)
	require.Equal(w.t, want, got)
	require.Zero(w.t, got.Negative)
	if !got.Applied {
		w.broken[s.App], w.broken[SharedSlot] = true, true
		return
	}
	for _, e := range s.Endings {
		w.gone[e.ID] = true
	}
}

// leasesOf draws some leases of calls that were held once, ended ones among them.
func (w *walk) leasesOf(t *rapid.T) (leases []Lease, same []ledgertest.Lease) {
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		for _, r := range w.calls[id].Rates {
			// A tombstone that was dropped for want of a mark keeps no lease away, as package lua says.
			if r.Algorithm == ledger.AlgorithmConcurrency && (w.open[id] || w.gone[id]) && rapid.Bool().Draw(t, "lease of "+id) {
				leases = append(leases, Lease{w.calls[id].App, r.Rate, id})
				same = append(same, ledgertest.Lease{App: w.calls[id].App, Rate: r.Rate, ID: id})
			}
		}
	}
	return leases, same
}

func (w *walk) renew(t *rapid.T) {
	leases, same := w.leasesOf(t)
	require.NoError(t, w.redis.RenewLeases(w.redis.t.Context(), leases))
	// The latest that any lease lapses at was just written, unless all of these have ended.
	var latest time.Time
	for _, l := range leases {
		newest, err := w.redis.redis.ZRevRangeWithScores(w.redis.t.Context(), inflightKey(l.App, &l.Rate), 0, 0).Result()
		require.NoError(t, err)
		if len(newest) > 0 && int64(newest[0].Score) > latest.UnixMilli() {
			latest = time.UnixMilli(int64(newest[0].Score)).UTC()
		}
	}
	w.ref.Renew(latest.Add(-w.redis.leaseTTL), same)
}

func (w *walk) release(t *rapid.T) {
	leases, same := w.leasesOf(t)
	require.NoError(t, w.redis.ReleaseLeases(w.redis.t.Context(), leases))
	w.ref.Release(same)
}

func (w *walk) lose(t *rapid.T) {
	slot := rapid.SampledFrom([]string{"a", "b", SharedSlot}).Draw(t, "slot")
	w.broken[slot] = true
	require.NoError(t, w.redis.redis.Del(w.redis.t.Context(), markKey(slot)).Err())
	w.ref.Lose(slot)
	if rapid.IntRange(0, 3).Draw(t, "found at once") > 0 {
		w.rebuild()
	}
}

func (w *walk) rebuild() {
	for _, slot := range slices.Sorted(maps.Keys(w.broken)) {
		b := ledgertest.Rebuild{Slot: slot, Generation: generation, Active: rapid.IntRange(0, 3).Draw(w.t, "active") == 0}
		for _, id := range slices.Sorted(maps.Keys(w.open)) {
			if c := w.calls[id]; c.App == slot || slot == SharedSlot {
				b.Opens = append(b.Opens, w.opened(c))
			}
		}
		for id, row := range w.rows {
			if id.Slot == slot {
				b.Rows = append(b.Rows, *row)
			}
		}
		w.redis.Rebuild(b)
		w.ref.Rebuild(w.redis.lost(slot), b)
	}
	clear(w.broken)
	w.compare()
}

func (w *walk) settleAll() {
	for _, app := range w.world.Apps {
		s := ledgertest.Settlement{App: app}
		for _, id := range slices.Sorted(maps.Keys(w.open)) {
			if c := w.calls[id]; c.App == app {
				w.commit(&s, c, c.Need)
			}
		}
		w.tell(s)
	}
	w.compare()
}

func (w *walk) compare() {
	require.Equal(w.t, w.ref.Counters(), w.redis.Counters())
	for _, app := range w.world.Apps {
		require.Equal(w.t, w.ref.Open(app), w.redis.openReservations(app))
	}
	w.redis.requireTTLs()
	// While a slot waits for its rebuild, the other one may still hold what it alone knew of.
	if len(w.broken) == 0 {
		require.NoError(w.t, w.ref.Check())
	}
}
