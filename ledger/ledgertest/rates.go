package ledgertest

import (
	"math/big"
	"time"

	"tollgate/ledger"
)

type rateID struct {
	slot string
	rate ledger.Rate
}

func rateOf(app string, rate ledger.Rate) rateID { return rateID{slotOf(app, rate.Tier), rate} }

// bucket is a debt in units at an instant, and the speed at which it drains from there on.
type bucket struct {
	debt  *big.Rat
	at    time.Time
	drain *big.Rat // units a microsecond
}

// entry is one admitted request in a log.
type entry struct {
	at     time.Time
	id     string
	amount int64
}

func (r *Reference) judge(now time.Time, app string, rate Rate, need int64) RateFigures {
	switch rate.Algorithm {
	case ledger.AlgorithmTokenBucket:
		return r.judgeBucket(now, app, rate, need)
	case ledger.AlgorithmSlidingLog:
		return r.judgeLog(now, app, rate, need)
	case ledger.AlgorithmFixedWindow:
		return r.judgeWindow(now, app, rate, need)
	case ledger.AlgorithmSlidingCounter:
		return r.judgeSliding(now, app, rate, need)
	default:
		return r.judgeInflight(now, app, rate)
	}
}

func (r *Reference) charge(now time.Time, app, id string, rate Rate, need int64) {
	key := rateOf(app, rate.Rate)
	switch rate.Algorithm {
	case ledger.AlgorithmTokenBucket:
		b := r.bucketAt(now, app, rate)
		b.debt.Add(b.debt, whole(need))
		r.buckets[key] = b
	case ledger.AlgorithmSlidingLog:
		r.logs[key] = append(r.logs[key], entry{now, id, need})
	case ledger.AlgorithmFixedWindow:
		w := r.windowAt(now, app, rate)
		w.used += need
		r.windows[key] = w
	case ledger.AlgorithmSlidingCounter:
		s := r.slidingAt(now, app, rate)
		s.counts[s.newest] += need
		r.sliding[key] = s
	default:
		r.lease(now, Lease{app, rate.Rate, id})
	}
}

// bucketAt is the bucket drained up to now. One that may have lost its last requests is as if just used up at the loss.
func (r *Reference) bucketAt(now time.Time, app string, rate Rate) *bucket {
	drain := big.NewRat(rate.Amount, rate.Window.Microseconds())
	known, ok := r.buckets[rateOf(app, rate.Rate)]
	b := &bucket{debt: new(big.Rat), at: now, drain: drain}
	if ok {
		b.debt.Set(known.debt)
		b.at = known.at
	}
	if lost := r.marks[slotOf(app, rate.Tier)].lost; !lost.IsZero() && (!ok || known.at.Before(lost)) {
		b.drainTo(lost)
		b.at = lost
		if burst := whole(rate.Burst); b.debt.Cmp(burst) < 0 {
			b.debt = burst
		}
	}
	b.drainTo(now)
	return b
}

// drainTo lets the debt shrink up to an instant; going back in time changes nothing.
func (b *bucket) drainTo(now time.Time) {
	if !now.After(b.at) {
		return
	}
	drained := new(big.Rat).Mul(b.drain, whole(now.Sub(b.at).Microseconds()))
	b.debt.Sub(b.debt, drained)
	if b.debt.Sign() < 0 {
		b.debt.SetInt64(0)
	}
	b.at = now
}

func (r *Reference) judgeBucket(now time.Time, app string, rate Rate, need int64) RateFigures {
	b := r.bucketAt(now, app, rate)
	over := new(big.Rat).Add(b.debt, whole(need-rate.Burst))
	f := RateFigures{Fits: over.Sign() <= 0, Used: ceil(b.debt)}
	if !f.Fits {
		f.Wait = time.Duration(ceil(over.Quo(over, b.drain))) * time.Microsecond
	}
	return f
}

func (r *Reference) judgeLog(now time.Time, app string, rate Rate, need int64) RateFigures {
	if lost := r.marks[slotOf(app, rate.Tier)].lost; !lost.IsZero() && now.Before(lost.Add(rate.Window)) {
		return RateFigures{Used: rate.Amount, Wait: lost.Add(rate.Window).Sub(now)}
	}
	var used int64
	var inside []entry
	for _, e := range r.logs[rateOf(app, rate.Rate)] {
		if e.at.Add(rate.Window).After(now) {
			used += e.amount
			inside = append(inside, e)
		}
	}
	f := RateFigures{Fits: used+need <= rate.Amount, Used: used}
	if !f.Fits {
		f.Wait = rate.Window
		for _, e := range inside {
			if used -= e.amount; used+need <= rate.Amount {
				f.Wait = e.at.Add(rate.Window).Sub(now)
				break
			}
		}
	}
	return f
}

// correct replaces what a reservation held by what it spent. Requests were counted when they were admitted. A reservation from
// before a loss is not known to be in the window that it was charged to.
func (r *Reference) correct(now time.Time, app string, e Ending, rate ledger.Rate, reserved time.Time) {
	if rate.Unit != ledger.UnitTokens {
		return
	}
	key, difference := rateOf(app, rate), int64(e.Spent.Tokens-e.Held.Tokens)
	lost := r.marks[key.slot].lost
	// A bucket that is older than a loss is replaced at its next use.
	if b, ok := r.buckets[key]; ok && !b.at.Before(lost) {
		b.drainTo(now)
		b.debt.Add(b.debt, whole(difference))
		if b.debt.Sign() < 0 {
			b.debt.SetInt64(0)
		}
	}
	for i := range r.logs[key] {
		if r.logs[key][i].id == e.ID {
			r.logs[key][i].amount = int64(e.Spent.Tokens)
		}
	}
	if reserved.IsZero() || !reserved.After(lost) {
		return
	}
	if w, ok := r.windows[key]; ok && !reserved.Before(w.start) && reserved.Before(w.start.Add(w.length)) {
		w.used = max(0, w.used+difference)
	}
	if s, ok := r.sliding[key]; ok {
		s.correct(reserved, difference)
	}
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func ceil(x *big.Rat) int64 {
	n := new(big.Int).Add(x.Num(), new(big.Int).Sub(x.Denom(), big.NewInt(1)))
	return exact(n.Div(n, x.Denom()))
}
