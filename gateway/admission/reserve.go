package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
	"tollgate/lua"
)

// Admission judges requests. It is safe for concurrent use.
type Admission struct {
	scripts *lua.Scripts
	keys    *Directory
	control *Control
	clock   *Clock
	timeout time.Duration
	metrics *metrics
	log     *slog.Logger
	rules   atomic.Pointer[rules]
}

// rules are a policy in force with the prices and upstreams that go with it.
type rules struct {
	policy    *policy.Policy
	book      *price.Book
	upstreams map[string]*provider.Upstream
}

// New makes an admission; SetPolicy must follow before the first request. timeout bounds one Redis call.
func New(scripts *lua.Scripts, keys *Directory, control *Control, clock *Clock, timeout time.Duration, m *metrics, log *slog.Logger) *Admission {
	return &Admission{scripts: scripts, keys: keys, control: control, clock: clock, timeout: timeout, metrics: m, log: log}
}

// SetPolicy takes a policy, with an upstream for each of its providers, into force for every request from now on. It errors
// when its prices contradict each other, and leaves the running policy.
func (a *Admission) SetPolicy(p *policy.Policy, upstreams map[string]*provider.Upstream) error {
	overrides := make([]price.Override, len(p.Prices))
	for i, row := range p.Prices {
		overrides[i] = price.Override{Provider: row.Provider, Model: row.Model, From: row.From, Prices: row.PerMillion}
	}
	book, err := price.Default().With(overrides)
	if err != nil {
		return fmt.Errorf("prices of policy %s: %w", p.Revision, err)
	}
	a.rules.Store(&rules{p, book, upstreams})
	return nil
}

// Policy is the policy in force.
func (a *Admission) Policy() *policy.Policy { return a.rules.Load().policy }

// Ask is a request that wants to be sent.
type Ask struct {
	Caller       Caller
	User         string // end user, "" when none is named
	Model        string // as asked for
	Endpoint     string
	EndpointKind string
	IP           string          // as limits count it
	Protocol     policy.Protocol // of the endpoint
	Streamed     bool
	Input        ledger.Tokens
	Output       ledger.Tokens
	Also         []ledger.Class // dearer classes that the input can be
}

// Verdict is the decision on an Ask.
type Verdict struct {
	Refusal     *Refusal // nil: allowed, and the reservation is held
	Reservation event.Reservation
	Provider    *policy.Provider
	Upstream    *provider.Upstream
	Limits      []LimitState
	Price       *price.Row // nil when the model has no price
}

// ErrUndecided is wrapped by errors of Reserve: Redis could not be asked, so the request cannot be judged.
var ErrUndecided = errors.New("the limits cannot be judged")

// UndecidedError is an ErrUndecided after which the reservation may or may not be held: a release must be recorded for it.
type UndecidedError struct {
	Reservation event.Reservation
	Err         error
}

func (e *UndecidedError) Error() string { return e.Err.Error() }

// Unwrap gives the cause, which wraps ErrUndecided.
func (e *UndecidedError) Unwrap() error { return e.Err }

// Reserve judges the request against every limit it meets and holds what it may use. It errors with ErrUndecided when Redis
// gave no answer, as an *UndecidedError when the reservation may be held nevertheless.
func (a *Admission) Reserve(ctx context.Context, ask *Ask) (*Verdict, error) {
	start := time.Now()
	defer func() { a.metrics.admission.Observe(time.Since(start).Seconds()) }()
	// The caller's leaving must not leave open whether the script ran.
	ctx = context.WithoutCancel(ctx)
	rebuilt := false
	for range maxAttempts {
		v, call, err := a.prepare(ask)
		if v.Refusal != nil || err != nil {
			return v, err
		}
		decision, err := a.call(ctx, call, &v.Reservation)
		if err != nil {
			return v, err
		}
		switch decision.Status {
		case lua.StatusAllowed, lua.StatusHeld, lua.StatusRefused:
			a.conclude(v, call, &decision)
			return v, nil
		case lua.StatusRebuild:
			if rebuilt {
				v.Refusal = rebuilding()
				return v, nil
			}
			rebuilt = true
			if err := a.rebuild(ctx, ask.Caller.App); err != nil {
				a.log.Warn("counters are missing and cannot be rebuilt", "app", ask.Caller.App, "error", err)
				v.Refusal = rebuilding()
				return v, nil
			}
		case lua.StatusStaleWindow:
			// The call has calibrated the clock: the next attempt computes the right windows.
		case lua.StatusEnded:
			return v, fmt.Errorf("%w: reservation %s has ended before it began", ErrUndecided, v.Reservation.ID)
		}
	}
	return nil, fmt.Errorf("%w: the clock does not settle", ErrUndecided)
}

// maxAttempts covers a rebuild and a window that turns over while it is judged, each with a repetition.
const maxAttempts = 5

func rebuilding() *Refusal {
	return &Refusal{
		Reason: ledger.ReasonRebuilding, RetryAfter: time.Second,
		Message: "the counters of this app are being rebuilt from the ledger",
	}
}

func (a *Admission) rebuild(ctx context.Context, app string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, rebuildTimeout, errors.New("rebuild: no answer in time"))
	defer cancel()
	return a.control.Rebuild(ctx, app)
}

// call asks Redis, and once more with the same id when no answer came: the script knows the id if it ran. What the second
// attempt is told says nothing about the first: where that may have run, the reservation may be held.
func (a *Admission) call(ctx context.Context, c *lua.ReserveCall, res *event.Reservation) (lua.Decision, error) {
	decision, err := a.callOnce(ctx, c)
	if !lua.Unknown(err) {
		return decision, undecided(err)
	}
	if decision, err = a.callOnce(ctx, c); err != nil {
		return lua.Decision{}, &UndecidedError{*res, undecided(err)}
	}
	return decision, nil
}

func undecided(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUndecided, err)
}

func (a *Admission) callOnce(ctx context.Context, c *lua.ReserveCall) (lua.Decision, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.timeout, errors.New("reserve: Redis did not answer in time"))
	defer cancel()
	sent, start := a.clock.local(), time.Now()
	decision, err := a.scripts.Reserve(ctx, c)
	a.metrics.reserve.Observe(time.Since(start).Seconds())
	if err == nil {
		a.clock.Observe(decision.Now, sent)
	}
	return decision, err
}

// prepare finds the limits that the request meets, prices it and lays out the script's call. The verdict's refusal is set
// when no limit needs to be asked.
func (a *Admission) prepare(ask *Ask) (*Verdict, *lua.ReserveCall, error) {
	r, now := a.rules.Load(), a.clock.Now()
	v := &Verdict{}
	model, refusal := r.route(ask.Model, ask.Protocol)
	if refusal != nil {
		v.Refusal = refusal
		return v, nil, nil
	}
	v.Provider, v.Upstream = r.policy.Providers[model.Provider], r.upstreams[model.Provider]
	applied := r.policy.Match(policy.Request{
		App: ask.Caller.App, Key: ask.Caller.Key, User: ask.User, Plan: ask.Caller.Plan, Provider: model.Provider,
		Model: ask.Model, Endpoint: ask.Endpoint, EndpointKind: ask.EndpointKind, IP: ask.IP,
	}, now, make([]policy.Applied, 0, len(r.policy.Limits)))
	v.Reservation = event.Reservation{
		ID: event.NewReservationID(now), Key: ask.Caller.Key, User: ask.User, Plan: ask.Caller.Plan, Provider: model.Provider,
		ModelRequested: ask.Model, Model: model.Upstream, Endpoint: ask.Endpoint, Attempt: 1, Streamed: ask.Streamed,
		Held:       ledger.Amounts{Requests: 1, Tokens: ask.Input + ask.Output},
		ReservedAt: now, OnExpiry: r.policy.Reservations.OnExpiry, PolicyRevision: r.policy.Revision,
	}
	if v.Refusal = v.estimate(r.book, ask, applied, now); v.Refusal != nil {
		return v, nil, nil
	}
	if v.Refusal = tooLarge(applied, v.Reservation.Held); v.Refusal != nil {
		return v, nil, nil
	}
	call := layOut(r.policy, v, ask.Caller.App, applied, now)
	call.Generation = a.control.Generation()
	return v, call, nil
}

// estimate sets the money that the request may cost at most. A model without a price is refused where money is limited, and
// marked elsewhere.
func (v *Verdict) estimate(book *price.Book, ask *Ask, applied []policy.Applied, now time.Time) *Refusal {
	res := &v.Reservation
	row, ok := book.Find(res.Provider, res.Model, now)
	if ok {
		bound, err := row.UpperBound(ask.Input, ask.Output, now, ask.Also...)
		if err == nil {
			v.Price, res.PriceRow, res.Held.NanoUSD = row, row.ID, bound
			return nil
		}
		if !errors.Is(err, price.ErrMissingPrice) {
			return &Refusal{Reason: ledger.ReasonRequestTooLarge, Message: err.Error()}
		}
	}
	for i := range applied {
		if limit := applied[i].Limit; limit.Unit() == ledger.UnitUSD {
			return &Refusal{
				Reason: ledger.ReasonUnpricedModel, Layer: limit.Tier, Subject: applied[i].Subject, LimitName: limit.Name, Unit: ledger.UnitUSD,
				Message: fmt.Sprintf("the model %s of provider %s has no price, and the budget %s counts money: add it under prices in the policy",
					res.Model, res.Provider, limit.Name),
			}
		}
	}
	res.Flags = append(res.Flags, "unpriced")
	return nil
}

// layOut turns limits into the script's counters, budgets and rates. Budgets on one subject and window share a counter.
func layOut(p *policy.Policy, v *Verdict, app string, applied []policy.Applied, now time.Time) *lua.ReserveCall {
	call := &lua.ReserveCall{ID: v.Reservation.ID, App: app, TTL: p.Reservations.TTL, Need: v.Reservation.Held}
	v.Limits = make([]LimitState, len(applied))
	for i := range applied {
		limit := applied[i].Limit
		v.Limits[i].Applied = applied[i]
		if limit.Budget != nil {
			c := counterOf(call, limit, applied[i].Subject, p.Calendar, now)
			call.Budgets = append(call.Budgets, lua.Budget{Counter: c, Unit: limit.Budget.Unit, Limit: applied[i].Value})
			continue
		}
		call.Rates = append(call.Rates, lua.Rate{
			Rate: ledger.Rate{
				Tier: limit.Tier, Limit: limit.Name, Subject: applied[i].Subject, Algorithm: limit.Rate.Algorithm, Unit: limit.Rate.Unit,
			},
			Amount: applied[i].Value, Window: limit.Rate.Window, Burst: applied[i].Burst,
		})
	}
	v.Reservation.Counters = call.Counters
	v.Reservation.Rates = make([]ledger.Rate, len(call.Rates))
	for i := range call.Rates {
		v.Reservation.Rates[i] = call.Rates[i].Rate
	}
	return call
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
func (a *Admission) conclude(v *Verdict, call *lua.ReserveCall, d *lua.Decision) {
	res := &v.Reservation
	res.ReservedAt, res.Deadline = d.Now, d.Now.Add(call.TTL)
	if d.Status == lua.StatusHeld {
		v.Limits = nil // the figures were in the answer that was lost
		return
	}
	budgets, rates := 0, 0
	for i := range v.Limits {
		s := &v.Limits[i]
		if s.Applied.Limit.Budget != nil {
			s.readBudget(&d.Budgets[budgets], call.Counters[call.Budgets[budgets].Counter].Window, d.Now, res.Held)
			budgets++
			continue
		}
		rate := &d.Rates[rates]
		rates++
		s.Fits, s.Used, s.Wait = rate.Fits, rate.Used, rate.Wait
		s.Reset = d.Now.Add(rate.Reset)
		if d.Status == lua.StatusAllowed {
			s.Reset = s.Reset.Add(addedReset(&call.Rates[rates-1], rate.Reset, res.Held))
		}
	}
	if d.Status == lua.StatusRefused {
		v.Refusal = refusalOf(v.Limits, res.Held)
	}
}

// addedReset is by how much the request itself puts off the moment when the rate is idle again.
func addedReset(r *lua.Rate, before time.Duration, need ledger.Amounts) time.Duration {
	if r.Algorithm == ledger.AlgorithmTokenBucket {
		return time.Duration(float64(r.Window) * float64(need.In(r.Unit)) / float64(r.Amount))
	}
	return r.Window - before
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
