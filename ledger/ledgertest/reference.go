package ledgertest

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"tollgate/ledger"
)

// Reference is the model. Make it with NewReference.
type Reference struct {
	// LeaseTTL is how long a request is in flight unless its lease is renewed; 10 s from NewReference.
	LeaseTTL time.Duration

	marks        map[string]mark
	counters     map[CounterID]*counter
	reservations map[reservationID]*reservation
	buckets      map[rateID]*bucket
	logs         map[rateID][]entry
	windows      map[rateID]*window
	sliding      map[rateID]*sliding
	inflight     map[rateID]map[string]time.Time // when each lease lapses
}

type mark struct {
	generation string
	lost       time.Time // zero: rates start idle
}

type counter struct {
	used, held ledger.Amounts
	version    int64
}

type reservationID struct{ app, id string }

type reservation struct {
	held       ledger.Amounts
	counters   []CounterID
	deadline   time.Time
	reservedAt time.Time
	judged     bool // false: registered without being charged to rates
	ended      bool
}

// NewReference is a store without any mark, as an empty one is.
func NewReference() *Reference {
	return &Reference{
		marks: map[string]mark{}, counters: map[CounterID]*counter{}, reservations: map[reservationID]*reservation{},
		buckets: map[rateID]*bucket{}, logs: map[rateID][]entry{}, windows: map[rateID]*window{}, sliding: map[rateID]*sliding{},
		inflight: map[rateID]map[string]time.Time{}, LeaseTTL: 10 * time.Second,
	}
}

// Reserve judges the call at now and holds its amounts everywhere or nowhere.
func (r *Reference) Reserve(now time.Time, c Reserve) Decision {
	if known, ok := r.reservations[reservationID{c.App, c.ID}]; ok {
		if known.ended {
			return Decision{Outcome: Ended}
		}
		return Decision{Outcome: Held}
	}
	for _, slot := range []string{c.App, Shared} {
		if m, ok := r.marks[slot]; !ok || m.generation != c.Generation {
			return Decision{Outcome: Lost}
		}
	}
	for _, counter := range c.Counters {
		// Windows are judged in whole milliseconds, the unit of calendar windows' edges and more.
		at := now.Truncate(time.Millisecond)
		if !counter.End.IsZero() && (at.Before(counter.Start) || !at.Before(counter.End)) {
			return Decision{Outcome: Stale}
		}
	}
	d := Decision{Outcome: Allowed}
	for _, b := range c.Budgets {
		state := r.counter(IDOf(c.App, c.Counters[b.Counter]))
		used, held := state.used.In(b.Unit), state.held.In(b.Unit)
		fits := sum(used, held, c.Need.In(b.Unit)).Cmp(big.NewInt(b.Limit)) <= 0
		d.Budgets = append(d.Budgets, BudgetFigures{fits, used, held})
		if !fits && !b.Soft {
			d.Outcome = Refused
		}
	}
	for _, rate := range c.Rates {
		f := r.judge(now, c.App, rate, c.Need.In(rate.Unit))
		d.Rates = append(d.Rates, f)
		if !f.Fits && !rate.Soft {
			d.Outcome = Refused
		}
	}
	if d.Outcome == Allowed {
		held := r.hold(c.App, c.ID, c.Need, c.Counters, now.Truncate(time.Millisecond).Add(c.TTL))
		held.judged, held.reservedAt = true, now
		for i, rate := range c.Rates {
			if d.Rates[i].Fits {
				r.charge(now, c.App, c.ID, rate, c.Need.In(rate.Unit))
			}
		}
	}
	return d
}

func (r *Reference) counter(id CounterID) *counter {
	state, ok := r.counters[id]
	if !ok {
		state = &counter{}
		r.counters[id] = state
	}
	return state
}

func (r *Reference) hold(app, id string, amounts ledger.Amounts, counters []ledger.Counter, deadline time.Time) *reservation {
	known := &reservation{held: amounts, deadline: deadline}
	for _, c := range counters {
		known.counters = append(known.counters, IDOf(app, c))
		state := r.counter(IDOf(app, c))
		state.held = add(state.held, amounts)
	}
	r.reservations[reservationID{app, id}] = known
	return known
}

// Settle applies what the ledger has committed. It never fails for lack of room.
func (r *Reference) Settle(now time.Time, s Settlement) Settled {
	for _, slot := range []string{s.App, Shared} {
		if _, ok := r.marks[slot]; !ok {
			return Settled{}
		}
	}
	done := Settled{Applied: true}
	for _, row := range s.Rows {
		if state := r.counter(IDOf(s.App, row.Counter)); row.Version > state.version {
			state.used, state.version = row.Used, row.Version
		}
	}
	for _, open := range s.Opens {
		if _, known := r.reservations[reservationID{s.App, open.ID}]; !known {
			r.hold(s.App, open.ID, open.Held, open.Counters, open.Deadline)
			done.Registered++
		}
	}
	touched := map[CounterID]bool{}
	for _, ending := range s.Endings {
		for _, rate := range ending.Rates {
			delete(r.inflight[rateOf(s.App, rate)], ending.ID)
		}
		id := reservationID{s.App, ending.ID}
		known := r.reservations[id]
		if known != nil && !known.ended {
			for _, c := range ending.Counters {
				state := r.counter(IDOf(s.App, c))
				state.held = state.held.Sub(known.held)
				touched[IDOf(s.App, c)] = true
			}
			for _, rate := range ending.Rates {
				if known.judged {
					r.correct(now, s.App, ending, rate, known.reservedAt)
				}
			}
			done.Ended++
		}
		r.reservations[id] = &reservation{ended: true}
	}
	for id := range touched {
		done.Negative += r.counter(id).clamp()
	}
	return done
}

// clamp sets held figures below zero to zero and says how many there were.
func (c *counter) clamp() (negative int64) {
	for _, figure := range []*int64{&c.held.Requests, (*int64)(&c.held.Tokens), (*int64)(&c.held.NanoUSD)} {
		if *figure < 0 {
			*figure = 0
			negative++
		}
	}
	return negative
}

// Lose forgets the mark of a slot, as when its keys are gone.
func (r *Reference) Lose(slot string) { delete(r.marks, slot) }

// Rebuild replaces what the slot holds by what the ledger says and sets its mark. Tombstones stay.
func (r *Reference) Rebuild(now time.Time, b Rebuild) {
	if b.Slot != Shared {
		for id, known := range r.reservations {
			if id.app == b.Slot && !known.ended {
				for _, c := range known.counters {
					if c.Slot == b.Slot {
						delete(r.counters, c)
					}
				}
				delete(r.reservations, id)
			}
		}
	}
	for _, row := range b.Rows {
		*r.counter(IDOf(b.Slot, row.Counter)) = counter{used: row.Used, version: row.Version}
	}
	fresh := map[CounterID]ledger.Amounts{}
	for _, open := range b.Opens {
		ids := make([]CounterID, len(open.Counters))
		for i, c := range open.Counters {
			ids[i] = IDOf(open.App, c)
			if ids[i].Slot == b.Slot {
				fresh[ids[i]] = add(fresh[ids[i]], open.Held)
			}
		}
		if b.Slot != Shared {
			r.reservations[reservationID{b.Slot, open.ID}] = &reservation{
				held: open.Held, counters: ids, deadline: open.Deadline, reservedAt: open.ReservedAt, judged: true,
			}
		}
	}
	for id, held := range fresh {
		r.counter(id).held = held
	}
	m := mark{generation: b.Generation}
	if b.Active {
		m.lost = now
	}
	r.marks[b.Slot] = m
}

// Counters gives every counter that is not all zero.
func (r *Reference) Counters() map[CounterID]Figures {
	all := map[CounterID]Figures{}
	for id, c := range r.counters {
		if f := (Figures{c.used, c.held}); f != (Figures{}) {
			all[id] = f
		}
	}
	return all
}

// Open lists the ids of the app's reservations that have not ended, with their deadlines.
func (r *Reference) Open(app string) map[string]time.Time {
	open := map[string]time.Time{}
	for id, known := range r.reservations {
		if id.app == app && !known.ended {
			open[id.id] = known.deadline
		}
	}
	return open
}

// Check errors if what the counters hold is not the sum of what the open reservations hold.
func (r *Reference) Check() error {
	want := map[CounterID]ledger.Amounts{}
	for _, known := range r.reservations {
		for _, id := range known.counters {
			want[id] = add(want[id], known.held)
		}
	}
	for _, id := range slices.Collect(maps.Keys(r.counters)) {
		if got := r.counters[id].held; got != want[id] {
			return fmt.Errorf("%v holds %+v, its reservations %+v", id, got, want[id])
		}
	}
	return nil
}

func add(a, b ledger.Amounts) ledger.Amounts {
	return ledger.Amounts{
		Requests: exact(sum(a.Requests, b.Requests)),
		Tokens:   ledger.Tokens(exact(sum(int64(a.Tokens), int64(b.Tokens)))),
		NanoUSD:  ledger.NanoUSD(exact(sum(int64(a.NanoUSD), int64(b.NanoUSD)))),
	}
}

func sum(values ...int64) *big.Int {
	total := new(big.Int)
	for _, v := range values {
		total.Add(total, big.NewInt(v))
	}
	return total
}

// exact panics where a figure leaves int64: such a call has no right answer.
func exact(n *big.Int) int64 {
	if !n.IsInt64() {
		panic(fmt.Sprintf("%v does not fit an int64", n))
	}
	return n.Int64()
}
