package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
	"tollgate/lua"
)

// candidate is a request with everything that one judgement of it needs.
type candidate struct {
	*Verdict
	ask   *Ask
	model string // as which it is judged
	start time.Time
	rules *rules
	full  []string         // keys of the provider whose own limits had no room
	call  *lua.ReserveCall // nil when a refusal needed no limit
	hard  []hardBudget     // of the call's budgets
	drawn ledger.Amounts   // on the gateway's own allowance, beyond what Redis holds
}

// judge decides once: every limit in one call, held everywhere or nowhere. An allowed verdict is in a section, which Recorded
// ends.
func (a *Admission) judge(ctx context.Context, c *candidate) (*Verdict, error) {
	start := c.start
	defer func() { a.metrics.admission.Observe(time.Since(start).Seconds()) }()
	// The caller's leaving must not leave open whether the script ran.
	ctx = context.WithoutCancel(ctx)
	rebuilt := false
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		if attempt > 1 {
			c = a.prepare(c.ask, c.model, c.full...)
		}
		if c.Refusal != nil {
			c.Limits = nil
			return c.Verdict, nil
		}
		c.section = a.control.sections.begin()
		c.decided, c.asked = time.Now(), c
		c.call.Generation = a.control.Generation() // read within the section: a barrier before it has set it
		decision, err := a.askRedis(ctx, c.call)
		if errors.Is(err, lua.ErrCall) {
			c.section.end()
			return nil, fmt.Errorf("%w: %w", ErrUndecided, err)
		}
		if err != nil {
			a.judgeLocally(c, err)
			return c.judged(), nil
		}
		switch decision.Status {
		case lua.StatusAllowed, lua.StatusHeld, lua.StatusForced, lua.StatusRefused:
			a.conclude(c, &decision)
			return c.judged(), nil
		}
		// Nothing is held, and a rebuild that is waited for would wait for the section.
		c.section.end()
		switch decision.Status {
		case lua.StatusRebuild:
			if rebuilt || !a.rebuiltNow(ctx, c) {
				c.section = a.control.sections.begin()
				a.judgeLost(c)
				return c.judged(), nil
			}
			rebuilt = true
		case lua.StatusStaleWindow:
			// The call has calibrated the clock: the next attempt computes the right windows.
		case lua.StatusEnded:
			return nil, fmt.Errorf("%w: reservation %s has ended before it began", ErrUndecided, c.Reservation.ID)
		}
	}
	return nil, fmt.Errorf("%w: the clock does not settle", ErrUndecided)
}

// judged ends the section of a refusal: nothing is spent.
func (c *candidate) judged() *Verdict {
	if c.Refusal != nil {
		c.section.end()
	}
	return c.Verdict
}

// maxAttempts covers a rebuild and a window that turns over while it is judged, each with a repetition.
const maxAttempts = 5

// prepare finds the key to ask with and the limits that the request meets, prices it and lays out the script's call. The refusal
// is set when no limit needs to be asked. Keys that are full are passed over.
func (a *Admission) prepare(ask *Ask, name string, full ...string) *candidate {
	r, now := a.rules.Load(), a.clock.Now()
	c := &candidate{Verdict: &Verdict{}, ask: ask, model: name, start: time.Now(), rules: r, full: full}
	model, refusal := r.route(name, ask.Protocol)
	if refusal != nil {
		c.Refusal = refusal
		return c
	}
	c.Provider, c.Upstream = r.policy.Providers[model.Provider], r.upstreams[model.Provider]
	keyName, refusal := c.chooseKey(model)
	if refusal != nil {
		c.Refusal = refusal
		return c
	}
	input, output := ask.Estimate(model.Upstream)
	applied := r.policy.Match(policy.Request{
		App: ask.Caller.App, Key: ask.Caller.Key, User: ask.User, Plan: ask.Caller.Plan, Provider: model.Provider,
		ProviderKey: keyName, Model: name, Endpoint: ask.Endpoint, EndpointKind: ask.EndpointKind, IP: ask.IP,
	}, now, make([]policy.Applied, 0, len(r.policy.Limits)))
	a.grants.raise(applied, r.policy.Calendar, now)
	c.Limits = limitStates(applied, r.policy.Plans[ask.Caller.Plan])
	c.Reservation = event.Reservation{
		ID: event.NewReservationID(now), Key: ask.Caller.Key, User: ask.User, Plan: ask.Caller.Plan, Provider: model.Provider,
		ProviderKey: keyName, ModelRequested: ask.Model, Model: model.Upstream, Endpoint: ask.Endpoint, Attempt: max(ask.Attempt, 1),
		FirstAttempt: ask.First, Streamed: ask.Streamed,
		Held:       ledger.Amounts{Requests: 1, Tokens: input + output},
		ReservedAt: now, OnExpiry: r.policy.Reservations.OnExpiry, PolicyRevision: r.policy.Revision,
	}
	if name != ask.Model {
		c.Reservation.ModelJudged = name
	}
	if c.Refusal = c.priced(input, output, now); c.Refusal != nil {
		return c
	}
	if c.Refusal = tooLarge(c.Limits, c.Reservation.Held); c.Refusal != nil {
		return c
	}
	c.layOut(now)
	return c
}

// priced sets the money that the request may cost at most. A model without a price is refused where money is limited, and
// marked elsewhere.
func (c *candidate) priced(input, output ledger.Tokens, now time.Time) *Refusal {
	if c.ask.Unbilled {
		return nil
	}
	res := &c.Reservation
	row, ok := c.rules.book.Find(res.Provider, res.Model, now)
	if ok {
		bound, err := row.UpperBound(price.Ask{Input: input, Output: output, Calls: c.ask.Calls, Also: c.ask.Also, Tier: c.ask.Tier}, now)
		if err == nil {
			c.Price, res.PriceRow, res.Held.NanoUSD = row, row.ID, bound
			return nil
		}
		if !errors.Is(err, price.ErrMissingPrice) {
			return &Refusal{Reason: ledger.ReasonRequestTooLarge, Message: err.Error()}
		}
	}
	for i := range c.Limits {
		s := &c.Limits[i]
		if limit := s.Applied.Limit; limit.Unit() == ledger.UnitUSD && !s.Soft() {
			return &Refusal{
				Reason: ledger.ReasonUnpricedModel, Layer: limit.Tier, Subject: s.Applied.Subject, LimitName: limit.Name, Unit: ledger.UnitUSD,
				Message: fmt.Sprintf("the model %s of provider %s has no price, and the budget %s counts money: add it under prices in the policy",
					res.Model, res.Provider, limit.Name),
			}
		}
	}
	res.Flags = append(res.Flags, "unpriced")
	return nil
}

// layOut turns limits into the script's counters, budgets and rates. Budgets on one subject and window share a counter.
func (c *candidate) layOut(now time.Time) {
	p := c.rules.policy
	c.call = &lua.ReserveCall{ID: c.Reservation.ID, App: c.ask.Caller.App, TTL: p.Reservations.TTL, Need: c.Reservation.Held}
	for i := range c.Limits {
		s := &c.Limits[i]
		limit := s.Applied.Limit
		if limit.Budget != nil {
			if limit.Hard && !s.Soft() {
				c.hard = append(c.hard, hardBudget{len(c.call.Budgets), s.Applied})
			}
			counter := counterOf(c.call, limit, s.Applied.Subject, p.Calendar, now)
			c.call.Budgets = append(c.call.Budgets, lua.Budget{
				Counter: counter, Unit: limit.Budget.Unit, Limit: s.Applied.Value, Soft: s.Soft(),
			})
			continue
		}
		c.call.Rates = append(c.call.Rates, rateOf(s))
	}
	c.Reservation.Counters = c.call.Counters
	c.Reservation.Rates = make([]event.Rate, len(c.call.Rates))
	for i := range c.call.Rates {
		c.Reservation.Rates[i] = recorded(&c.call.Rates[i])
	}
}

func recorded(r *lua.Rate) event.Rate {
	e := event.Rate{Rate: r.Rate, WindowMS: r.Window.Milliseconds()}
	if r.Algorithm == ledger.AlgorithmTokenBucket {
		e.Amount, e.Burst = r.Amount, r.Burst
	}
	return e
}

func rateOf(s *LimitState) lua.Rate {
	limit := s.Applied.Limit
	rate := lua.Rate{
		Rate:   ledger.Rate{Tier: limit.Tier, Limit: limit.Name, Subject: s.Applied.Subject, Unit: limit.Unit()},
		Amount: s.Applied.Value, Burst: s.Applied.Burst, Soft: s.Soft(),
	}
	if limit.Rate == nil {
		rate.Algorithm = ledger.AlgorithmConcurrency
		return rate
	}
	rate.Algorithm, rate.Window = limit.Rate.Algorithm, limit.Rate.Window
	return rate
}

func counterOf(call *lua.ReserveCall, limit *policy.Limit, subject string, calendar ledger.Calendar, now time.Time) int {
	for i := range call.Counters {
		if c := &call.Counters[i]; c.Subject == subject && c.Period == limit.Budget.Period {
			return i
		}
	}
	call.Counters = append(call.Counters, ledger.Counter{
		Tier: limit.Tier, Family: limit.Family, Subject: subject, Period: limit.Budget.Period,
		Window: calendar.Window(limit.Budget.Period, now),
	})
	return len(call.Counters) - 1
}

// conclude reads the script's figures into the verdict.
func (a *Admission) conclude(c *candidate, d *lua.Decision) {
	res := &c.Reservation
	app := c.ask.Caller.App
	a.losses.judged(app)
	res.ReservedAt, res.Deadline = d.Now, d.Now.Add(c.call.TTL)
	if d.Status == lua.StatusHeld || d.Status == lua.StatusForced {
		c.Limits = nil // the figures were in the answer that was lost
		a.leases.begin(app, res)
		return
	}
	c.read(d)
	a.remember(c, d.Now)
	if d.Status == lua.StatusRefused {
		c.Refusal = refusalOf(c.Limits, c.Reservation.Held)
		c.Refusal.judged = time.Now()
		if own := c.rules.policy.Apps[app]; own != nil {
			c.Refusal.FallbackModel = own.Fallback[c.ask.Model]
		}
		return
	}
	c.passOver()
	a.leases.begin(app, res)
}

func (c *candidate) read(d *lua.Decision) {
	budgets, rates := 0, 0
	for i := range c.Limits {
		s := &c.Limits[i]
		if s.Applied.Limit.Budget != nil {
			s.readBudget(&d.Budgets[budgets], c.call.Counters[c.call.Budgets[budgets].Counter].Window, d.Now, c.Reservation.Held)
			budgets++
			continue
		}
		rate, state := &c.call.Rates[rates], &d.Rates[rates]
		rates++
		s.Fits, s.Used, s.Wait = state.Fits, state.Used, state.Wait
		if rate.Algorithm == ledger.AlgorithmConcurrency {
			continue // when a slot is free again nobody can know
		}
		s.Reset = d.Now.Add(state.Reset)
		if d.Status == lua.StatusAllowed && s.Fits {
			s.Reset = s.Reset.Add(addedReset(rate, state.Reset, c.Reservation.Held))
		}
	}
}

// addedReset is by how much the request itself puts off the moment when the rate is idle again.
func addedReset(r *lua.Rate, before time.Duration, need ledger.Amounts) time.Duration {
	switch r.Algorithm {
	case ledger.AlgorithmTokenBucket:
		return time.Duration(float64(r.Window) * float64(need.In(r.Unit)) / float64(r.Amount))
	case ledger.AlgorithmFixedWindow:
		if before > 0 {
			return 0 // the window ends when it ends
		}
		return r.Window
	default:
		return r.Window - before
	}
}

func (s *LimitState) readBudget(b *lua.BudgetState, w ledger.Window, now time.Time, need ledger.Amounts) {
	s.Fits, s.Used, s.Held, s.Reset = b.Fits, b.Used, b.Held, w.End
	if s.Fits {
		return
	}
	if s.Used <= s.Applied.Value-need.In(s.Applied.Limit.Unit()) {
		s.Wait = heldOnly
	} else if !w.End.IsZero() {
		s.Wait = w.End.Sub(now)
	}
}

// passOver notes the limits that had no room and refuse nobody. A rate among them was not charged, so it is not corrected by
// the settlement either.
func (c *candidate) passOver() {
	rate := -1
	for i := range c.Limits {
		s := &c.Limits[i]
		if s.Applied.Limit.Budget == nil {
			rate++
		}
		if s.Fits {
			continue
		}
		action, flag := ActionShadow, "shadow"
		if !s.Applied.Limit.Shadow {
			action, flag = policy.ActionFlag, "flagged"
		}
		c.PassedOver = append(c.PassedOver, PassedOver{action, limitRefusal(s, c.Reservation.Held)})
		if !slices.Contains(c.Reservation.Flags, flag) {
			c.Reservation.Flags = append(c.Reservation.Flags, flag)
		}
		if s.Applied.Limit.Budget == nil {
			uncharged := c.call.Rates[rate].Rate
			c.Reservation.Rates = slices.DeleteFunc(c.Reservation.Rates, func(r event.Rate) bool { return r.Rate == uncharged })
		}
	}
}
