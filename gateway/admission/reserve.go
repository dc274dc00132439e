package admission

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
	"tollgate/lua"
)

// Admission judges requests. Run must be running while it does. It is safe for concurrent use.
type Admission struct {
	scripts  *lua.Scripts
	keys     *Directory
	control  *Control
	clock    *Clock
	timeout  time.Duration
	metrics  *metrics
	log      *slog.Logger
	degraded func(bool)
	rules    atomic.Pointer[rules]

	setting   sync.Mutex
	published []price.Row // laid over the built-in book

	asking    chan struct{} // one element for each call of Redis under way
	breaker   *Breaker
	local     *Local
	exhausted *Exhausted
	spell     spell
	losses    *losses
	lines     lines
	leases    *leases
	grants    *grants

	rebuildTimeout time.Duration // longer in tests, whose process may stand still
}

// rules are a policy in force with the prices and upstreams that go with it.
type rules struct {
	policy    *policy.Policy
	book      *price.Book
	upstreams map[string]*provider.Upstream
}

// Parts are what an admission stands on. They stay the caller's and must outlive Run.
type Parts struct {
	Scripts *lua.Scripts
	Keys    *Directory
	Control *Control
	Clock   *Clock
	Timeout time.Duration // bounds one Redis call
	Metrics *metrics
	// Degraded is told when the gateway begins to judge without Redis, and when it ends.
	Degraded func(bool)
	Log      *slog.Logger
}

// New makes an admission; SetPolicy must follow before the first request.
func New(p Parts) *Admission {
	a := &Admission{
		scripts: p.Scripts, keys: p.Keys, control: p.Control, clock: p.Clock, timeout: p.Timeout, metrics: p.Metrics,
		degraded: p.Degraded, log: p.Log,
		local: NewLocal(time.Now), exhausted: NewExhausted(maxExhausted, time.Now), losses: newLosses(),
		leases: newLeases(p.Scripts, p.Timeout, p.Log), asking: make(chan struct{}, callsAtOnce),
		grants: newGrants(p.Control.js, p.Log), rebuildTimeout: rebuildTimeout,
	}
	a.breaker = NewBreaker(a.probe, a.breakerChanged, time.Now)
	a.leases.freed = a.lines.freed
	a.metrics.lines.Store(&a.lines)
	return a
}

// maxExhausted is how many used-up budgets are remembered for the time when Redis cannot be asked.
const maxExhausted = 4096

// Run does what goes on beside requests, until ctx ends: it looks whether Redis is back, renews leases, and has lost counters
// rebuilt.
func (a *Admission) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.breaker.Run(ctx) })
	group.Go(func() error { return a.leases.run(ctx) })
	group.Go(func() error { return a.rebuildLost(ctx) })
	group.Go(func() error { return a.registerLate(ctx) })
	group.Go(func() error { return a.grants.run(ctx) })
	return group.Wait()
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
	// Estimate is an upper bound of what the request uses when this upstream model serves it.
	Estimate func(model string) (input, output ledger.Tokens)
	Also     []ledger.Class     // dearer classes that the input can be
	Calls    ledger.Calls       // of tools that the provider may run and bill
	Tier     ledger.ServiceTier // that it asks for
	Unbilled bool               // its provider bills nothing for it: it counts as a request, and needs no price

	Attempt int      // of the same call, from 1; 0 is the first
	First   string   // reservation id of the first attempt, "" for itself
	Without []string // keys of the provider that have failed in this call
	OnlyKey string   // the key that alone knows what the request speaks of, "" for any
}

// Verdict is the decision on an Ask.
type Verdict struct {
	Refusal     *Refusal // nil: allowed, and the reservation is held
	Reservation event.Reservation
	Provider    *policy.Provider
	Upstream    *provider.Upstream
	Key         *provider.Key // that the provider is to be asked with
	Limits      []LimitState  // empty when Redis did not decide
	Price       *price.Row    // nil when the model has no price
	PassedOver  []PassedOver  // limits that had no room and refuse nobody
	Queued      *Queued       // nil when the request did not wait for a limit
	// MaybeHeld is set on a refusal after which Redis may hold the reservation all the same: a release must be recorded.
	MaybeHeld bool
	Degraded  bool // Redis could not be asked, the gateway decided by itself

	section section    // of an allowed request, until Recorded
	decided time.Time  // when Redis was asked
	asked   *candidate // nil when Redis was not
}

// PassedOver is a limit that had no room for an allowed request: in shadow, or with the action flag.
type PassedOver struct {
	Action  policy.Action // ActionFlag, or ActionShadow
	Refusal *Refusal      // what would have been refused, and why
}

// ActionShadow is the action of limits that are evaluated, logged and counted, and do nothing.
const ActionShadow policy.Action = "shadow"

// Queued says how a request waited for a limit.
type Queued struct {
	Limit    string
	Position int           // in the line when it joined, from 1
	Expected time.Duration // how long the wait was expected to be then
	Waited   time.Duration
}

// ErrUndecided is wrapped by errors of Admit: the request cannot be judged at all.
var ErrUndecided = errors.New("the limits cannot be judged")

// Recorded tells that an allowed request is on record, or never will be: a rebuild need not wait for it any more.
func (a *Admission) Recorded(v *Verdict) { v.section.end() }

// Finish tells that the provider has answered an allowed request, or that it was not sent: its slots are free again.
func (a *Admission) Finish(v *Verdict) {
	if v.Refusal != nil {
		return
	}
	v.section.end()
	a.leases.end(v.Reservation.ID)
	if v.Degraded {
		a.spell.end(v.Reservation.ID, a.clock.Now())
	}
}
