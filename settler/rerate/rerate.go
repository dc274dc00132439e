// Package rerate prices past usage anew by a book, and corrects what was charged by adjustments.
//
// Each settled request is priced by the row that the book has for it at the time when it was admitted. Where that is another cost
// than it was charged, an adjusted event takes it to the new one: settled like any other, it moves the budgets of the request's own
// windows, in Postgres and Redis, and makes a transfer of the difference. Nothing else is touched, so doing it again does nothing,
// and what was stopped halfway is finished by doing it again. Two by different books never run at the same time.
//
// # Left as it is
//
//   - What the book has no price for keeps what it was charged, and is reported.
//   - What expired keeps its bound: nobody knows what it used. When its use arrives late, it counts and can be re-rated.
//   - What is in flight is charged by the row that it was admitted by, and found by the next run.
//   - What the provider bills nothing for.
package rerate

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/ledger/price"
)

// Producer is the producer of the events.
const Producer = "rerate"

// batch is how many adjustments are on their way to the stream at once.
const batch = 256

// Rerater prices by one book. It is used once.
type Rerater struct {
	Store    *pg.Store
	Book     *price.Book
	Filter   pg.PricedFilter
	Examples int                             // largest differences that are reported
	Stream   jetstream.JetStream             // nil: nothing is posted
	Certain  func(ctx context.Context) error // returns when everything on the stream is settled; not needed without Stream

	report  *Report
	models  map[modelKey]*Model
	pending []*change
}

type modelKey struct{ provider, model string }

// change is a request that is charged another cost.
type change struct {
	request pg.Priced
	anew    priced
}

// Run looks at every request that the filter lets through and reports what is charged wrongly; with a Stream it posts the
// adjustments and waits until they are settled. When it errs, what was posted stays, and the next run does the rest.
func (r *Rerater) Run(ctx context.Context) (*Report, error) {
	r.report, r.models = &Report{}, map[modelKey]*Model{}
	if r.Stream != nil {
		release, err := r.Store.LockRerating(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
		// Of a run that was killed, adjustments may be on their way.
		if err := r.Certain(ctx); err != nil {
			return nil, fmt.Errorf("nothing is posted: %w", err)
		}
	}
	err := r.Store.EachPriced(ctx, r.Filter, func(p *pg.Priced) error { return r.look(ctx, p) })
	if err == nil {
		err = r.post(ctx)
	}
	if err == nil {
		r.report.Unconfirmed, r.report.UnconfirmedCharge, err = r.Store.Unconfirmed(ctx, r.Filter)
	}
	if err == nil && r.Stream != nil {
		err = r.Certain(ctx)
	}
	r.report.finish(r.models)
	if err != nil {
		return r.report, fmt.Errorf("re-rate: %w", err)
	}
	return r.report, nil
}

// look prices one request and notes what comes of it.
func (r *Rerater) look(ctx context.Context, p *pg.Priced) error {
	r.report.Looked++
	key := modelKey{p.Provider, p.Model}
	m := r.models[key]
	if m == nil {
		m = &Model{Provider: p.Provider, Model: p.Model}
		r.models[key] = m
	}
	anew, err := priceAnew(r.Book, p)
	switch {
	case err != nil:
		if m.Why == "" {
			m.Why = err.Error()
		}
		m.Unpriced++
		m.Kept += p.Charged
		return nil
	case anew.total == p.Charged:
		return nil
	}
	m.Requests++
	m.Before += p.Charged
	m.After += anew.total
	r.report.note(Difference{Request: *p, After: anew.total, PriceRow: anew.row}, r.Examples)
	if r.Stream == nil {
		return nil
	}
	r.pending = append(r.pending, &change{*p, anew})
	if len(r.pending) < batch {
		return nil
	}
	return r.post(ctx)
}

// post publishes an adjustment of each pending change and waits until the stream has them.
func (r *Rerater) post(ctx context.Context) error {
	if len(r.pending) == 0 {
		return nil
	}
	ids := make([]string, len(r.pending))
	for i, c := range r.pending {
		ids[i] = c.request.ReservationID
	}
	used, err := r.Store.UsedEvents(ctx, ids)
	if err != nil {
		return err
	}
	futures := make([]jetstream.PubAckFuture, 0, len(ids))
	for _, c := range r.pending {
		e := adjusted(used[c.request.ReservationID], c)
		body, err := e.Encode()
		if err == nil {
			err = e.Check()
		}
		if err != nil {
			return err
		}
		future, err := r.Stream.PublishAsync(e.Subject(), body, jetstream.WithMsgID(e.ID))
		if err != nil {
			return fmt.Errorf("publish %s: %w", e.ID, err)
		}
		futures = append(futures, future)
	}
	r.pending = r.pending[:0]
	for _, future := range futures {
		select {
		case <-future.Ok():
			r.report.Posted++
		case err := <-future.Err():
			return fmt.Errorf("publish %s: %w", future.Msg().Header.Get(jetstream.MsgIDHeader), err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// adjusted is the event that takes a request to its new cost. Everything in it follows from the used event and the book.
func adjusted(used *event.Event, c *change) *event.Event {
	outcome := *used.Outcome
	outcome.Cost, outcome.PriceRow, outcome.Components = c.anew.total, c.anew.row, c.anew.components
	reservation := *used.Reservation
	reservation.Flags = slices.DeleteFunc(slices.Clone(reservation.Flags), func(flag string) bool { return flag == event.FlagCostDiffers })
	if outcome.CostDiffers() {
		reservation.Flags = append(reservation.Flags, event.FlagCostDiffers)
	}
	number := c.request.Adjustments + 1
	return &event.Event{
		V: event.Version, ID: event.AdjustedID(used.Reservation.ID, number), Kind: event.KindAdjusted, App: used.App,
		OccurredAt: used.OccurredAt, Producer: Producer, TraceID: used.TraceID, Reservation: &reservation, Outcome: &outcome,
		Adjustment: &event.Adjustment{Number: number, Reason: event.AdjustmentPrice, Before: c.request.Charged, Gateway: used.Producer},
	}
}
