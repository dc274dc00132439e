package lua

import (
	"context"
	"fmt"
	"time"

	"tollgate/ledger"
)

// CounterState is a budget row of Postgres: what a counter has used, as of a version that every settlement raises.
type CounterState struct {
	Counter ledger.Counter
	App     string // the owner; "" for counters that all apps share
	Used    ledger.Amounts
	Version int64
}

// Open is a reservation that has not ended.
type Open struct {
	ReservationID string
	App           string
	Held          ledger.Amounts
	Counters      []ledger.Counter
	Deadline      time.Time
}

// Ending is a reservation that has: settled, released or expired. Spent is what it used, zero for a release.
type Ending struct {
	ReservationID string
	Counters      []ledger.Counter
	Rates         []ledger.Rate
	Held, Spent   ledger.Amounts
}

// SettleResult says what Settle found to do.
type SettleResult struct {
	Applied    bool // false: a mark is missing and nothing was written
	Ended      int64
	Registered int64
	Negative   int64 // held figures that would have gone below zero and were set to zero: a bug, report it
}

// settleChunk bounds the reservations and stateChunk the counters of one script call, so that Redis is never held up for more
// than about a millisecond.
const (
	settleChunk = 64
	stateChunk  = 256
)

// Settle writes back to one app's slot and the shared counters what Postgres has committed: used amounts where the version
// is newer, reservations ended by id, open ones registered where Redis does not know them. All of it is idempotent and
// harmless in any order. Opens must be open in the ledger at the time of the call: one that has ended would be held again once
// its tombstone is gone.
//
// When a mark is missing nothing is written. Both slots, the app's and SharedSlot, must then be rebuilt, whichever mark was
// missing: what the other one holds for these reservations is not taken back any more.
func (s *Scripts) Settle(ctx context.Context, app string, states []CounterState, opens []Open, endings []Ending) (SettleResult, error) {
	var total SettleResult
	for first := true; first || len(states)+len(opens)+len(endings) > 0; first = false {
		counters := states[:min(stateChunk, len(states))]
		states = states[len(counters):]
		var o []Open
		var e []Ending
		// Nothing is given back before what was used in its place is written.
		if len(states) == 0 {
			o = opens[:min(settleChunk, len(opens))]
			e = endings[:min(settleChunk-len(o), len(endings))]
			opens, endings = opens[len(o):], endings[len(e):]
		}
		r, err := s.settleChunk(ctx, app, counters, o, e)
		if err != nil {
			return total, fmt.Errorf("settle app %s: %w", app, err)
		}
		if !r.Applied {
			return SettleResult{}, nil
		}
		total.Applied = true
		total.Ended += r.Ended
		total.Registered += r.Registered
		total.Negative += r.Negative
	}
	return total, nil
}

func (s *Scripts) settleChunk(ctx context.Context, app string, states []CounterState, opens []Open, endings []Ending) (SettleResult, error) {
	c := newSettleCall(app)
	for i := range states {
		c.state(&states[i])
	}
	for i := range opens {
		c.open(&opens[i])
	}
	for i := range endings {
		c.ending(i, &endings[i])
	}
	keys, args := c.build()
	reply, err := s.run(ctx, s.settle, keys, args)
	if err != nil {
		return SettleResult{}, err
	}
	return decodeSettled(reply)
}

func decodeSettled(reply []any) (SettleResult, error) {
	r := replyReader{reply: reply}
	applied := r.integer()
	if applied == 0 && len(reply) == 1 {
		return SettleResult{}, r.err
	}
	result := SettleResult{applied == 1, r.integer(), r.integer(), r.integer()}
	if r.err == nil && (applied != 1 || len(r.reply) != 0) {
		r.err = fmt.Errorf("%w: status %d with %d elements", ErrReply, applied, len(reply))
	}
	if r.err != nil {
		return SettleResult{}, r.err
	}
	return result, nil
}

// settleCall gathers the keys and arguments of one run of settle.lua.
type settleCall struct {
	app          string
	index        map[string]int // counter key -> its 1-based place
	counterKeys  []string
	counterArgs  []any // five a counter
	rateKeys     []string
	openKeys     []string
	openArgs     []any
	endingKeys   []string
	endingArgs   []any
	corrections  []any
	nCorrections int
}

func newSettleCall(app string) *settleCall {
	return &settleCall{app: app, index: map[string]int{}}
}

// counter gives the place of a counter, adding it without a version when it was not named by state.
func (c *settleCall) counter(counter *ledger.Counter) int {
	key := counterKey(c.app, counter)
	place, ok := c.index[key]
	if !ok {
		c.counterKeys = append(c.counterKeys, key)
		place = len(c.counterKeys)
		c.index[key] = place
		c.counterArgs = append(c.counterArgs, 0, 0, 0, 0, counterTTL(counter.Window).Milliseconds())
	}
	return place
}

func (c *settleCall) state(s *CounterState) {
	place := c.counter(&s.Counter)
	copy(c.counterArgs[5*(place-1):], []any{s.Version, s.Used.Requests, int64(s.Used.Tokens), int64(s.Used.NanoUSD)})
}

func (c *settleCall) open(o *Open) {
	c.openKeys = append(c.openKeys, reservationKey(c.app, o.ReservationID))
	c.openArgs = append(c.openArgs, o.ReservationID, o.Deadline.UnixMilli(),
		o.Held.Requests, int64(o.Held.Tokens), int64(o.Held.NanoUSD), len(o.Counters))
	for i := range o.Counters {
		c.openArgs = append(c.openArgs, c.counter(&o.Counters[i]))
	}
}

func (c *settleCall) ending(i int, e *Ending) {
	c.endingKeys = append(c.endingKeys, reservationKey(c.app, e.ReservationID))
	c.endingArgs = append(c.endingArgs, e.ReservationID, len(e.Counters))
	for j := range e.Counters {
		c.endingArgs = append(c.endingArgs, c.counter(&e.Counters[j]))
	}
	// Requests are counted when they are admitted; only tokens are known better afterwards.
	for j := range e.Rates {
		if e.Rates[j].Unit != ledger.UnitTokens || e.Held.Tokens == e.Spent.Tokens {
			continue
		}
		kind := 2
		if e.Rates[j].Algorithm == ledger.AlgorithmTokenBucket {
			kind = 1
		}
		c.corrections = append(c.corrections, i+1, kind, len(c.rateKeys)+1, sharedFlag(e.Rates[j].Tier),
			int64(e.Held.Tokens), int64(e.Spent.Tokens))
		c.nCorrections++
		c.rateKeys = append(c.rateKeys, rateKeys(c.app, &e.Rates[j])...)
	}
}

func (c *settleCall) build() (keys int, args []any) {
	args = make([]any, 3, 16+len(c.counterKeys)*6+len(c.openArgs)+len(c.endingArgs)+len(c.corrections)+len(c.rateKeys)+
		len(c.openKeys)+len(c.endingKeys))
	args = append(args, markKey(c.app), markKey(SharedSlot), deadlinesKey(c.app))
	for _, group := range [][]string{c.counterKeys, c.rateKeys, c.openKeys, c.endingKeys} {
		for _, key := range group {
			args = append(args, key)
		}
	}
	keys = len(args) - 3
	args = append(args, len(c.counterKeys), len(c.rateKeys), len(c.openKeys), len(c.endingKeys), c.nCorrections,
		tombstoneTTL.Milliseconds(), recordTTL.Milliseconds())
	args = append(args, c.counterArgs...)
	args = append(args, c.openArgs...)
	args = append(args, c.endingArgs...)
	args = append(args, c.corrections...)
	return keys, args
}

// counterTTL is how long a counter is kept after a change; a window's counter outlives the window.
func counterTTL(w ledger.Window) time.Duration {
	if w.End.IsZero() {
		return totalTTL
	}
	return max(time.Until(w.End), 0) + windowGrace
}
