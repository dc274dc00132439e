package admission

import (
	"fmt"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// Refusal says which rule refused a request, with the figures of the decision. Fields from Layer on are empty when no limit
// refused but something else did.
type Refusal struct {
	Reason  ledger.Reason
	Message string // for people: what, and what to do

	Layer      ledger.Tier
	Subject    string
	LimitName  string
	Unit       ledger.Unit
	Limit      int64 // in Unit; nano-dollars for usd
	Used       int64
	Held       int64
	Needed     int64
	ResetsAt   time.Time     // zero when the limit never resets
	RetryAfter time.Duration // the longest over all violated limits; 0 when waiting does not help
	Exhausted  bool          // a budget: not worth an automatic retry

	Queue         *QueueHint // where the request would wait, nil when no queue would take it
	FallbackModel string     // a model that the caller may ask for instead, "" without one
}

// QueueHint is the place in a throttling queue and how long it takes to come to its head.
type QueueHint struct {
	Position     int // from 1
	ExpectedWait time.Duration
}

// LimitState is what one limit showed when the request was judged, before the request itself.
type LimitState struct {
	Applied policy.Applied
	Fits    bool
	Used    int64 // a rate: in its window
	Held    int64
	Wait    time.Duration // until the request would fit; 0 when it fits or no wait helps
	Reset   time.Time     // when the limit is at its start again; zero when never
}

// Remaining is what is left when the request itself takes need: never negative.
func (s LimitState) Remaining(need ledger.Amounts) int64 {
	return max(0, s.Applied.Value-s.Used-s.Held-need.In(s.Applied.Limit.Unit()))
}

// heldOnly is the wait told when a budget would have room but for reservations in flight: they may give back what they do
// not use at any moment.
const heldOnly = time.Second

// refusalOf makes the refusal of a judged request: the first violated limit in the order of judging is the layer that is
// reported, the wait is the longest over all that were violated, and none where one of them never has room again.
func refusalOf(states []LimitState, need ledger.Amounts) *Refusal {
	var r *Refusal
	never := false
	for i := range states {
		s := &states[i]
		if s.Fits {
			continue
		}
		if r == nil {
			r = limitRefusal(s, need)
		}
		r.RetryAfter = max(r.RetryAfter, s.Wait)
		if s.Applied.Limit.Budget != nil {
			never = never || s.Wait <= 0
			r.Exhausted = r.Exhausted || s.Wait != heldOnly
		}
	}
	if never {
		r.RetryAfter = 0
	}
	return r
}

func limitRefusal(s *LimitState, need ledger.Amounts) *Refusal {
	limit := s.Applied.Limit
	r := &Refusal{
		Reason: reasonOf(limit), Layer: limit.Tier, Subject: s.Applied.Subject, LimitName: limit.Name, Unit: limit.Unit(),
		Limit: s.Applied.Value, Used: s.Used, Held: s.Held, Needed: need.In(limit.Unit()), ResetsAt: s.Reset,
	}
	what := "budget"
	if limit.Rate != nil {
		what = "rate limit"
	}
	r.Message = fmt.Sprintf("the %s %s of %s has no room: %s used and %s held of %s, this request needs %s",
		what, limit.Name, s.Applied.Subject, amount(r.Used, r.Unit), amount(r.Held, r.Unit), amount(r.Limit, r.Unit), amount(r.Needed, r.Unit))
	return r
}

func amount(n int64, unit ledger.Unit) string {
	if unit == ledger.UnitUSD {
		return "$" + ledger.NanoUSD(n).String()
	}
	return fmt.Sprintf("%d %s", n, unit)
}

func reasonOf(limit *policy.Limit) ledger.Reason {
	switch {
	case limit.Budget != nil || limit.Tier == ledger.TierEndpoint || limit.Tier == ledger.TierIP:
		return limit.Tier.Quota()
	case limit.Rate.Algorithm == ledger.AlgorithmTokenBucket:
		return ledger.ReasonTokenBucket
	case limit.Rate.Unit == ledger.UnitTokens:
		return ledger.ReasonTPMLimit
	default:
		return ledger.ReasonRPMLimit
	}
}

// tooLarge finds a limit that could not hold the request even when nothing else is used.
func tooLarge(applied []policy.Applied, need ledger.Amounts) *Refusal {
	for i := range applied {
		a := &applied[i]
		most := a.Value
		if a.Limit.Rate != nil && a.Limit.Rate.Algorithm == ledger.AlgorithmTokenBucket {
			most = a.Burst
		}
		needed := need.In(a.Limit.Unit())
		if needed <= most {
			continue
		}
		unit := a.Limit.Unit()
		return &Refusal{
			Reason: ledger.ReasonRequestTooLarge, Layer: a.Limit.Tier, Subject: a.Subject, LimitName: a.Limit.Name, Unit: unit,
			Limit: most, Needed: needed,
			Message: fmt.Sprintf("the request may use %s; the limit %s of %s can never hold more than %s: lower max_tokens or shorten the input",
				amount(needed, unit), a.Limit.Name, a.Subject, amount(most, unit)),
		}
	}
	return nil
}
