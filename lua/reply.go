package lua

import (
	"fmt"
	"strconv"
	"time"
)

// decodeDecision reads the reply of reserve.lua; order names the budget that each of the script's is.
func decodeDecision(reply []any, order []int, rates int) (Decision, error) {
	if len(reply) < 2 {
		return Decision{}, fmt.Errorf("%w: %d elements", ErrReply, len(reply))
	}
	r := replyReader{reply: reply}
	d := Decision{Status: Status(r.integer()), Now: time.UnixMicro(r.integer()).UTC()}
	if d.Status == StatusAllowed || d.Status == StatusRefused {
		if least := 2 + 2*len(order) + 3*rates; len(reply) < least {
			return Decision{}, fmt.Errorf("%w: %d elements, want %d", ErrReply, len(reply), least)
		}
		r.figures(&d, order, rates)
	} else if len(reply) != 2 || d.Status < 0 || d.Status > StatusHeld && d.Status != StatusForced {
		return Decision{}, fmt.Errorf("%w: status %d with %d elements", ErrReply, d.Status, len(reply))
	}
	if r.err != nil {
		return Decision{}, r.err
	}
	return d, nil
}

// figures reads what each limit showed, then the places of those without room.
func (r *replyReader) figures(d *Decision, order []int, rates int) {
	d.Budgets, d.Rates = make([]BudgetState, len(order)), make([]RateState, rates)
	for _, i := range order {
		d.Budgets[i] = BudgetState{true, r.integer(), r.integer()}
	}
	for i := range d.Rates {
		d.Rates[i] = RateState{true, r.integer(), r.microseconds(), r.microseconds()}
	}
	if d.Status == StatusRefused && len(r.reply) == 0 && r.err == nil {
		r.err = fmt.Errorf("%w: refused by no limit", ErrReply)
	}
	for last := int64(0); len(r.reply) > 0 && r.err == nil; {
		place := r.integer()
		switch budgets := int64(len(order)); {
		case place <= last || place > budgets+int64(rates):
			r.err = fmt.Errorf("%w: limit %d of %d after %d", ErrReply, place, budgets+int64(rates), last)
		case place <= budgets:
			d.Budgets[order[place-1]].Fits = false
		default:
			d.Rates[place-budgets-1].Fits = false
		}
		last = place
	}
}

// replyReader reads a flat reply of integers and decimal strings; the first element of a wrong type is kept as err.
type replyReader struct {
	reply []any
	err   error
}

func (r *replyReader) integer() int64 {
	if len(r.reply) == 0 {
		r.err = fmt.Errorf("%w: too short", ErrReply)
		return 0
	}
	value := r.reply[0]
	r.reply = r.reply[1:]
	switch v := value.(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("%w: %q is no integer", ErrReply, v)
		}
		return n
	default:
		if r.err == nil {
			r.err = fmt.Errorf("%w: %T is no integer", ErrReply, v)
		}
		return 0
	}
}

// microseconds reads a length of time; one that time.Duration cannot hold is an error.
func (r *replyReader) microseconds() time.Duration {
	us := r.integer()
	if d := time.Duration(us) * time.Microsecond; d.Microseconds() == us {
		return d
	}
	if r.err == nil {
		r.err = fmt.Errorf("%w: %d microseconds", ErrReply, us)
	}
	return 0
}
