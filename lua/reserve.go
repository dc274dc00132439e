package lua

import (
	"context"
	"fmt"
	"time"

	"tollgate/ledger"
)

// ReserveCall is one request with every limit it must pass.
type ReserveCall struct {
	ID         string // reservation id
	App        string
	Generation string        // that both marks must name
	TTL        time.Duration // until the reservation's deadline
	Need       ledger.Amounts
	Counters   []ledger.Counter // each once, however many budgets look at it
	Budgets    []Budget
	Rates      []Rate
}

// Budget limits one unit of one counter.
type Budget struct {
	Counter int // index into ReserveCall.Counters
	Unit    ledger.Unit
	Limit   int64 // in unit; nano-dollars for usd
	Soft    bool  // judged and told, but never a reason to refuse; what is held counts all the same
}

// Rate limits a speed, or with AlgorithmConcurrency how many requests are in flight. Amounts are in the rate's unit.
type Rate struct {
	ledger.Rate
	Amount int64         // a window; of requests in flight, the most
	Window time.Duration // unused by requests in flight
	Burst  int64         // capacity of a token bucket; unused by the others
	// Soft: judged and told, but never a reason to refuse. Where the request does not fit it is not charged either, so that
	// the state stays within the limit; the caller then leaves the rate out of the settlement.
	Soft bool
}

// Status is the outcome of Reserve.
type Status int64

// The outcomes. Only StatusAllowed, StatusHeld and StatusForced hold anything.
const (
	StatusRefused     Status = 0 // some limit has no room; nothing was written
	StatusAllowed     Status = 1
	StatusRebuild     Status = 2 // the counters cannot be believed until the settler has rebuilt them
	StatusStaleWindow Status = 3 // a window is over or has not begun by Redis's clock: compute it anew
	StatusEnded       Status = 4 // the reservation was ended before; it can never be held again
	StatusHeld        Status = 5 // the same call was made before and holds; no figures
	StatusUnknown     Status = 6 // of Extend alone: Redis does not know what is held
	StatusForced      Status = 7 // Redis was told of it as of something admitted without it, by Settle; no figures
)

// Decision is the answer of Reserve. The figures are those the decision was made on, before this request.
type Decision struct {
	Status  Status
	Now     time.Time // Redis's clock, UTC
	Budgets []BudgetState
	Rates   []RateState
}

// BudgetState is what one budget's counter showed.
type BudgetState struct {
	Fits       bool
	Used, Held int64
}

// RateState is what one rate showed, in its unit.
type RateState struct {
	Fits bool
	Used int64
	// Wait is how long until the same request would fit, were nothing more to come; without meaning when it is larger than the
	// limit itself. Nobody knows when a request in flight ends: 1 s stands for it.
	Wait time.Duration
	// Reset is how long until the rate is idle again, were nothing more to come; 0 for requests in flight.
	Reset time.Duration
}

// Reserve judges the request and holds its amounts everywhere or nowhere. It is idempotent by ID. An error for which Unknown
// is true leaves open whether it ran. Values must be below 2^53 for rates; budgets are exact over the whole of int64.
func (s *Scripts) Reserve(ctx context.Context, c *ReserveCall) (Decision, error) {
	if err := c.check(); err != nil {
		return Decision{}, fmt.Errorf("reserve %s: %w", c.ID, err)
	}
	l := s.layOut(c)
	reply, err := s.run(ctx, s.reserve, l.keys, l.args)
	if err != nil {
		return Decision{}, fmt.Errorf("reserve %s: %w", c.ID, err)
	}
	d, err := decodeDecision(reply, l.budgets, len(c.Rates))
	if err != nil {
		return Decision{}, fmt.Errorf("reserve %s: %w", c.ID, err)
	}
	return d, nil
}
