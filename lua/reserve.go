package lua

import (
	"context"
	"fmt"
	"math/bits"
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

// The outcomes. Only StatusAllowed and StatusHeld hold anything.
const (
	StatusRefused     Status = 0 // some limit has no room; nothing was written
	StatusAllowed     Status = 1
	StatusRebuild     Status = 2 // the counters cannot be believed until the settler has rebuilt them
	StatusStaleWindow Status = 3 // a window is over or has not begun by Redis's clock: compute it anew
	StatusEnded       Status = 4 // the reservation was ended before; it can never be held again
	StatusHeld        Status = 5 // the same call was made before and holds; no figures
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
	Fits  bool
	Used  int64
	Wait  time.Duration // until the same request would fit; without meaning when it is larger than the limit itself
	Reset time.Duration // until the rate is idle again, were nothing more to come
}

var unitIndex = map[ledger.Unit]int{ledger.UnitRequests: 1, ledger.UnitTokens: 2, ledger.UnitUSD: 3}

// Reserve judges the request and holds its amounts everywhere or nowhere. It is idempotent by ID. An error for which Unknown
// is true leaves open whether it ran. Values must be below 2^53 for rates; budgets are exact over the whole of int64.
func (s *Scripts) Reserve(ctx context.Context, c *ReserveCall) (Decision, error) {
	if err := c.check(); err != nil {
		return Decision{}, fmt.Errorf("reserve %s: %w", c.ID, err)
	}
	keys := 4 + len(c.Counters)
	args := make([]any, 3, 24+len(c.Counters)*4+len(c.Budgets)*3+len(c.Rates)*9)
	args = append(args, markKey(c.App), markKey(SharedSlot), reservationKey(c.App, c.ID), deadlinesKey(c.App))
	for i := range c.Counters {
		args = append(args, counterKey(c.App, &c.Counters[i]))
	}
	firstKey := make([]int, len(c.Rates))
	for i := range c.Rates {
		names := rateKeys(c.App, &c.Rates[i].Rate)
		firstKey[i] = keys - 4 - len(c.Counters) + 1
		keys += len(names)
		for _, name := range names {
			args = append(args, name)
		}
	}
	args = append(args, c.ID, c.Generation, c.TTL.Milliseconds(), (c.TTL + recordTTL).Milliseconds(),
		c.Need.Requests, int64(c.Need.Tokens), int64(c.Need.NanoUSD), len(c.Counters), len(c.Budgets), len(c.Rates))
	for i := range c.Counters {
		args = appendWindow(args, c.Counters[i].Window)
	}
	for _, b := range c.Budgets {
		args = append(args, b.Counter+1, unitIndex[b.Unit], b.Limit)
	}
	for i := range c.Rates {
		args = appendRate(args, &c.Rates[i], firstKey[i])
	}
	reply, err := s.run(ctx, s.reserve, keys, args)
	if err != nil {
		return Decision{}, fmt.Errorf("reserve %s: %w", c.ID, err)
	}
	d, err := decodeDecision(reply, len(c.Budgets), len(c.Rates))
	if err != nil {
		return Decision{}, fmt.Errorf("reserve %s: %w", c.ID, err)
	}
	return d, nil
}

func appendWindow(args []any, w ledger.Window) []any {
	if w.End.IsZero() {
		return append(args, 0, 0, totalTTL.Milliseconds())
	}
	return append(args, w.Start.UnixMilli(), w.End.UnixMilli(), windowGrace.Milliseconds())
}

func appendRate(args []any, r *Rate, firstKey int) []any {
	shared := sharedFlag(r.Tier)
	if r.Algorithm == ledger.AlgorithmTokenBucket {
		perUnit, drain := bucketScale(r.Amount, r.Window, r.Burst)
		return append(args, 1, firstKey, unitIndex[r.Unit], shared, perUnit, drain, r.Burst)
	}
	return append(args, 2, firstKey, unitIndex[r.Unit], shared, r.Amount, r.Window.Microseconds(), 0)
}

func sharedFlag(t ledger.Tier) int {
	if t.Shared() {
		return 1
	}
	return 0
}

// bucketScale gives a bucket's arithmetic in whole ticks: one unit is perUnit ticks, one microsecond drains drain ticks, so
// amount units drain in exactly one window. Where the ticks of a full bucket would pass 2^52 they are made coarser and the
// unit rounded up: such a bucket refills too slowly by less than one part in perUnit, never too fast.
func bucketScale(amount int64, window time.Duration, burst int64) (perUnit, drain int64) {
	perUnit, drain = window.Microseconds(), amount
	if d := gcd(perUnit, drain); d > 1 {
		perUnit, drain = perUnit/d, drain/d
	}
	whole, full := uint64(perUnit), uint64(drain)
	for perUnit > most/(burst+1) && drain > 1 {
		drain /= 2
		hi, lo := bits.Mul64(whole, uint64(drain))
		quotient, rest := bits.Div64(hi, lo, full)
		perUnit = int64(quotient)
		if rest > 0 {
			perUnit++
		}
	}
	return perUnit, drain
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
