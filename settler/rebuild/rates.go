package rebuild

import (
	"context"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/pg"
	"tollgate/lua"
)

const (
	// chargedFor is how far back charges of rates are read: longer than the longest window.
	chargedFor = 25 * time.Hour
	// maxCharges bounds how many are, so that a rebuild stays short. Rates that remember more start as if used up by the rest.
	maxCharges = 200_000
)

// rates are the rates of every slot with what they were charged since an instant.
type rates struct {
	since  time.Time
	cut    bool // there is more in chargedFor than was read
	bySlot map[string][]lua.RateCharges
}

// readRates reads what the rates of one app, or of all and the shared ones for "", must be charged anew.
func (r *Rebuilder) readRates(ctx context.Context, session *pg.Session, app string) (*rates, error) {
	now := r.Now()
	charged, since, err := session.RecentCharges(ctx, app, now.Add(-chargedFor), maxCharges)
	if err != nil {
		return nil, err
	}
	return gatherRates(charged, since, now), nil
}

// gatherRates sorts charges, which come oldest first, by the rate.
func gatherRates(charged []pg.Charged, since, now time.Time) *rates {
	type key struct {
		slot string
		rate ledger.Rate
	}
	byRate := map[key]*lua.RateCharges{}
	for i := range charged {
		c := &charged[i]
		for j := range c.Rates {
			rate := &c.Rates[j]
			switch {
			case rate.Algorithm == ledger.AlgorithmConcurrency:
				continue
			case rate.WindowMS == 0: // of an earlier version: what it was charged cannot be told anew
				since = c.ReservedAt.Add(time.Microsecond)
				continue
			}
			slot := c.App
			if rate.Tier.Shared() {
				slot = lua.SharedSlot
			}
			x := byRate[key{slot, rate.Rate}]
			if x == nil {
				x = &lua.RateCharges{App: c.App}
				byRate[key{slot, rate.Rate}] = x
			}
			// The newest charge knows the limit best.
			x.Rate = lua.Rate{Rate: rate.Rate, Window: time.Duration(rate.WindowMS) * time.Millisecond, Amount: rate.Amount, Burst: rate.Burst}
			x.Charges = append(x.Charges, lua.Charge{ReservationID: c.ReservationID, Units: c.Amounts.In(rate.Unit), At: c.ReservedAt})
		}
	}
	all := &rates{since: since, cut: since.After(now.Add(-chargedFor)), bySlot: map[string][]lua.RateCharges{}}
	for key, x := range byRate {
		if x.Charges = remembered(x, now); len(x.Charges) > 0 {
			all.bySlot[key.slot] = append(all.bySlot[key.slot], *x)
		}
	}
	return all
}

// remembered leaves out what the rate has forgotten by now.
func remembered(x *lua.RateCharges, now time.Time) []lua.Charge {
	from := now.Add(-x.Rate.Remembers())
	for i, c := range x.Charges {
		if c.At.After(from) {
			return x.Charges[i:]
		}
	}
	return nil
}
