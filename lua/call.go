package lua

import (
	"fmt"
	"time"

	"tollgate/ledger"
)

// most is the largest figure that a rate may work with: sums of two stay exact in the doubles of Redis's Lua.
const most = int64(1) << 52

// check refuses what the script could not judge exactly.
func (c *ReserveCall) check() error {
	if c.Need.Requests < 0 || c.Need.Tokens < 0 || c.Need.NanoUSD < 0 {
		return fmt.Errorf("%w: need %+v is negative", ErrCall, c.Need)
	}
	for _, b := range c.Budgets {
		if b.Counter < 0 || b.Counter >= len(c.Counters) || letters[b.Unit] == "" {
			return fmt.Errorf("%w: budget on counter %d of %d in %q", ErrCall, b.Counter, len(c.Counters), b.Unit)
		}
	}
	for i := range c.Rates {
		if err := c.Rates[i].check(c.Need); err != nil {
			return fmt.Errorf("%w: rate %s of %s: %w", ErrCall, c.Rates[i].Limit, c.Rates[i].Subject, err)
		}
	}
	return nil
}

func (r *Rate) check(need ledger.Amounts) error {
	kind := kindOf(&r.Rate)
	switch {
	case kind == "":
		return fmt.Errorf("no algorithm %q", r.Algorithm)
	case r.Unit != ledger.UnitRequests && r.Unit != ledger.UnitTokens:
		return fmt.Errorf("a speed in %q", r.Unit)
	case r.Amount < 0 || r.Amount > most || r.Burst < 0 || r.Burst > most || need.In(r.Unit) > most:
		return fmt.Errorf("%d a %s, burst %d, need %d", r.Amount, r.Window, r.Burst, need.In(r.Unit))
	case kind == kindInflight:
		if r.Unit != ledger.UnitRequests || need.Requests != 1 {
			return fmt.Errorf("%d %s in flight at once", need.In(r.Unit), r.Unit)
		}
	case r.Window < time.Microsecond:
		return fmt.Errorf("a window of %s", r.Window)
	case kind == kindBucket:
		if r.Amount == 0 {
			return fmt.Errorf("a bucket that never refills")
		}
		if perUnit, _ := bucketScale(r.Amount, r.Window, r.Burst); perUnit > most/(r.Burst+1) {
			return fmt.Errorf("burst %d is too large for %d a %s", r.Burst, r.Amount, r.Window)
		}
	case kind == kindLog && need.Requests != 1:
		// Its entries are counted, not added up.
		return fmt.Errorf("a log of requests admits one at a time, not %d", need.Requests)
	}
	return nil
}
