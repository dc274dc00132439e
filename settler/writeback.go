package settler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/pg"
	"tollgate/lua"
)

const (
	// redisTimeout bounds one app's write-back.
	redisTimeout = 2 * time.Second
	// writeBacksTimeout bounds that of a whole batch: the next one waits for it in its transaction.
	writeBacksTimeout = 5 * time.Second
)

// writeBack tells Redis what Postgres has committed. An app that Redis does not take is remembered; settlement goes on.
func (s *Settler) writeBack(ctx context.Context, writeBacks []pg.WriteBack) {
	ctx, cancel := context.WithTimeoutCause(ctx, writeBacksTimeout, errors.New("write-back: took more than 5 s"))
	defer cancel()
	for _, w := range writeBacks {
		if err := s.settleApp(ctx, w); err != nil {
			s.log.Warn("write-back failed, will refresh", "app", w.App, "error", err)
			for _, w := range writeBacks { // the others would only wait for the same timeout
				s.markDirty(w.App)
			}
			return
		}
	}
}

func (s *Settler) settleApp(ctx context.Context, w pg.WriteBack) error {
	ctx, cancel := context.WithTimeoutCause(ctx, redisTimeout, errors.New("write-back: Redis did not answer"))
	defer cancel()
	opens := make([]lua.Open, len(w.Opens))
	for i, o := range w.Opens {
		opens[i] = luaOpen(o)
	}
	endings := make([]lua.Ending, len(w.Endings))
	for i, e := range w.Endings {
		r := e.Reservation
		endings[i] = lua.Ending{ReservationID: r.ID, Counters: r.Counters, Rates: r.RateNames(), Held: r.Held, Spent: e.Spent}
	}
	start := time.Now()
	result, err := s.scripts.Settle(ctx, w.App, w.Counters, opens, endings)
	s.metrics.settle.Observe(time.Since(start).Seconds())
	if err != nil {
		s.metrics.redisDown.Set(1)
		return err
	}
	s.metrics.redisDown.Set(0)
	if result.Negative > 0 {
		s.metrics.negative.Add(float64(result.Negative))
		s.log.Error("held amounts went below zero: Redis has lost counters", "app", w.App, "figures", result.Negative)
		return s.lose(ctx, w.App)
	}
	if !result.Applied {
		return s.settleShared(ctx, w.Counters)
	}
	return nil
}

// settleShared tells the shared counters what they have used by an app whose own mark is missing: the other apps are judged by them.
// Where their mark is missing, too, nothing is written. All else the rebuild will read from the same rows.
func (s *Settler) settleShared(ctx context.Context, counters []ledger.CounterState) error {
	shared := slices.DeleteFunc(slices.Clone(counters), func(c ledger.CounterState) bool { return !c.Counter.Tier.Shared() })
	if len(shared) == 0 {
		return nil
	}
	_, err := s.scripts.Settle(ctx, lua.SharedSlot, shared, nil, nil)
	return err
}

// loseAgain is how long a rebuild must have helped before the next one is due: no fault may keep Redis in rebuilds.
const loseAgain = 10 * time.Second

// lose has an app rebuilt whose counters, or the shared ones, do not hold what its reservations do.
func (s *Settler) lose(ctx context.Context, app string) error {
	s.mu.Lock()
	early := s.now().Sub(s.lost) < loseAgain
	if !early {
		s.lost = s.now()
	}
	s.mu.Unlock()
	if early {
		return nil
	}
	return s.scripts.Unmark(ctx, app)
}

func luaOpen(o pg.OpenReservation) lua.Open {
	r := o.Reservation
	return lua.Open{ReservationID: r.ID, App: o.App, Held: r.HeldInAll(), Counters: r.Counters, Deadline: r.Deadline}
}

func (s *Settler) markDirty(app string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty[app] = true
	s.metrics.drift.Set(float64(len(s.dirty)))
}

func (s *Settler) markClean(app string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dirty, app)
	s.metrics.drift.Set(float64(len(s.dirty)))
}

func (s *Settler) dirtyApps() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.dirty))
}

// refreshDirty brings Redis up to date for the apps whose write-back it did not take.
func (s *Settler) refreshDirty(ctx context.Context) error {
	for _, app := range s.dirtyApps() {
		// Before the look at Postgres: a write-back that fails meanwhile must leave its mark.
		s.markClean(app)
		if err := s.refresh(ctx, app); err != nil {
			s.markDirty(app)
			return fmt.Errorf("refresh app %s: %w", app, err)
		}
	}
	return nil
}

// renew keeps marks from lapsing: where nothing was lost, nothing needs to be rebuilt.
func (s *Settler) renew(ctx context.Context) error {
	apps, err := s.store.Apps(ctx)
	if err != nil {
		return err
	}
	for _, app := range apps {
		if err := s.refresh(ctx, app); err != nil {
			return fmt.Errorf("renew app %s: %w", app, err)
		}
		if err := s.scripts.Renew(ctx, app); err != nil {
			return err
		}
	}
	return s.scripts.Renew(ctx, lua.SharedSlot)
}

// refresh writes everything that Postgres knows of a running app, by version and by id like any write-back, so that it may
// run beside settlements. Reservations that ended while Redis was away are found by asking Postgres about those it holds.
func (s *Settler) refresh(ctx context.Context, app string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, batchTimeout, errors.New("refresh: took more than 30 s"))
	defer cancel()
	session, err := s.store.Settling(ctx)
	if err != nil {
		return err
	}
	defer session.Close(ctx)
	w := pg.WriteBack{App: app}
	if w.Counters, err = session.LiveBudgets(ctx, s.now(), "", app); err != nil {
		return err
	}
	if w.Opens, err = session.OpenReservations(ctx, app); err != nil {
		return err
	}
	if err := s.settleApp(ctx, w); err != nil {
		return err
	}
	return s.sweep.EndFinished(ctx, session, app)
}
