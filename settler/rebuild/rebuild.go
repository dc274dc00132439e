// Package rebuild writes counters, open reservations and marks to Redis from Postgres, where a mark is missing.
//
// The order is what makes it safe. Without the mark nobody reserves in the slot. A barrier has every live gateway bring what it
// admitted before to the stream; that is waited for until it is settled; then settlements are kept out while Postgres is read and
// Redis written, and the mark comes last. While NATS is away there is no barrier, so nothing is rebuilt.
//
// # Generations
//
// A mark counts only if it names the current generation. Everything is rebuilt for a new one: a gateway that the barrier did not
// reach, because it is paused or cut off, still names the one before, is answered REBUILD, and adopts the new one only when
// what it had admitted is delivered. A gateway is waited for until its presence lapses.
//
// Reservations hold on the counters of their app and on the shared ones, and only together do the two agree. What ended while
// its app had no mark was given back on neither. So an app is rebuilt by itself only when the shared counters cannot hold anything
// of it: it has had no mark since they were rebuilt, and nothing is open. Otherwise, and when the shared mark is missing,
// everything is rebuilt: the shared mark is taken away first, and is the last to come back.
//
// # Failover
//
// With the generation stands which Redis its marks were written to. When another one answers, because a replica was promoted or
// the server restarted, its last writes may be missing: the generation is raised, and everything is rebuilt.
//
// # Not guaranteed
//
// What a gateway has admitted and holds back in its outbox while it is dead, or cut off from NATS, for longer than its presence
// lasts is unknown to a rebuild, and can be admitted again until it is delivered.
package rebuild

import (
	"context"
	"errors"
	"log/slog"
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
type Rebuilder struct{ Parts }

// Parts are what a rebuilder stands on.
type Parts struct {
	Store       *pg.Store
	Scripts     *lua.Scripts
	Generations *Generations
	Barrier     *Barrier
	Settled     Settled
	// Rebuilt is told of every app that was rebuilt alone: its budgets must be written back once more.
	Rebuilt func(app string)
	Log     *slog.Logger
	Now     func() time.Time
}

// New makes a rebuilder.
func New(p Parts) *Rebuilder { return &Rebuilder{p} }

// Missing rebuilds everything if the shared mark is missing; when all is set, it rebuilds every app whose mark is.
func (r *Rebuilder) Missing(ctx context.Context, all bool) error {
	r.Barrier.connectedSince() // so that a reconnect is noticed soon, not at the next rebuild
	if err := r.failover(ctx); err != nil {
		return err
	}
	if err := r.Slot(ctx, lua.SharedSlot); err != nil || !all {
		return err
	}
	apps, err := r.Store.Apps(ctx)
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

// failover makes all marks those of the past when another Redis answers than the one they were written to.
func (r *Rebuilder) failover(ctx context.Context) error {
	redis, err := r.Scripts.Identity(ctx)
	if err != nil || redis == "" {
		return err
	}
	raised, err := r.Generations.Elsewhere(ctx, redis)
	if raised {
		r.Log.Warn("another Redis answers, or it was restarted: what it knows is not believed", "redis", redis)
	}
	return err
}

// Slot rebuilds one slot if its mark is missing, with whatever must be rebuilt together with it.
func (r *Rebuilder) Slot(ctx context.Context, slot string) error {
	generation, err := r.Generations.Current(ctx)
	if err != nil {
		return err
	}
	gone, err := r.missing(ctx, slot, generation)
	if err != nil || !gone {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("rebuild: took more than 30 s"))
	defer cancel()
	if slot == lua.SharedSlot {
		return r.everything(ctx, slot)
	}
	alone, err := r.alone(ctx, slot, generation)
	if err != nil || alone {
		return err
	}
	return r.everything(ctx, slot)
}

// alone rebuilds an app that holds nothing; false when it may hold something. The shared mark stands: Redis was not emptied, and
// the generation stays. Nobody judges the app while its mark is missing, so the barrier need not keep anybody from it.
func (r *Rebuilder) alone(ctx context.Context, app, generation string) (bool, error) {
	if gone, err := r.missing(ctx, lua.SharedSlot, generation); err != nil || gone {
		return false, err
	}
	if joined, err := r.Scripts.Joined(ctx, app); err != nil || joined {
		return false, err
	}
	if err := r.quiet(ctx, generation); err != nil {
		return false, err
	}
	session, err := r.Store.Rebuilding(ctx)
	if err != nil {
		return false, err
	}
	defer session.Close(ctx)
	// It may have been admitted without Redis.
	if open, err := session.OpenReservations(ctx, app); err != nil || len(open) > 0 {
		return false, err
	}
	if gone, err := r.missing(ctx, lua.SharedSlot, generation); err != nil || gone {
		return false, err // Redis was emptied meanwhile
	}
	if gone, err := r.missing(ctx, app, generation); err != nil || !gone {
		return true, err // another settler was faster
	}
	rates, err := r.readRates(ctx, session, app)
	if err != nil {
		return false, err
	}
	if err := r.Scripts.Join(ctx, app); err != nil {
		return false, err
	}
	if err := r.write(ctx, session, slotState{app, app, generation}, rates); err != nil {
		return false, err
	}
	// What was settled without the app's mark did not reach the shared counters either.
	r.Rebuilt(app)
	r.Log.Info("app's counters rebuilt", "app", app)
	return true, nil
}

// Distrust has everything rebuilt, and nothing judged until then: Redis and Postgres are no longer of one history.
func (r *Rebuilder) Distrust(ctx context.Context) error {
	if _, err := r.Generations.Raise(ctx); err != nil {
		return err
	}
	return r.Scripts.Unmark(ctx, lua.SharedSlot)
}

// finished waits for a rebuild that is being written, and tells whether the slot has its mark then.
func (r *Rebuilder) finished(ctx context.Context, slot, generation string) (bool, error) {
	session, err := r.Store.Rebuilding(ctx)
	if err != nil {
		return false, err
	}
	session.Close(ctx)
	gone, err := r.missing(ctx, slot, generation)
	return err == nil && !gone, err
}

// everything rebuilds all slots, because the mark of one is missing, for a generation of its own: a gateway that does not pass the
// barrier still names the one before, and judges nothing.
func (r *Rebuilder) everything(ctx context.Context, slot string) error {
	began := time.Now()
	generation, err := r.Generations.Begin(ctx, func(ctx context.Context, generation string) (bool, error) {
		return r.finished(ctx, slot, generation)
	})
	if err != nil || generation == "" {
		return err
	}
	if err := r.Scripts.Unmark(ctx, lua.SharedSlot); err != nil {
		return err
	}
	if err := r.quiet(ctx, generation); err != nil {
		return err
	}
	session, err := r.Store.Rebuilding(ctx)
	if err != nil {
		return err
	}
	defer session.Close(ctx)
	if gone, err := r.missing(ctx, lua.SharedSlot, generation); err != nil || !gone {
		return err // another settler was faster
	}
	redis, err := r.Scripts.Identity(ctx)
	if err != nil {
		return err
	}
	if err := r.Generations.Use(ctx, generation, redis); err != nil {
		return err
	}
	apps, err := r.Store.Apps(ctx)
	if err != nil {
		return err
	}
	if err := r.Scripts.JoinAll(ctx, apps); err != nil {
		return err
	}
	rates, err := r.readRates(ctx, session, "")
	if err != nil {
		return err
	}
	for _, app := range apps {
		if err := r.write(ctx, session, slotState{app, app, generation}, rates); err != nil {
			return err
		}
	}
	// In Postgres the owner of shared counters is "", and the open reservations of all apps hold on them.
	if err := r.write(ctx, session, slotState{lua.SharedSlot, "", generation}, rates); err != nil {
		return err
	}
	r.Log.Warn("all counters rebuilt", "apps", len(apps), "seconds", time.Since(began).Seconds())
	return nil
}

// quiet has every gateway bring what it admitted to the stream, and waits until it is settled.
func (r *Rebuilder) quiet(ctx context.Context, generation string) error {
	empty, err := r.empty(ctx)
	if err != nil {
		return err
	}
	if err := r.Barrier.Pass(ctx, generation, empty); err != nil {
		return err
	}
	return r.Settled(ctx)
}

// empty reports whether the ledger has never seen a reservation.
func (r *Rebuilder) empty(ctx context.Context) (bool, error) {
	apps, err := r.Store.Apps(ctx)
	if err != nil {
		return false, err
	}
	for _, app := range append(apps, "") {
		if known, err := r.Store.HasHistory(ctx, app); err != nil || known {
			return false, err
		}
	}
	return true, nil
}

func (r *Rebuilder) missing(ctx context.Context, slot, generation string) (bool, error) {
	marked, ok, err := r.Scripts.Mark(ctx, slot)
	return !ok || marked != generation, err
}

// slotState names what is written: a slot, who owns its budgets in Postgres, and the generation of its mark.
type slotState struct{ slot, owner, generation string }

// write replaces one slot by what Postgres has for its owner.
func (r *Rebuilder) write(ctx context.Context, session *pg.Session, to slotState, rates *rates) error {
	slot, owner := to.slot, to.owner
	budgets, err := session.LiveBudgets(ctx, owner, r.Now())
	if err != nil {
		return err
	}
	open, err := session.OpenReservations(ctx, owner)
	if err != nil {
		return err
	}
	call := lua.RebuildCall{
		Slot: slot, Generation: to.generation, Active: len(open) > 0, ChargedSince: rates.since, Charges: rates.bySlot[slot],
	}
	call.Active = call.Active || len(call.Charges) > 0
	for _, b := range budgets {
		call.Counters = append(call.Counters, lua.CounterState{Counter: b.Counter, App: b.App, Used: b.Used, Version: b.Version})
		call.Active = call.Active || r.Now().Sub(b.UpdatedAt) < activeFor
	}
	for _, o := range open {
		call.Open = append(call.Open, lua.Open{
			ReservationID: o.Reservation.ID, App: o.App, Held: o.Reservation.Held, Counters: o.Reservation.Counters, Deadline: o.Reservation.Deadline,
			ReservedAt: o.Reservation.ReservedAt,
		})
	}
	return r.Scripts.Rebuild(ctx, call)
}
