package lua

import (
	"context"
	"fmt"

	"tollgate/ledger"
)

// ExtendCall asks that more is held for a reservation.
type ExtendCall struct {
	ID         string // reservation id
	App        string
	Generation string         // that both marks must name
	Held       ledger.Amounts // what is to be held in all; its requests stay one
	Counters   []ledger.Counter
	Budgets    []Budget // a soft one is told and never refuses; those of requests have room
}

// mostExtended is above what Extend can work with: a million dollars.
const mostExtended = int64(1e15)

// Extension is the answer of Extend. The figures are those it was judged on; without a budget of tokens or money there are none.
type Extension struct {
	// Status is StatusAllowed, StatusRefused, StatusRebuild, StatusEnded, StatusHeld where so much is held already, or
	// StatusUnknown where Redis has lost the reservation or one of its counters.
	Status  Status
	Budgets []BudgetState // by the call's budgets; empty but for StatusAllowed and StatusRefused
}

// Extend raises what a reservation holds to so much in all, on every counter or, where a budget that is not soft has no room, on
// none. Rates are left alone: the settlement corrects them. It is idempotent. An error for which Unknown is true leaves open
// whether it ran; asking again, for more too, is safe.
func (s *Scripts) Extend(ctx context.Context, c *ExtendCall) (Extension, error) {
	if c.Held.Tokens < 0 || c.Held.NanoUSD < 0 || int64(c.Held.Tokens) >= mostExtended || int64(c.Held.NanoUSD) >= mostExtended {
		return Extension{}, fmt.Errorf("extend %s: %w: to hold %+v", c.ID, ErrCall, c.Held)
	}
	keys, args, order := c.layOut()
	reply, err := s.run(ctx, s.extend, keys, args)
	if err == nil {
		var e Extension
		if e, err = decodeExtension(reply, len(c.Budgets), order); err == nil {
			return e, nil
		}
	}
	return Extension{}, fmt.Errorf("extend %s: %w", c.ID, err)
}

// layOut gives order, too: which of the call's budgets each budget of the script is.
func (c *ExtendCall) layOut() (keys int, args []any, order []int) {
	args = make([]any, 3, 9+2*len(c.Counters)+len(c.Budgets))
	args = append(args, markKey(c.App), markKey(SharedSlot), reservationKey(c.App, c.ID))
	for i := range c.Counters {
		args = append(args, counterKey(c.App, &c.Counters[i]))
	}
	keys = len(args) - 3
	args = append(args, c.Generation, int64(c.Held.Tokens), int64(c.Held.NanoUSD))
	for i := range c.Counters {
		place, names := len(args), ""
		args = append(args, "")
		for j := range c.Budgets {
			b := &c.Budgets[j]
			if b.Counter != i || b.Unit == ledger.UnitRequests {
				continue
			}
			names += b.letter()
			args = append(args, b.Limit)
			order = append(order, j)
		}
		args[place] = names
	}
	return keys, args, order
}

func decodeExtension(reply []any, budgets int, order []int) (Extension, error) {
	r := replyReader{reply: reply}
	e := Extension{Status: Status(r.integer())}
	switch e.Status {
	case StatusAllowed, StatusRefused:
		e.Budgets = make([]BudgetState, budgets)
		for i := range e.Budgets {
			e.Budgets[i].Fits = true
		}
		for _, i := range order {
			e.Budgets[i] = BudgetState{true, r.integer(), r.integer()}
		}
		if e.Status == StatusRefused && len(r.reply) == 0 && r.err == nil {
			r.err = fmt.Errorf("%w: refused by no budget", ErrReply)
		}
		for len(r.reply) > 0 && r.err == nil {
			if place := r.integer(); place < 1 || place > int64(len(order)) {
				r.err = fmt.Errorf("%w: budget %d of %d", ErrReply, place, len(order))
			} else {
				e.Budgets[order[place-1]].Fits = false
			}
		}
	case StatusRebuild, StatusEnded, StatusHeld, StatusUnknown:
		if len(r.reply) > 0 {
			r.err = fmt.Errorf("%w: status %d with %d elements", ErrReply, e.Status, len(reply))
		}
	default:
		r.err = fmt.Errorf("%w: status %d", ErrReply, e.Status)
	}
	if r.err != nil {
		return Extension{}, r.err
	}
	return e, nil
}
