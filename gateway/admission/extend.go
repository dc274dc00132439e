package admission

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
	"tollgate/lua"
)

// hardSteps are by how many tokens a reservation is extended, the first that every hard budget has room for. A thousand tokens take
// a model ten seconds, so a stream asks Redis six times a minute; near a budget's end the steps shrink, so that no stream leaves
// more than the last unused. Where nothing ends the stream, softStep is enough.
var hardSteps = []ledger.Tokens{1024, 256, 64}

const softStep ledger.Tokens = 4096

// hardBudget is a budget of a call at which streams end.
type hardBudget struct {
	place   int // among the call's budgets
	applied policy.Applied
}

// Extension is what became of a stream that outgrew what was held for it.
type Extension struct {
	Output  ledger.Tokens // the answer may have so many
	Refusal *Refusal      // of a hard budget, nil: the stream may go on
}

// The outcomes that extensions are counted by.
const (
	extensionHeld    = "held"
	extensionRefused = "refused" // the stream ends
	extensionLocal   = "local"   // Redis could not be asked; or nothing but soft budgets applies
)

// Extend holds more for an answer that needs so many tokens in all, by the limits of the decision that admitted it, and hands the
// reservation as it stands then to record. A soft budget without room lets it go on, past the budget. Where Redis cannot be
// asked, a stream under a hard budget draws on the gateway's own allowance, as a new request would; what it draws is not held.
// It is to be called by one goroutine at a time.
func (a *Admission) Extend(ctx context.Context, v *Verdict, input, need ledger.Tokens, record func(event.Reservation) error) Extension {
	c := v.asked
	if c == nil || c.call == nil || len(c.call.Budgets) == 0 {
		return Extension{Output: math.MaxInt64} // nothing counts it but rates, which the settlement corrects
	}
	// A barrier must find on record what is held by the marks before it.
	section := a.control.sections.begin()
	defer section.end()
	steps := hardSteps
	if len(c.hard) == 0 {
		steps = []ledger.Tokens{softStep}
	}
	var refusal *Refusal
	for _, step := range steps {
		all, err := c.holding(input, need+step)
		if err != nil {
			return a.ended(c, &Refusal{Reason: ledger.ReasonRequestTooLarge, Message: err.Error()}, need+step)
		}
		answer, err := a.askExtension(ctx, c, all)
		switch {
		case err != nil, answer.Status == lua.StatusRebuild, answer.Status == lua.StatusUnknown:
			if answer.Status == lua.StatusRebuild {
				a.losses.notice(c.ask.Caller.App)
			}
			return a.extendLocally(c, all, need+step, err)
		case answer.Status == lua.StatusEnded:
			return a.ended(c, &Refusal{Reason: ledger.ReasonDegraded, Message: "the answer takes longer than its reservation lasts"}, need+step)
		case answer.Status == lua.StatusRefused:
			refusal = c.hardRefusal(&answer, all)
			continue
		}
		a.metrics.extensions.WithLabelValues(extensionHeld).Inc()
		if err := c.extended(&answer, all, record); err != nil {
			a.log.Error("extension cannot be recorded", "request_id", v.Reservation.ID, "error", err)
			return a.ended(c, &Refusal{Reason: ledger.ReasonEventLogDown, Message: "the answer cannot be recorded any further"}, need+step)
		}
		return Extension{Output: need + step}
	}
	return a.ended(c, refusal, need)
}

// ended ends the stream where a hard budget applies.
func (a *Admission) ended(c *candidate, r *Refusal, output ledger.Tokens) Extension {
	if len(c.hard) == 0 {
		a.metrics.extensions.WithLabelValues(extensionLocal).Inc()
		return Extension{Output: output}
	}
	a.metrics.extensions.WithLabelValues(extensionRefused).Inc()
	return Extension{Refusal: r}
}

// holding is what must be held for so many tokens.
func (c *candidate) holding(input, output ledger.Tokens) (ledger.Amounts, error) {
	held := c.Reservation.HeldInAll()
	held.Tokens = max(held.Tokens, input+output)
	if c.Price == nil {
		return held, nil
	}
	bound, err := c.Price.UpperBound(price.Ask{Input: input, Output: output, Calls: c.ask.Calls, Also: c.ask.Also, Tier: c.ask.Tier}, c.Reservation.ReservedAt)
	held.NanoUSD = max(held.NanoUSD, bound)
	return held, err
}

func (a *Admission) askExtension(ctx context.Context, c *candidate, all ledger.Amounts) (answer lua.Extension, err error) {
	call := &lua.ExtendCall{
		ID: c.Reservation.ID, App: c.call.App, Generation: a.control.Generation(), Held: all, Counters: c.call.Counters,
		Budgets: slices.Clone(c.call.Budgets),
	}
	for i := range call.Budgets {
		call.Budgets[i].Soft = !slices.ContainsFunc(c.hard, func(h hardBudget) bool { return h.place == i })
	}
	// The caller's leaving must not leave open whether the script ran.
	_, err = a.ask(context.WithoutCancel(ctx), a.metrics.extend, func(ctx context.Context) error {
		answer, err = a.scripts.Extend(ctx, call)
		return err
	})
	return answer, err
}

// extended notes what is held now, and that it went past a soft budget.
func (c *candidate) extended(answer *lua.Extension, all ledger.Amounts, record func(event.Reservation) error) error {
	res := &c.Reservation
	res.Extended = all.Sub(res.Held)
	res.Extensions++
	c.drawn = ledger.Amounts{}
	full := slices.ContainsFunc(answer.Budgets, func(b lua.BudgetState) bool { return !b.Fits })
	if full && !slices.Contains(res.Flags, flagOutgrown) {
		res.Flags = append(slices.Clone(res.Flags), flagOutgrown)
	}
	return record(*res)
}

// flagOutgrown marks an answer that went past a budget that lets it.
const flagOutgrown = "outgrown"

// hardRefusal is of the first hard budget without room.
func (c *candidate) hardRefusal(answer *lua.Extension, all ledger.Amounts) *Refusal {
	more := all.Sub(c.Reservation.HeldInAll())
	for _, h := range c.hard {
		b := answer.Budgets[h.place]
		if b.Fits {
			continue
		}
		s := LimitState{Applied: h.applied, Used: b.Used, Held: b.Held, Reset: c.call.Counters[c.call.Budgets[h.place].Counter].End}
		r := limitRefusal(&s, more)
		r.Message = fmt.Sprintf("the answer was ended, because the budget %s of %s has no room for more of it: %s used and %s held of %s",
			r.LimitName, r.Subject, amount(r.Used, r.Unit), amount(r.Held, r.Unit), amount(r.Limit, r.Unit))
		r.Exhausted = true
		return r
	}
	return &Refusal{Reason: ledger.ReasonInternal, Message: "no budget refused"} // the script's reply was checked: some did
}

// extendLocally decides without Redis.
func (a *Admission) extendLocally(c *candidate, all ledger.Amounts, output ledger.Tokens, cause error) Extension {
	if cause != nil && !errors.Is(cause, errNotAsked) {
		a.log.Warn("redis could not be asked, stream judged locally", "request_id", c.Reservation.ID, "error", cause)
	}
	local := c.rules.policy.Degraded
	more := all.Sub(c.Reservation.HeldInAll()).Sub(c.drawn)
	if len(c.hard) > 0 {
		if slices.Contains(local.ClosedPlans, c.ask.Caller.Plan) {
			return a.ended(c, degraded("the limits cannot be judged at the moment, and the plan "+c.ask.Caller.Plan+" is closed until they can", time.Second), output)
		}
		for _, h := range c.hard {
			unit := h.applied.Limit.Budget.Unit
			spent := SpentBudget{h.applied.Subject, h.applied.Limit.Budget.Period, unit}
			if used, _, refused := a.exhausted.Refuses(spent, h.applied.Value, more.In(unit)); refused {
				return a.ended(c, limitRefusal(&LimitState{Applied: h.applied, Used: used}, more), output)
			}
		}
		if ok, wait := a.local.Allow(local.Local, c.ask.Caller.App, more.Tokens); !ok {
			return a.ended(c, degraded("the limits cannot be judged at the moment, and what this gateway may allow by itself meanwhile is used up", wait), output)
		}
		c.drawn = c.drawn.Add(more)
	}
	a.metrics.extensions.WithLabelValues(extensionLocal).Inc()
	return Extension{Output: output}
}
