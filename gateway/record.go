package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
)

// event makes an event about a reservation.
func (x *exchange) event(kind event.Kind, res event.Reservation, outcome *event.Outcome, release *event.Release) *event.Event {
	return &event.Event{
		V: event.Version, ID: event.ID(res.ID, kind), Kind: kind, App: x.caller.App, OccurredAt: x.judged.now(), TraceID: x.traceID,
		Reservation: &res, Outcome: outcome, Release: release,
	}
}

// record appends an event whose durability nobody waits for. When even that fails the reservation will expire, and expiry
// charges by policy.
func (x *exchange) record(kind event.Kind, res event.Reservation, outcome *event.Outcome, release *event.Release) {
	x.ended = true
	if err := x.g.outbox.Append(x.event(kind, res, outcome, release)); err != nil {
		x.g.log.Error("event cannot be kept, the reservation will expire", "request_id", res.ID, "kind", kind, "error", err)
	}
}

// release records that nothing was spent.
func (x *exchange) release(r *event.Release) {
	r.Tries = x.severalTries()
	x.record(event.KindReleased, x.verdict.Reservation, nil, r)
}

// severalTries is how many connections were tried for the reservation, 0 for the usual one.
func (x *exchange) severalTries() int {
	if x.attempts.tries > 1 {
		return x.attempts.tries
	}
	return 0
}

// used records what the answer used. Where the provider did not say, the estimate is the input as estimated and output
// tokens as handed in.
func (x *exchange) used(answer provider.Answer, status int, output ledger.Tokens) {
	if x.disconnect != "" {
		x.flagEnd(flagDisconnect + string(x.disconnect))
	}
	res := x.verdict.Reservation
	o := &event.Outcome{
		ModelServed: answer.Model, Usage: answer.Usage, UsageState: answer.State, ServiceTier: answer.Tier, Status: status,
		Others: answer.Others, ProviderCost: answer.Cost, UpstreamID: answer.UpstreamID, Finish: answer.Finish,
		FirstByteMS: x.firstByte.Milliseconds(), DurationMS: time.Since(x.start).Milliseconds(), Tries: x.severalTries(),
		OnDisconnect: string(x.disconnect),
	}
	if o.ModelServed == "" {
		o.ModelServed = res.Model
	}
	estimate := ledger.Usage{Input: x.input, Output: output, Calls: answer.Usage.Calls}
	switch {
	case o.UsageState == "":
		o.Usage, o.UsageState = estimate, ledger.UsageEstimated
	case o.UsageState == ledger.UsageInconsistent && o.Usage.Total() > absurd*res.HeldInAll().Tokens:
		// Figures that contradict each other and leave all measure are a fault of the provider's; charged as they stand, one
		// of them would shut every budget above.
		x.g.log.Error("absurd usage, the estimate is charged", "request_id", res.ID, "tokens", o.Usage.Total())
		o.Usage = estimate
	}
	if o.UsageState == ledger.UsageReported {
		x.g.learner.Learn(x.caller.App, res.Model, x.rawEstimate(res.Model), o.Usage)
	}
	x.price(o)
	if o.CostDiffers() {
		x.g.log.Warn("the provider tells another cost", "request_id", res.ID, "cost", o.Cost, "told", *o.ProviderCost)
		res.Flags = append(slices.Clone(res.Flags), event.FlagCostDiffers)
	}
	x.reason, x.spent, x.state = answer.Finish, o.Spent(), o.UsageState
	x.g.metrics.used(res.Provider, res.Model, o)
	x.record(event.KindUsed, res, o, nil)
}

// absurd is how many times what was held an inconsistent usage may be and still be charged.
const absurd = 10

// giveBack ends the attempt in Redis at once, and its slots, where no event tells of it, or another attempt follows. The exchange
// may go on with another verdict, so finish would not end this one.
func (x *exchange) giveBack() {
	res := x.verdict.Reservation
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(x.r.Context()), x.g.config.LimiterTimeout, errors.New("give back: Redis did not answer in time"))
	defer cancel()
	_, err := x.g.scripts.Settle(ctx, x.caller.App, nil, nil, []lua.Ending{{
		ReservationID: res.ID, Counters: res.Counters, Rates: res.RateNames(), Held: res.Held,
	}})
	if err != nil {
		x.g.log.Warn("hold not given back, it will lapse at its deadline", "request_id", res.ID, "error", err)
	}
	x.g.admission.Finish(x.verdict)
}

// finish writes the one line about the request and counts its decision. It runs also when the connection is aborted, and
// when a bug ended the request; nobody knows then what was spent, and the estimate is charged.
func (x *exchange) finish() {
	if x.admitted && !x.ended {
		x.used(provider.Answer{Finish: ledger.ReasonInternal}, 0, x.heldOutput())
		x.status = http.StatusInternalServerError
	}
	if x.verdict != nil {
		x.g.admission.Finish(x.verdict)
	}
	decision, layer := "refuse", ledger.Tier("")
	if x.admitted {
		decision = "allow"
	}
	if x.verdict != nil && x.verdict.Refusal != nil {
		layer = x.verdict.Refusal.Layer
	}
	x.g.metrics.decisions.WithLabelValues(decision, string(x.reason), string(layer)).Inc()
	if decision == "refuse" {
		x.countRefusal()
	}
	x.writeLine()
}

// traceID is the trace id of a W3C traceparent, "" when there is no valid one.
func traceID(h http.Header) string {
	parts := strings.Split(h.Get("Traceparent"), "-")
	if len(parts) != 4 || len(parts[1]) != 32 || parts[1] == strings.Repeat("0", 32) {
		return ""
	}
	if _, err := hex.DecodeString(parts[1]); err != nil {
		return ""
	}
	return parts[1]
}
