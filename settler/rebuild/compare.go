package rebuild

import (
	"context"
	"slices"

	"tollgate/ledger/pg"
	"tollgate/lua"
)

// Compare looks whether Redis still has what the ledger knows of one slot whose mark stands. What was lost or changed by hand
// cannot be mended alone, because what else the counters held is unknown: the mark is taken away, and lost says how many counters
// and reservations there were.
func (r *Rebuilder) Compare(ctx context.Context, slot string) (lost int, err error) {
	session, err := r.Store.Settling(ctx)
	if err != nil {
		return 0, err
	}
	lost, err = r.compare(ctx, session, slot, false)
	session.Close(ctx)
	if err != nil || lost == 0 {
		return 0, err
	}
	// A write-back may have been under way. With settlements kept out, it is there or has failed.
	session, err = r.Store.Rebuilding(ctx)
	if err != nil {
		return 0, err
	}
	defer session.Close(ctx)
	if lost, err = r.compare(ctx, session, slot, true); err != nil || lost == 0 {
		return 0, err
	}
	r.Log.Error("counters or reservations were lost or changed while their mark stood", "slot", slot, "lost", lost)
	return lost, r.Scripts.Unmark(ctx, slot)
}

// compare finds nothing in a slot that must be rebuilt anyway.
func (r *Rebuilder) compare(ctx context.Context, session *pg.Session, slot string, settled bool) (lost int, err error) {
	s, err := r.read(ctx, session, slot)
	if err != nil {
		return 0, err
	}
	counters, open := s.budgets, opens(s.open)
	glance, err := r.Scripts.Look(ctx, slot, counters, open)
	if err != nil {
		return 0, err
	}
	if !settled {
		if open, err = r.still(ctx, open); err != nil {
			return 0, err
		}
	}
	if lost = glance.Lost(counters, open, settled); lost == 0 {
		return 0, nil
	}
	generation, err := r.Generations.Current(ctx)
	if err != nil {
		return 0, err
	}
	for _, of := range []string{slot, lua.SharedSlot} {
		if gone, err := r.missing(ctx, of, generation); err != nil || gone {
			return 0, err
		}
	}
	return lost, nil
}

// still are those of the reservations that are open now.
func (r *Rebuilder) still(ctx context.Context, open []lua.Open) ([]lua.Open, error) {
	ids := make([]string, len(open))
	for i := range open {
		ids[i] = open[i].ReservationID
	}
	pending, _, err := r.Store.Pending(ctx, ids)
	if err != nil {
		return nil, err
	}
	slices.Sort(pending)
	return slices.DeleteFunc(open, func(o lua.Open) bool {
		_, found := slices.BinarySearch(pending, o.ReservationID)
		return !found
	}), nil
}

func opens(reservations []pg.OpenReservation) []lua.Open {
	open := make([]lua.Open, len(reservations))
	for i, o := range reservations {
		r := o.Reservation
		open[i] = lua.Open{
			ReservationID: r.ID, App: o.App, Held: r.HeldInAll(), Counters: r.Counters, Deadline: r.Deadline, ReservedAt: r.ReservedAt,
		}
	}
	return open
}
