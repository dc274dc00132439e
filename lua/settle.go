package lua

import (
	"context"
	"fmt"
	"time"

	"tollgate/ledger"
)

// Open is a reservation that has not ended.
type Open struct {
	ReservationID string
	App           string
	Held          ledger.Amounts
	Counters      []ledger.Counter
	Deadline      time.Time
	// ReservedAt is Redis's clock at the reserve. Rebuild keeps it, so that fixed windows and sliding counters can be corrected;
	// zero: they are not. What Settle registers was never charged to a rate, and needs none.
	ReservedAt time.Time
}

// Ending is a reservation that has: settled, released or expired. Spent is what it used, zero for a release. Rates are those
// it was charged to.
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
func (s *Scripts) Settle(ctx context.Context, app string, states []ledger.CounterState, opens []Open, endings []Ending) (SettleResult, error) {
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

func (s *Scripts) settleChunk(ctx context.Context, app string, states []ledger.CounterState, opens []Open, endings []Ending) (SettleResult, error) {
	c := s.newSettleCall(app)
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
