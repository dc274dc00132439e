package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/ledger"
	"tollgate/lua"
)

// errNotAsked stands for a call that was not made: Redis is not asked until the breaker has seen it answer, or the call's turn
// would have come too late.
var errNotAsked = errors.New("redis was not asked")

// callsAtOnce is how many calls are under way at once: no more than there are connections. Who comes on top waits here and not
// for a connection, where a crowd would look like a Redis that does not answer.
const callsAtOnce = 64

// askRedis makes the one call of a decision.
func (a *Admission) askRedis(ctx context.Context, c *lua.ReserveCall) (decision lua.Decision, err error) {
	took, err := a.ask(ctx, a.metrics.reserve, func(ctx context.Context) (err error) {
		decision, err = a.scripts.Reserve(ctx, c)
		return err
	})
	if err == nil {
		a.clock.Observe(decision.Now, took)
	}
	return decision, err
}

// ask makes a call, unless the breaker is open. It waits for its turn no longer than the limiter's timeout, and for Redis no longer
// than that once more.
func (a *Admission) ask(ctx context.Context, seconds prometheus.Observer, call func(context.Context) error) (took time.Duration, err error) {
	if !a.breaker.Allow() {
		return 0, errNotAsked
	}
	select {
	case a.asking <- struct{}{}:
	default:
		late := time.NewTimer(a.timeout)
		defer late.Stop()
		select {
		case a.asking <- struct{}{}:
		case <-late.C:
			a.breaker.Shed()
			return 0, errNotAsked
		}
	}
	defer func() { <-a.asking }()
	if !a.breaker.Allow() { // it may have opened meanwhile
		return 0, errNotAsked
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, errors.New("limiter: Redis did not answer in time"))
	defer cancel()
	start := time.Now()
	err = call(ctx)
	took = time.Since(start)
	a.breaker.Done(took, err)
	seconds.Observe(took.Seconds())
	return took, err
}

// judgeLocally decides without Redis: by what is known of used-up budgets, and by an allowance that is small on purpose. The
// reservation keeps its id. Where the call that failed may have run, Redis holds under that very id, and the settlement of the
// request, or its release, ends it there.
func (a *Admission) judgeLocally(c *candidate, cause error) {
	app, asked := c.ask.Caller.App, !errors.Is(cause, errNotAsked)
	if asked {
		a.log.Warn("redis could not be asked, judged locally", "app", app, "error", cause)
	}
	res := &c.Reservation
	res.Deadline = res.ReservedAt.Add(c.rules.policy.Reservations.TTL)
	c.Refusal = a.localRefusal(c)
	c.Limits, c.Degraded = nil, true
	if c.Refusal != nil {
		c.MaybeHeld = asked && lua.Unknown(cause)
		return
	}
	res.Flags = append(res.Flags, "degraded")
	a.spell.begin(app, res)
	a.leases.begin(app, res)
}

func (a *Admission) localRefusal(c *candidate) *Refusal {
	p, caller := c.rules.policy, c.ask.Caller
	if slices.Contains(p.Degraded.ClosedPlans, caller.Plan) {
		return degraded(fmt.Sprintf("the limits cannot be judged at the moment, and the plan %s is closed until they can", caller.Plan), p.Degraded.Breaker.ProbeEvery)
	}
	for i := range c.Limits {
		s := &c.Limits[i]
		budget := s.Applied.Limit.Budget
		if budget == nil || s.Soft() {
			continue
		}
		used, resets, refused := a.exhausted.Refuses(spentBudget(s), s.Applied.Value, c.Reservation.Held.In(budget.Unit))
		if !refused {
			continue
		}
		s.Used = used
		r := limitRefusal(s, c.Reservation.Held)
		r.Exhausted, r.RetryAfter = true, resets
		if resets > 0 {
			r.ResetsAt = c.Reservation.ReservedAt.Add(resets)
		}
		return r
	}
	ok, wait := a.local.Allow(p.Degraded.Local, caller.App, c.Reservation.Held.Tokens)
	if ok {
		return nil
	}
	return degraded("the limits cannot be judged at the moment, and what this gateway may allow by itself meanwhile is used up", wait)
}

func degraded(message string, wait time.Duration) *Refusal {
	return &Refusal{Reason: ledger.ReasonDegraded, Message: message, RetryAfter: max(wait, time.Second)}
}

// remember keeps the budgets that refused until their window ends, and forgets those that have room again.
func (a *Admission) remember(c *candidate, now time.Time) {
	for i := range c.Limits {
		s := &c.Limits[i]
		switch {
		case s.Applied.Limit.Budget == nil:
		case s.Fits:
			a.exhausted.Forget(spentBudget(s))
		case s.Wait != heldOnly && s.Reset.IsZero():
			a.exhausted.Remember(spentBudget(s), s.Used, 0)
		case s.Wait != heldOnly:
			a.exhausted.Remember(spentBudget(s), s.Used, s.Reset.Sub(now))
		}
	}
}

func spentBudget(s *LimitState) SpentBudget {
	return SpentBudget{s.Applied.Subject, s.Applied.Limit.Budget.Period, s.Applied.Limit.Budget.Unit}
}

// probe finds out whether Redis takes writes again, and has it hold what was admitted without it, and the slots that may have
// lapsed meanwhile, before it is asked again.
func (a *Admission) probe(ctx context.Context) error {
	timed, cancel := context.WithTimeoutCause(ctx, a.timeout, errors.New("probe: Redis did not answer in time"))
	defer cancel()
	if err := a.scripts.Probe(timed); err != nil {
		return err
	}
	if err := a.register(ctx); err != nil {
		return err
	}
	return a.leases.renewNow(ctx)
}

func (a *Admission) breakerChanged(open bool, why string) {
	a.degraded(open)
	if open {
		a.log.Error("redis is not asked any more, this gateway judges by itself", "why", why)
		return
	}
	a.log.Info("redis is asked again", "why", why)
}
