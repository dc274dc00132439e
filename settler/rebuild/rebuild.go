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
// # Overtaken
//
// Redis can be emptied while it is written, and a settler can be paused until Postgres has given its lock to another. Each slot
// therefore names who writes it, and refuses everybody else: a mark never stands beside counters that were lost or are another's.
// The lock goes with the connection to Postgres, too, and what is settled then finds no mark: before the last mark is given, the lock
// is asked about.
//
// # Not guaranteed
//
// What a gateway has admitted and holds back in its outbox while it is dead, or cut off from NATS, for longer than its presence
// lasts is unknown to a rebuild, and can be admitted again until it is delivered.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/lua"
)

// timeout bounds one rebuild, the settling of the stream included.
const timeout = 30 * time.Second

// failoverTimeout bounds one look at who Redis is.
const failoverTimeout = 2 * time.Second

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
	// Refresh has an app's budgets and open reservations written back once more.
	Refresh func(app string)
	Log     *slog.Logger
	Now     func() time.Time
}

// New makes a rebuilder.
func New(p Parts) *Rebuilder { return &Rebuilder{p} }

// Missing rebuilds everything if the shared mark is missing; when all is set, it rebuilds every app that has lost its mark.
func (r *Rebuilder) Missing(ctx context.Context, all bool) error {
	if err := r.Slot(ctx, lua.SharedSlot); err != nil || !all {
		return err
	}
	apps, err := r.Store.Apps(ctx)
	if err != nil {
		return err
	}
	generation, err := r.Generations.Current(ctx)
	if err != nil {
		return err
	}
	// An app that never had a mark gets it with its first request, which must not wait for a thousand others.
	lost, err := r.Scripts.Lost(ctx, apps, generation)
	if err != nil {
		return err
	}
	for _, app := range lost {
		if err := r.Slot(ctx, app); err != nil {
			return err
		}
	}
	return nil
}

// Failover makes all marks those of the past when another Redis answers than the one they were written to. Until then the lost
// writes of the former one can be admitted again, so nothing else is waited for here, and a question that is lost with a
// connection is soon asked again.
func (r *Rebuilder) Failover(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, failoverTimeout, errors.New("failover watch: no answer within 2 s"))
	defer cancel()
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
	_, err := r.slot(ctx, slot)
	return err
}

// slot also tells what it wrote, which is nothing where the mark stands.
func (r *Rebuilder) slot(ctx context.Context, slot string) (written event.Rebuilt, err error) {
	generation, err := r.Generations.Current(ctx)
	if err != nil {
		return written, err
	}
	r.Barrier.heard() // so that an interruption is noticed soon, not at the next rebuild
	gone, err := r.missing(ctx, slot, generation)
	if err != nil || !gone {
		return written, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errors.New("rebuild: took more than 30 s"))
	defer cancel()
	if slot != lua.SharedSlot {
		if written, done, err := r.alone(ctx, slot, generation); err != nil || done {
			return written, err
		}
	}
	return r.everything(ctx, slot)
}

// ByHand rebuilds everything although its marks stand, or with an app's name that app, and with it everything if the shared
// counters may hold something of it.
func (r *Rebuilder) ByHand(ctx context.Context, app string) (event.Rebuilt, error) {
	if app == "" {
		if err := r.Generations.Raise(ctx); err != nil {
			return event.Rebuilt{}, err
		}
		return r.slot(ctx, lua.SharedSlot)
	}
	apps, err := r.Store.Apps(ctx)
	if err != nil {
		return event.Rebuilt{}, err
	}
	if !slices.Contains(apps, app) {
		return event.Rebuilt{}, fmt.Errorf("the ledger knows no app %q", app)
	}
	if err := r.Scripts.Unmark(ctx, app); err != nil {
		return event.Rebuilt{}, err
	}
	return r.slot(ctx, app)
}

// alone rebuilds an app that holds nothing; it is not done when the app may hold something. The shared mark stands: Redis was not
// emptied, and the generation stays. Nobody judges the app while its mark is missing, so the barrier need not keep anybody from it.
func (r *Rebuilder) alone(ctx context.Context, app, generation string) (written event.Rebuilt, done bool, err error) {
	if gone, err := r.missing(ctx, lua.SharedSlot, generation); err != nil || gone {
		return written, false, err
	}
	if joined, err := r.Scripts.Joined(ctx, app); err != nil || joined {
		return written, false, err
	}
	if err := r.quiet(ctx, generation); err != nil {
		return written, false, err
	}
	session, err := r.Store.Rebuilding(ctx)
	if err != nil {
		return written, false, err
	}
	defer session.Close(ctx)
	known, err := r.read(ctx, session, app)
	if err != nil || len(known.open) > 0 {
		return written, false, err // admitted without Redis
	}
	if gone, err := r.missing(ctx, lua.SharedSlot, generation); err != nil || gone {
		return written, false, err // Redis was emptied meanwhile
	}
	if gone, err := r.missing(ctx, app, generation); err != nil || !gone {
		return written, true, err // another settler was faster
	}
	rates, err := r.readRates(ctx, session, app)
	if err != nil {
		return written, false, err
	}
	if err := r.Scripts.Join(ctx, app); err != nil {
		return written, false, err
	}
	if err := r.write(ctx, app, generation, known, rates, false, session.Held); err != nil {
		return written, false, err
	}
	// What was settled without the app's mark did not reach the shared counters either.
	r.Refresh(app)
	r.Log.Info("app's counters rebuilt", "app", app)
	return event.Rebuilt{Apps: 1, Counters: len(known.budgets)}, true, nil
}

// Distrust has everything rebuilt, and nothing judged until then: Redis and Postgres are no longer of one history.
func (r *Rebuilder) Distrust(ctx context.Context) error {
	if err := r.Generations.Raise(ctx); err != nil {
		return err
	}
	return r.Scripts.Unmark(ctx, lua.SharedSlot)
}

func (r *Rebuilder) missing(ctx context.Context, slot, generation string) (bool, error) {
	marked, ok, err := r.Scripts.Mark(ctx, slot)
	return !ok || marked != generation, err
}
