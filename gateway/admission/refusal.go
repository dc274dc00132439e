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

	onExceed policy.OnExceed // what becomes of the request instead
	probe    time.Duration   // when it is worth to judge the request again
	judged   time.Time       // what RetryAfter and probe count from; zero when no limit was asked
}

// told is the refusal with what is left now of its waits: a wait that was told is never 0, which would mean that none helps.
func (r *Refusal) told() *Refusal {
	now := *r
	if r.judged.IsZero() {
		return &now
	}
	passed := time.Since(r.judged)
	now.RetryAfter = max(r.RetryAfter-passed, min(r.RetryAfter, heldOnly))
	now.probe = max(r.probe-passed, 0)
	now.judged = r.judged.Add(passed)
	return &now
}

// QueueHint is the place in a throttling queue and how long it takes to come to its head.
type QueueHint struct {
	Position     int // from 1
	ExpectedWait time.Duration
}

// LimitState is what one limit showed when the request was judged, before the request itself.
type LimitState struct {
	Applied  policy.Applied
	OnExceed policy.OnExceed // the limit's own, else the plan's
	Fits     bool
	Used     int64 // a rate: in its window; concurrency: in flight
	Held     int64
	Wait     time.Duration // until the request would fit; 0 when it fits or no wait helps
	Reset    time.Time     // when the limit is at its start again; zero when never, or nobody knows
}

// Soft reports whether the limit refuses nobody.
func (s *LimitState) Soft() bool {
	return s.Applied.Limit.Shadow || s.OnExceed.Action == policy.ActionFlag
}

// Remaining is what is left when the request itself takes need: never negative.
func (s *LimitState) Remaining(need ledger.Amounts) int64 {
	return max(0, s.Applied.Value-s.Used-s.Held-need.In(s.Applied.Limit.Unit()))
}

func limitStates(applied []policy.Applied, plan *policy.Plan) []LimitState {
	states := make([]LimitState, len(applied))
	for i := range applied {
		states[i] = LimitState{Applied: applied[i], Fits: true, OnExceed: plan.OnExceed}
		if own := applied[i].Limit.OnExceed; own != nil {
			states[i].OnExceed = *own
		}
	}
	return states
}

// heldOnly is the wait told when a budget would have room but for reservations in flight, and the script's for a slot: they may
// be given back at any moment. After a loss of Redis's data a slot's wait is longer, until every gateway has told its own.
const heldOnly = time.Second

// probeHeld is how often a request that waits for what is in flight is judged again.
const probeHeld = 50 * time.Millisecond

// refusalOf makes the refusal of a judged request: the first violated limit in the order of judging is the layer that is
// reported, the wait is the longest over all that were violated, and none where one of them never has room again. What becomes
// of the request is the strictest of what the violated limits say.
func refusalOf(states []LimitState, need ledger.Amounts) *Refusal {
	var r *Refusal
	never := false
	for i := range states {
		s := &states[i]
		if s.Fits || s.Soft() {
			continue
		}
		if r == nil {
			r = limitRefusal(s, need)
			r.onExceed = s.OnExceed
		}
		probe := s.Wait
		if probe == heldOnly {
			probe = probeHeld
		}
		r.RetryAfter, r.probe = max(r.RetryAfter, s.Wait), max(r.probe, probe)
		r.onExceed = stricter(r.onExceed, s.OnExceed)
		if s.Applied.Limit.Budget != nil {
			never = never || s.Wait <= 0
			r.Exhausted = r.Exhausted || s.Wait != heldOnly
		}
	}
	if never {
		r.RetryAfter, r.onExceed = 0, policy.OnExceed{Action: policy.ActionReject}
	}
	return r
}

// stricter is what becomes of a request when two limits have no room: refused if one refuses, else served by another model if
// one says so, else made to wait no longer and in no longer a line than either allows.
func stricter(a, b policy.OnExceed) policy.OnExceed {
	for _, action := range []policy.Action{policy.ActionReject, policy.ActionFallback} {
		if a.Action == action || b.Action == action {
			return policy.OnExceed{Action: action}
		}
	}
	return policy.OnExceed{Action: policy.ActionThrottle, MaxWait: min(a.MaxWait, b.MaxWait), MaxDepth: min(a.MaxDepth, b.MaxDepth)}
}

func limitRefusal(s *LimitState, need ledger.Amounts) *Refusal {
	limit := s.Applied.Limit
	r := &Refusal{
		Reason: reasonOf(limit), Layer: limit.Tier, Subject: s.Applied.Subject, LimitName: limit.Name, Unit: limit.Unit(),
		Limit: s.Applied.Value, Used: s.Used, Held: s.Held, Needed: need.In(limit.Unit()), ResetsAt: s.Reset,
	}
	if limit.Concurrency > 0 {
		r.Message = fmt.Sprintf("%d requests of %s are in flight, and the limit %s allows %d at once", r.Used, r.Subject, limit.Name, r.Limit)
		return r
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
	case limit.Rate == nil:
		return ledger.ReasonConcurrency
	case limit.Rate.Algorithm == ledger.AlgorithmTokenBucket:
		return ledger.ReasonTokenBucket
	case limit.Rate.Unit == ledger.UnitTokens:
		return ledger.ReasonTPMLimit
	default:
		return ledger.ReasonRPMLimit
	}
}

// tooLarge finds a limit that could not hold the request even when nothing else is used.
func tooLarge(states []LimitState, need ledger.Amounts) *Refusal {
	for i := range states {
		s := &states[i]
		limit, most := s.Applied.Limit, s.Applied.Value
		if limit.Rate != nil && limit.Rate.Algorithm == ledger.AlgorithmTokenBucket {
			most = s.Applied.Burst
		}
		needed := need.In(limit.Unit())
		prepaid := limit.Budget != nil && limit.Budget.Period == ledger.PeriodTotal && limit.Budget.Default == 0 // grants make it larger
		if needed <= most || prepaid || s.Soft() {
			continue
		}
		return &Refusal{
			Reason: ledger.ReasonRequestTooLarge, Layer: limit.Tier, Subject: s.Applied.Subject, LimitName: limit.Name, Unit: limit.Unit(),
			Limit: most, Needed: needed,
			Message: fmt.Sprintf("the request may use %s; the limit %s of %s can never hold more than %s: lower max_tokens or shorten the input",
				amount(needed, limit.Unit()), limit.Name, s.Applied.Subject, amount(most, limit.Unit())),
		}
	}
	return nil
}
