package lua

import (
	"fmt"
	"strconv"
	"time"
)

func decodeDecision(reply []any, budgets, rates int) (Decision, error) {
	if len(reply) < 2 {
		return Decision{}, fmt.Errorf("%w: %d elements", ErrReply, len(reply))
	}
	r := replyReader{reply: reply}
	d := Decision{Status: Status(r.integer()), Now: time.UnixMicro(r.integer()).UTC()}
	if d.Status == StatusAllowed || d.Status == StatusRefused {
		if want := 2 + 3*budgets + 4*rates; len(reply) != want {
			return Decision{}, fmt.Errorf("%w: %d elements, want %d", ErrReply, len(reply), want)
		}
		d.Budgets = make([]BudgetState, budgets)
		for i := range d.Budgets {
			d.Budgets[i] = BudgetState{r.integer() == 1, r.integer(), r.integer()}
		}
		d.Rates = make([]RateState, rates)
		for i := range d.Rates {
			d.Rates[i] = RateState{r.integer() == 1, r.integer(), r.microseconds(), r.microseconds()}
		}
	} else if len(reply) != 2 || d.Status < 0 || d.Status > StatusHeld {
		return Decision{}, fmt.Errorf("%w: status %d with %d elements", ErrReply, d.Status, len(reply))
	}
	if r.err != nil {
		return Decision{}, r.err
	}
	return d, nil
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
