package rebuild

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/lua"
)

// writesAtOnce is how many apps are written side by side.
const writesAtOnce = 16

// everything rebuilds all slots, because the mark of one is missing, for a generation of its own: a gateway that does not pass the
// barrier still names the one before, and judges nothing.
func (r *Rebuilder) everything(ctx context.Context, slot string) (written event.Rebuilt, err error) {
	began := time.Now()
	generation, err := r.Generations.Begin(ctx, func(ctx context.Context, generation string) (bool, error) {
		return r.finished(ctx, slot, generation)
	})
	if err != nil || generation == "" {
		return written, err
	}
	if err := r.Scripts.Unmark(ctx, lua.SharedSlot); err != nil {
		return written, err
	}
	if err := r.quiet(ctx, generation); err != nil {
		return written, err
	}
	session, err := r.Store.Rebuilding(ctx)
	if err != nil {
		return written, err
	}
	defer session.Close(ctx)
	if gone, err := r.missing(ctx, lua.SharedSlot, generation); err != nil || !gone {
		return written, err // another settler was faster
	}
	redis, err := r.Scripts.Identity(ctx)
	if err != nil {
		return written, err
	}
	if err := r.Generations.Use(ctx, generation, redis); err != nil {
		return written, err
	}
	written, err = r.writeAll(ctx, session, generation)
	if err != nil {
		return event.Rebuilt{}, err
	}
	r.Log.Warn("all counters rebuilt", "apps", written.Apps, "counters", written.Counters, "open", written.Open, "seconds", time.Since(began).Seconds())
	return written, nil
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

// Quiet returns when all that gateways admitted and ended before the call is in the ledger: nothing of it is in an outbox or on
// the stream any more, save in the outbox of a gateway that has lapsed.
func (r *Rebuilder) Quiet(ctx context.Context) error {
	generation, err := r.Generations.Current(ctx)
	if err != nil {
		return err
	}
	return r.quiet(ctx, generation)
}

// quiet has every gateway bring what it admitted to the stream, and waits until it is settled.
func (r *Rebuilder) quiet(ctx context.Context, generation string) error {
	empty, err := r.Store.Empty(ctx)
	if err != nil {
		return err
	}
	if err := r.Barrier.Pass(ctx, generation, empty); err != nil {
		return err
	}
	return r.Settled(ctx)
}

// writeAll replaces every slot, the shared one last.
func (r *Rebuilder) writeAll(ctx context.Context, session *pg.Session, generation string) (written event.Rebuilt, err error) {
	apps, err := r.Store.Apps(ctx)
	if err != nil {
		return written, err
	}
	if err := r.Scripts.JoinAll(ctx, apps); err != nil {
		return written, err
	}
	rates, err := r.readRates(ctx, session, "")
	if err != nil {
		return written, err
	}
	bySlot, err := r.readAll(ctx, session)
	if err != nil {
		return written, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(writesAtOnce)
	written.Apps, written.Open = len(apps), len(bySlot[lua.SharedSlot].open)
	for _, app := range apps {
		group.Go(func() error { return r.write(groupCtx, app, generation, bySlot[app], rates, true, nil) })
	}
	if err := group.Wait(); err != nil {
		return written, err
	}
	for _, s := range bySlot {
		written.Counters += len(s.budgets)
	}
	return written, r.write(ctx, lua.SharedSlot, generation, bySlot[lua.SharedSlot], rates, true, session.Held)
}

// slotState is what Postgres knows of a slot.
type slotState struct {
	budgets []ledger.CounterState
	open    []pg.OpenReservation // for the shared slot those of all apps
}

// owner is whom Postgres says that a slot's budgets belong to.
func owner(slot string) string {
	if slot == lua.SharedSlot {
		return ""
	}
	return slot
}

func (r *Rebuilder) read(ctx context.Context, session *pg.Session, slot string) (s slotState, err error) {
	if s.budgets, err = session.LiveBudgets(ctx, r.Now(), owner(slot)); err != nil {
		return s, err
	}
	s.open, err = session.OpenReservations(ctx, owner(slot))
	return s, err
}

// readAll reads what there is of all slots in two queries.
func (r *Rebuilder) readAll(ctx context.Context, session *pg.Session) (map[string]slotState, error) {
	budgets, err := session.AllLiveBudgets(ctx, r.Now())
	if err != nil {
		return nil, err
	}
	open, err := session.OpenReservations(ctx, "")
	if err != nil {
		return nil, err
	}
	bySlot := map[string]slotState{lua.SharedSlot: {open: open}}
	for _, b := range budgets {
		slot := b.App
		if slot == "" {
			slot = lua.SharedSlot
		}
		s := bySlot[slot]
		s.budgets = append(s.budgets, b)
		bySlot[slot] = s
	}
	for _, o := range open {
		s := bySlot[o.App]
		s.open = append(s.open, o)
		bySlot[o.App] = s
	}
	return bySlot, nil
}

// write replaces one slot by what Postgres has of it; all says that every slot is written, the shared one last. The mark after which
// gateways judge is given only when sure has no error.
func (r *Rebuilder) write(ctx context.Context, slot, generation string, s slotState, rates *rates, all bool, sure func(context.Context) error) error {
	return r.Scripts.Rebuild(ctx, lua.RebuildCall{
		Slot: slot, Generation: generation, WithShared: all, ChargedSince: rates.since, Counters: s.budgets, Open: opens(s.open),
		Charges: rates.bySlot[slot], Sure: sure,
		Active: len(s.open) > 0 || len(rates.bySlot[slot]) > 0 || rates.cut,
	})
}
