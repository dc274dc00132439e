// Package sweep ends the reservations whose outcome never arrived, so that nothing is held for ever.
//
// What Postgres knows as pending is expired by an event, whose content depends on the reservation alone: settlers that sweep at
// once publish the same bytes. What Redis holds and Postgres does not know was never recorded, so it was never spent: it is
// given back in Redis. That can only be told while the stream is there and settled: before, the event may be on its way, and
// the money spent.
//
// # Not guaranteed
//
// After the stream was away for longer than a reservation lives, what gateways publish then from their outboxes is on its way
// unseen: an amount may be given back just before its event arrives.
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
	lag     Lag
	grace   time.Duration
	log     *slog.Logger
	now     func() time.Time
}

// Lag is the age of the oldest event on the stream that is not settled; it errs when that cannot be known.
type Lag func(ctx context.Context) (time.Duration, error)

// New makes a sweeper that ends what is overdue for longer than grace.
func New(store *pg.Store, scripts *lua.Scripts, js jetstream.JetStream, lag Lag, grace time.Duration, log *slog.Logger, now func() time.Time) *Sweeper {
	return &Sweeper{store: store, scripts: scripts, js: js, lag: lag, grace: grace, log: log, now: now}
}

// Once looks once, in Postgres and in Redis; a failure of one does not keep the other from being looked at.
func (s *Sweeper) Once(ctx context.Context) error {
	before := s.now().Add(-s.grace)
	return errors.Join(s.expire(ctx, before), s.forget(ctx, before))
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

// forget gives back in Redis what is overdue there and not pending in Postgres. An event that is older than the reservation's
// deadline has been settled when the lag is subtracted from the instant.
func (s *Sweeper) forget(ctx context.Context, before time.Time) error {
	lag, err := s.lag(ctx)
	if err != nil {
		return fmt.Errorf("nothing is given back: %w", err)
	}
	before = before.Add(-lag)
	apps, err := s.store.Apps(ctx)
	if err != nil {
		return err
	}
	for _, app := range apps {
		if err := s.end(ctx, app, before, true); err != nil {
			return err
		}
	}
	return nil
}

// EndFinished gives back in Redis what the app holds there for reservations that Postgres knows as ended, overdue or not.
func (s *Sweeper) EndFinished(ctx context.Context, app string) error {
	return s.end(ctx, app, s.now().AddDate(1, 0, 0), false)
}

func (s *Sweeper) end(ctx context.Context, app string, before time.Time, unknownToo bool) error {
	held, err := s.scripts.Overdue(ctx, app, before, limit)
	if err != nil || len(held) == 0 {
		return err
	}
	ids := make([]string, len(held))
	for i, o := range held {
		ids[i] = o.ReservationID
	}
	pending, unknown, err := s.store.Pending(ctx, ids)
	if err != nil {
		return err
	}
	for _, o := range held {
		if slices.Contains(pending, o.ReservationID) || !unknownToo && slices.Contains(unknown, o.ReservationID) {
			continue
		}
		if err := s.scripts.EndOverdue(ctx, app, o); err != nil {
			return err
		}
		if slices.Contains(unknown, o.ReservationID) {
			s.log.Warn("reservation was never recorded, given back", "app", app, "reservation", o.ReservationID)
		}
	}
	return nil
}
