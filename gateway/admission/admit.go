package admission

import (
	"context"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// Admit decides on a request and holds what it may use: judged once, and where limits have no room, served by another model or
// made to wait, as their action says. It errors with ErrUndecided when the request cannot be judged at all. A caller that
// leaves while it waits gets the refusal CLIENT_GONE.
func (a *Admission) Admit(ctx context.Context, ask *Ask) (*Verdict, error) {
	c := a.prepare(ask, ask.Model)
	v := a.behind(c)
	if v == nil {
		var err error
		if v, err = a.judgeKeys(ctx, c); err != nil || v.Refusal == nil {
			return v, err
		}
	}
	switch v.Refusal.onExceed.Action {
	case policy.ActionFallback:
		return a.fallBack(ctx, ask, v)
	case policy.ActionThrottle:
		return a.throttle(ctx, ask, v)
	default:
		return v, nil
	}
}

// behind refuses a request, without a look at Redis, because others wait already for a limit that it meets: it comes after
// them. nil when none do.
func (a *Admission) behind(c *candidate) *Verdict {
	if !a.lines.any() || c.Refusal != nil {
		return nil
	}
	c.Refusal = a.lines.busy(c.Limits, c.Reservation.Held)
	if c.Refusal == nil {
		return nil
	}
	c.Limits = nil
	return c.Verdict
}

// fallBack judges the request as if it asked for the cheaper model that its app has opted in to. Where that has no room
// either, the answer is the first refusal.
func (a *Admission) fallBack(ctx context.Context, ask *Ask, refused *Verdict) (*Verdict, error) {
	name := refused.Refusal.FallbackModel
	if _, no := a.rules.Load().route(name, ask.Protocol); no != nil {
		return refused, nil
	}
	v, err := a.judgeKeys(ctx, a.prepare(ask, name))
	if err != nil {
		return nil, err
	}
	if v.Refusal == nil {
		v.Reservation.Flags = append(v.Reservation.Flags, "fallback")
		return v, nil
	}
	if v.MaybeHeld {
		return v, nil // its release must go on record, and one refusal is as good as the other
	}
	refused.Refusal.FallbackModel = "" // it has no room either
	return refused, nil
}

// throttle has the request wait in the line of the limit that refused it, until it is admitted, refused for another reason,
// given up by its caller, or late. Where another limit has no room then, it moves to that one's line: who waits for the first
// limit alone must not wait behind it.
func (a *Admission) throttle(ctx context.Context, ask *Ask, v *Verdict) (*Verdict, error) {
	w := &wait{start: time.Now(), queued: &Queued{}}
	w.deadline = w.start.Add(v.Refusal.onExceed.MaxWait)
	for final := false; !final && v.Refusal != nil && v.Refusal.onExceed.Action == policy.ActionThrottle; {
		var err error
		if v, final, err = a.waitInLine(ctx, ask, v, w); err != nil {
			return nil, err
		}
	}
	w.queued.Waited = time.Since(w.start)
	v.Queued = w.queued
	return v, nil
}

// wait is one request's waiting, in however many lines.
type wait struct {
	start    time.Time
	deadline time.Time
	queued   *Queued
}

// waitInLine waits in one line, and at its head judges the request again whenever there may be room. final is false when the
// request was refused for another reason than the line's.
func (a *Admission) waitInLine(ctx context.Context, ask *Ask, v *Verdict, w *wait) (_ *Verdict, final bool, err error) {
	refused := v.Refusal
	place, hint := a.lines.join(refused, w.deadline)
	if w.queued.Position == 0 {
		*w.queued = Queued{Limit: refused.LimitName, Position: hint.Position, Expected: hint.ExpectedWait}
	}
	late := func(r *Refusal) (*Verdict, bool, error) {
		v.Refusal = r.told()
		v.Refusal.Queue = &hint
		return v, true, nil
	}
	if place == nil {
		return late(refused)
	}
	defer place.leave()
	pause := refused.probe
	if hint.Position > 1 {
		pause = 0 // who was before it has just found room, or given up
	}
	turn := place.awaitTurn(ctx, w.deadline)
	for turn == turnCome {
		if turn = place.pause(ctx, pause, w.deadline); turn != turnCome {
			break
		}
		next, err := a.judgeKeys(ctx, a.prepare(ask, ask.Model))
		switch {
		case err != nil:
			return nil, true, err
		case next.Refusal == nil:
			place.admitted()
			return next, true, nil
		case next.Refusal.onExceed.Action != policy.ActionThrottle || !next.Refusal.sameLine(refused):
			return next, false, nil
		}
		v, pause = next, next.Refusal.probe
		place.refused(next.Refusal)
	}
	if turn == turnGone {
		return late(gone)
	}
	return late(v.Refusal)
}

// gone is the refusal of a caller that left while its request waited.
var gone = &Refusal{Reason: ledger.ReasonClientGone, Message: "the caller left while the request waited for its turn"}
