// Package rebuild writes counters, open reservations and marks to Redis from Postgres, where a mark is missing.
//
// The order is what makes it safe: without the mark nobody reserves in the slot; what was published before is waited for and
// settled; then settlements are kept out while Postgres is read and Redis written, and the mark comes last.
//
// Reservations hold on the counters of their app and on the shared ones, and only together do the two agree. So an app is
// rebuilt by itself only when it holds nothing, neither in Postgres nor in Redis. Otherwise, and when the shared mark is
// missing, everything is rebuilt: the shared mark is taken away first, and is the last to come back.
package rebuild

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"tollgate/ledger/pg"
	"tollgate/lua"
)

// timeout bounds one rebuild, the settling of the stream included.
const timeout = 30 * time.Second

// activeFor is how long after its last settlement a slot counts as in use: what its rates were charged in a time that the
// ledger does not tell then counts as all that they allow.
const activeFor = 24 * time.Hour

// Settled waits until everything that is on the stream now is settled.
type Settled func(ctx context.Context) error

// Rebuilder rebuilds slots. It is safe for concurrent use; several processes may rebuild the same slot.
type Rebuilder struct {
	store   *pg.Store
	scripts *lua.Scripts
	settled Settled
	rebuilt func(app string)
	grace   time.Duration
	log     *slog.Logger
	now     func() time.Time

	mu         sync.Mutex
	generation string
}

// New makes a rebuilder that knows no generation yet. rebuilt is told of every app that was rebuilt alone: its budgets must be
// written back once more. grace is how long publishes may be in flight.
func New(store *pg.Store, scripts *lua.Scripts, settled Settled, rebuilt func(app string), grace time.Duration, log *slog.Logger, now func() time.Time) *Rebuilder {
	return &Rebuilder{store: store, scripts: scripts, settled: settled, rebuilt: rebuilt, grace: grace, log: log, now: now}
}

// SetGeneration says which generation marks must name.
func (r *Rebuilder) SetGeneration(generation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation = generation
}

func (r *Rebuilder) current() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.generation
}

// Missing rebuilds everything if the shared mark is missing; when all is set, it rebuilds every app whose mark is.
func (r *Rebuilder) Missing(ctx context.Context, all bool) error {
	if err := r.Slot(ctx, lua.SharedSlot); err != nil || !all {
		return err
	}
	apps, err := r.store.Apps(ctx)
	if err != nil {
		return err
	}
	for _, app := range apps {
		if err := r.Slot(ctx, app); err != nil {
			return err
		}
	}
	return nil
}

// Slot rebuilds one slot if its mark is missing, with whatever must be rebuilt together with it.
func (r *Rebuilder) Slot(ctx context.Context, slot string) error {
	gone, err := r.missing(ctx, slot)
	if err != nil || !gone {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("rebuild: took more than 30 s"))
	defer cancel()
	if slot == lua.SharedSlot {
		return r.everything(ctx)
	}
	alone, err := r.alone(ctx, slot)
	if err != nil || alone {
		return err
	}
	return r.everything(ctx)
}

// alone rebuilds an app that holds nothing; false when it holds something. The shared mark stands: Redis was not emptied.
func (r *Rebuilder) alone(ctx context.Context, app string) (bool, error) {
	if gone, err := r.missing(ctx, lua.SharedSlot); err != nil || gone {
		return false, err
	}
	known, err := r.store.HasHistory(ctx, app)
	if err != nil {
		return false, err
	}
	if known { // else nothing can be in flight, and the first request of a new app need not wait
		if err := r.quiet(ctx); err != nil {
			return false, err
		}
	}
	session, err := r.store.Rebuilding(ctx)
	if err != nil {
		return false, err
	}
	defer session.Close(ctx)
	open, err := session.OpenReservations(ctx, app)
	if err != nil {
		return false, err
	}
	held, err := r.scripts.Overdue(ctx, app, r.now().AddDate(1, 0, 0), 1)
	if err != nil || len(open)+len(held) > 0 {
		return false, err
	}
	if gone, err := r.missing(ctx, app); err != nil || !gone {
		return true, err // another settler was faster
	}
	rates, err := r.readRates(ctx, session, app)
	if err != nil {
		return false, err
	}
	if err := r.write(ctx, session, app, app, rates); err != nil {
		return false, err
	}
	// What was settled without the app's mark did not reach the shared counters either.
	r.rebuilt(app)
	r.log.Info("app's counters rebuilt", "app", app)
	return true, nil
}

// unbelieved is a generation that no gateway ever has.
const unbelieved = "none"

// everything rebuilds all slots.
func (r *Rebuilder) everything(ctx context.Context) error {
	began := time.Now()
	if err := r.scripts.Rebuild(ctx, lua.RebuildCall{Slot: lua.SharedSlot, Generation: unbelieved}); err != nil {
		return err
	}
	if err := r.quiet(ctx); err != nil {
		return err
	}
	session, err := r.store.Rebuilding(ctx)
	if err != nil {
		return err
	}
	defer session.Close(ctx)
	if gone, err := r.missing(ctx, lua.SharedSlot); err != nil || !gone {
		return err // another settler was faster
	}
	apps, err := r.store.Apps(ctx)
	if err != nil {
		return err
	}
	rates, err := r.readRates(ctx, session, "")
	if err != nil {
		return err
	}
	for _, app := range apps {
		if err := r.write(ctx, session, app, app, rates); err != nil {
			return err
		}
	}
	// In Postgres the owner of shared counters is "", and the open reservations of all apps hold on them.
	if err := r.write(ctx, session, lua.SharedSlot, "", rates); err != nil {
		return err
	}
	r.log.Warn("all counters rebuilt", "apps", len(apps), "seconds", time.Since(began).Seconds())
	return nil
}

// quiet waits for what is being published and until it is settled.
func (r *Rebuilder) quiet(ctx context.Context) error {
	timer := time.NewTimer(r.grace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	}
	return r.settled(ctx)
}

func (r *Rebuilder) missing(ctx context.Context, slot string) (bool, error) {
	generation, ok, err := r.scripts.Mark(ctx, slot)
	return !ok || generation != r.current(), err
}

// write replaces one slot by what Postgres has for its owner.
func (r *Rebuilder) write(ctx context.Context, session *pg.Session, slot, owner string, rates *rates) error {
	budgets, err := session.LiveBudgets(ctx, owner, r.now())
	if err != nil {
		return err
	}
	open, err := session.OpenReservations(ctx, owner)
	if err != nil {
		return err
	}
	call := lua.RebuildCall{
		Slot: slot, Generation: r.current(), Active: len(open) > 0, ChargedSince: rates.since, Charges: rates.bySlot[slot],
	}
	call.Active = call.Active || len(call.Charges) > 0
	for _, b := range budgets {
		call.Counters = append(call.Counters, lua.CounterState{Counter: b.Counter, App: b.App, Used: b.Used, Version: b.Version})
		call.Active = call.Active || r.now().Sub(b.UpdatedAt) < activeFor
	}
	for _, o := range open {
		call.Open = append(call.Open, lua.Open{
			ReservationID: o.Reservation.ID, App: o.App, Held: o.Reservation.Held, Counters: o.Reservation.Counters, Deadline: o.Reservation.Deadline,
			ReservedAt: o.Reservation.ReservedAt,
		})
	}
	return r.scripts.Rebuild(ctx, call)
}
