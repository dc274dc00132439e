package admission

import (
	"context"
	"slices"
	"time"

	"tollgate/ledger"
	"tollgate/lua"
)

// decisionAge is how old a decision may be when its request is sent. A gateway that was paused may have been left out of a barrier,
// and then Redis knows nothing of what it held.
const decisionAge = 5 * time.Second

// Stands asks Redis once more about a decision that has grown old, with the same reservation, which Redis holds at most once.
// nil when the request may be sent; else the caller must record that it was released. It is to be called right before
// sending. Age is measured by the monotonic clock.
func (a *Admission) Stands(ctx context.Context, v *Verdict) *Refusal {
	c := v.asked
	if c == nil || v.Degraded || time.Since(v.decided) < decisionAge {
		return nil
	}
	again := *c
	again.Verdict = &Verdict{Reservation: v.Reservation, Limits: slices.Clone(v.Limits)}
	call := *c.call
	call.Generation = a.control.Generation()
	again.call = &call
	v.decided = time.Now()
	decision, err := a.askRedis(context.WithoutCancel(ctx), &call)
	switch {
	case err != nil:
		a.judgeLocally(&again, err)
		v.Degraded = again.Refusal == nil
	case decision.Status == lua.StatusAllowed, decision.Status == lua.StatusHeld:
	case decision.Status == lua.StatusRefused && len(again.Limits) > 0:
		again.read(&decision)
		again.Refusal = refusalOf(again.Limits, v.Reservation.Held)
	default:
		// Its counters are lost, its window is over, it has expired; or Redis had lost it, others were given what it held, and a settler
		// has told Redis of it since.
		a.losses.notice(c.ask.Caller.App)
		again.Refusal = &Refusal{
			Reason: ledger.ReasonRebuilding, RetryAfter: time.Second,
			Message: "the decision on this request has grown old and cannot be repeated at the moment",
		}
	}
	if again.Refusal != nil {
		a.leases.end(v.Reservation.ID)
		a.log.Warn("decision has grown old and does not stand", "request_id", v.Reservation.ID, "reason", again.Refusal.Reason)
	}
	return again.Refusal
}
