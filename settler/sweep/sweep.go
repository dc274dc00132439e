// Package sweep ends the reservations whose outcome never arrived, so that nothing is held for ever.
//
// What Postgres knows as pending is expired by an event, whose content depends on the reservation alone: settlers that sweep at
// once publish the same bytes. What Redis holds and Postgres does not know was never recorded, so it was never spent: it is
// given back in Redis. Both can only be told when nothing is on its way any more: every live gateway has brought what it
// recorded to the stream, and that is settled. Only then is anything ended; while NATS is away, nothing is.
//
// What Postgres knows as ended and Redis still holds was not written back, or not yet. It is given back once Redis has what the
// budgets used.
//
// # Not guaranteed
//
// What a gateway holds back in its outbox while it is dead, or cut off from NATS for longer than its presence lasts, is not waited
// for. The outcome that arrives later takes an expiry back; until a reservation arrives, its amount can be admitted again.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/lua"
)

// Producer is the producer of every Expired event, whichever settler published it.
const Producer = "settler"

// limit bounds what one look ends, per look in Postgres and per app in Redis.
const limit = 500

// Sweeper looks for overdue reservations. It is safe for concurrent use, also by several processes.
type Sweeper struct {
	store   *pg.Store
	scripts *lua.Scripts
	js      jetstream.JetStream
	certain Certain
	grace   time.Duration
	log     *slog.Logger
	now     func() time.Time
}

// Certain returns when all that live gateways recorded before the call is in the ledger; it errs when that cannot be had.
type Certain func(ctx context.Context) error

// New makes a sweeper that ends what is overdue for longer than grace.
func New(store *pg.Store, scripts *lua.Scripts, js jetstream.JetStream, certain Certain, grace time.Duration, log *slog.Logger, now func() time.Time) *Sweeper {
	return &Sweeper{store: store, scripts: scripts, js: js, certain: certain, grace: grace, log: log, now: now}
}

// certainLimit is longer than a gateway that does not answer is waited for.
const certainLimit = 20 * time.Second

// Once looks once, in Postgres and in Redis; a failure of one does not keep the other from being looked at.
func (s *Sweeper) Once(ctx context.Context) error {
	before := s.now().Add(-s.grace)
	if overdue, err := s.overdue(ctx, before); err != nil || !overdue {
		return err
	}
	certain, cancel := context.WithTimeoutCause(ctx, certainLimit, errors.New("sweep: events may be on their way"))
	defer cancel()
	if err := s.certain(certain); err != nil {
		return fmt.Errorf("nothing is ended: %w", err)
	}
	return errors.Join(s.expire(ctx, before), s.forget(ctx, before))
}

// overdue reports whether there is anything to end. A Redis that cannot be asked does not keep Postgres from being swept.
func (s *Sweeper) overdue(ctx context.Context, before time.Time) (bool, error) {
	pending, err := s.store.Overdue(ctx, before, 1)
	if err != nil || len(pending) > 0 {
		return len(pending) > 0, err
	}
	apps, err := s.store.Apps(ctx)
	if err != nil {
		return false, err
	}
	held, err := s.scripts.AppsOverdue(ctx, apps, before)
	return len(held) > 0, err
}

// Expired is the event that ends a reservation whose outcome never arrived. It happened at the deadline.
func Expired(o pg.OpenReservation) *event.Event {
	r := o.Reservation
	return &event.Event{
		V: event.Version, ID: event.ID(r.ID, event.KindExpired), Kind: event.KindExpired, App: o.App, OccurredAt: r.Deadline,
		Producer: Producer, Reservation: &r,
	}
}

// expire publishes an Expired event for every pending reservation whose deadline was before the instant.
func (s *Sweeper) expire(ctx context.Context, before time.Time) error {
	overdue, err := s.store.Overdue(ctx, before, limit)
	if err != nil {
		return err
	}
	for _, o := range overdue {
		e := Expired(o)
		body, err := e.Encode()
		if err != nil {
			return err
		}
		if _, err := s.js.Publish(ctx, e.Subject(), body, jetstream.WithMsgID(e.ID)); err != nil {
			return fmt.Errorf("publish %s: %w", e.ID, err)
		}
	}
	if len(overdue) > 0 {
		s.log.Warn("reservations expired", "reservations", len(overdue))
	}
	return nil
}

// forget gives back in Redis what is overdue there and not pending in Postgres.
func (s *Sweeper) forget(ctx context.Context, before time.Time) error {
	apps, err := s.store.Apps(ctx)
	if err != nil {
		return err
	}
	if apps, err = s.scripts.AppsOverdue(ctx, apps, before); err != nil {
		return err
	}
	for _, app := range apps {
		finished, unknown, err := s.notPending(ctx, app, before)
		if err != nil {
			return err
		}
		if err := s.forgetFinished(ctx, app, finished); err != nil {
			return err
		}
		for _, o := range unknown {
			if err := s.scripts.EndOverdue(ctx, app, o); err != nil {
				return err
			}
			s.log.Warn("reservation was never recorded, given back", "app", app, "reservation", o.ReservationID)
		}
	}
	return nil
}

func (s *Sweeper) forgetFinished(ctx context.Context, app string, finished []lua.Overdue) error {
	if len(finished) == 0 {
		return nil
	}
	session, err := s.store.Settling(ctx)
	if err != nil {
		return err
	}
	defer session.Close(ctx)
	return s.endFinished(ctx, session, app, finished)
}

// EndFinished gives back in Redis what the app holds there for reservations that Postgres knows as ended, overdue or not.
func (s *Sweeper) EndFinished(ctx context.Context, session *pg.Session, app string) error {
	finished, _, err := s.notPending(ctx, app, s.now().AddDate(1, 0, 0))
	if err != nil {
		return err
	}
	return s.endFinished(ctx, session, app, finished)
}

// endFinished writes what the app's budgets have used before it gives back what has ended: the settler that committed the end
// may not have written it yet, and what counted neither as used nor as held would be admitted once more. So the budgets are read
// after the ends are known.
func (s *Sweeper) endFinished(ctx context.Context, session *pg.Session, app string, finished []lua.Overdue) error {
	if len(finished) == 0 {
		return nil
	}
	budgets, err := session.LiveBudgets(ctx, s.now(), "", app)
	if err != nil {
		return err
	}
	if written, err := s.scripts.Settle(ctx, app, budgets, nil, nil); err != nil || !written.Applied {
		return err // without a mark nobody judges, and a rebuild reads the same rows
	}
	for _, o := range finished {
		if err := s.scripts.EndOverdue(ctx, app, o); err != nil {
			return err
		}
	}
	return nil
}

// notPending is what the app holds in Redis, due before the instant, and no longer in Postgres, or not at all.
func (s *Sweeper) notPending(ctx context.Context, app string, before time.Time) (finished, unknown []lua.Overdue, err error) {
	held, err := s.scripts.Overdue(ctx, app, before, limit)
	if err != nil || len(held) == 0 {
		return nil, nil, err
	}
	ids := make([]string, len(held))
	for i, o := range held {
		ids[i] = o.ReservationID
	}
	pendingIDs, unknownIDs, err := s.store.Pending(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	for _, o := range held {
		switch {
		case slices.Contains(pendingIDs, o.ReservationID):
		case slices.Contains(unknownIDs, o.ReservationID):
			unknown = append(unknown, o)
		default:
			finished = append(finished, o)
		}
	}
	return finished, unknown, nil
}
