package gateway

import (
	"context"
	"log/slog"
	"time"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// writeLine writes the one line about the request: what was decided and by which figures, and what was used. Nothing that the
// caller or the provider said stands in it, but for the names of models and users.
func (x *exchange) writeLine() {
	attributes := x.appendRequest(make([]slog.Attr, 0, 32))
	if x.request != nil {
		attributes = append(attributes, slog.Bool("stream", x.request.Stream))
	}
	if v := x.verdict; v != nil {
		attributes = appendFigures(attributes, v)
		attributes = appendOutcome(attributes, v)
		res := &v.Reservation
		attributes = append(attributes, slog.String("request_id", res.ID), slog.String("user", x.user()),
			slog.Int64("reserved_tokens", int64(res.HeldInAll().Tokens)), slog.Int64("reserved_nanousd", int64(res.HeldInAll().NanoUSD)))
	}
	if x.state != "" {
		attributes = append(attributes, slog.Int64("actual_tokens", int64(x.spent.Tokens)),
			slog.Int64("actual_nanousd", int64(x.spent.NanoUSD)), slog.String("usage_state", string(x.state)))
	}
	x.g.log.LogAttrs(context.Background(), slog.LevelInfo, "request", attributes...)
}

// appendRequest adds who asked for what, and what came of it.
func (x *exchange) appendRequest(attributes []slog.Attr) []slog.Attr {
	attributes = append(attributes,
		slog.String("reason", string(x.reason)), slog.Int("status", x.status), slog.String("app", x.caller.App),
		slog.String("key_id", x.caller.Key), slog.String("endpoint", x.endpoint.Path),
		slog.Float64("duration_ms", milliseconds(time.Since(x.start))))
	if x.request != nil {
		attributes = append(attributes, slog.String("model", x.request.Model))
	}
	if x.traceID != "" {
		attributes = append(attributes, slog.String("trace_id", x.traceID))
	}
	return attributes
}

// appendFigures adds the limit that refused, or the one that an admitted request left the smallest share of, as it was
// decided on: what was used and held before the request, what it needs, and what remains.
func appendFigures(attributes []slog.Attr, v *admission.Verdict) []slog.Attr {
	if r := v.Refusal; r != nil {
		return appendRefusal(attributes, r)
	}
	s := tightest(v.Limits, v.Reservation.Held)
	if s == nil {
		return attributes
	}
	limit := s.Applied.Limit
	return append(attributes, slog.String("limit_name", limit.Name), slog.String("subject", s.Applied.Subject),
		slog.String("unit", string(limit.Unit())), slog.Int64("limit", s.Applied.Value), slog.Int64("current", s.Used),
		slog.Int64("held", s.Held), slog.Int64("needed", v.Reservation.Held.In(limit.Unit())), slog.Int64("remaining", s.Remaining(v.Reservation.Held)))
}

// appendRefusal leaves out what nobody knows: the figures of a limit that was not asked, and those of none.
func appendRefusal(attributes []slog.Attr, r *admission.Refusal) []slog.Attr {
	attributes = append(attributes, slog.String("layer", string(r.Layer)), slog.Float64("retry_after_s", r.RetryAfter.Seconds()))
	if r.LimitName == "" {
		return attributes
	}
	attributes = append(attributes, slog.String("limit_name", r.LimitName), slog.String("subject", r.Subject), slog.String("unit", string(r.Unit)))
	if r.Reason == ledger.ReasonUnpricedModel {
		return attributes
	}
	attributes = append(attributes, slog.Int64("limit", r.Limit), slog.Int64("needed", r.Needed))
	if r.Reason == ledger.ReasonRequestTooLarge {
		return attributes
	}
	return append(attributes, slog.Int64("current", r.Used), slog.Int64("held", r.Held), slog.Int64("remaining", max(0, r.Limit-r.Used-r.Held)))
}

// tightest is the limit of which the smallest share remains; nil without any. A shadow limit is none that the request had to
// pass.
func tightest(states []admission.LimitState, held ledger.Amounts) *admission.LimitState {
	var found *admission.LimitState
	for i := range states {
		s := &states[i]
		if !s.Applied.Limit.Shadow && (found == nil || tighter(s, found, held)) {
			found = s
		}
	}
	return found
}

// appendOutcome adds what is out of the ordinary: limits that were passed over, a wait, another model, no Redis, one of several keys, another attempt.
func appendOutcome(attributes []slog.Attr, v *admission.Verdict) []slog.Attr {
	if len(v.PassedOver) > 0 {
		over := make([]string, len(v.PassedOver))
		for i, p := range v.PassedOver {
			over[i] = string(p.Action) + " " + p.Refusal.LimitName + " " + string(p.Refusal.Reason)
		}
		attributes = append(attributes, slog.Any("passed_over", over))
	}
	if q := v.Queued; q != nil {
		attributes = append(attributes, slog.String("queued_for", q.Limit), slog.Float64("queued_ms", milliseconds(q.Waited)))
	}
	if v.Degraded {
		attributes = append(attributes, slog.Bool("degraded", true))
	}
	if v.Refusal == nil {
		attributes = append(attributes, slog.String("upstream_model", v.Reservation.Model))
	}
	if key := v.Reservation.ProviderKey; key != "" && key != policy.DefaultKey {
		attributes = append(attributes, slog.String("provider_key", key))
	}
	if v.Reservation.Attempt > 1 {
		attributes = append(attributes, slog.Int("attempt", v.Reservation.Attempt))
	}
	return attributes
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
