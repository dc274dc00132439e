package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tollgate/ledger/event"
)

const (
	// settleLimit bounds the wait for what a point has queued.
	settleLimit = 3 * time.Minute
	// eventsPerRequest is one for what was reserved and one for what was used.
	eventsPerRequest = 2
	consumerName     = "settler"
)

// lastEvent is the number of the last event on the stream.
func (s *system) lastEvent(ctx context.Context) (uint64, error) {
	stream, err := s.js.Stream(ctx, event.Stream)
	if err != nil {
		return 0, fmt.Errorf("stream's end: %w", err)
	}
	return stream.CachedInfo().State.LastSeq, nil
}

// awaitSettled waits until the stream has every event of the requests since an earlier event, and all of them are settled.
func (s *system) awaitSettled(ctx context.Context, since uint64, requests int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, fmt.Errorf("not settled within %v", settleLimit))
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		last, err := s.lastEvent(ctx)
		if err == nil && last >= since+uint64(eventsPerRequest*requests) {
			settled, err := s.settled(ctx, last)
			if err != nil || settled {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("settle %d requests since event %d, at %d: %w", requests, since, last, errors.Join(context.Cause(ctx), err))
		case <-ticker.C:
		}
	}
}

// settled does not ask how many events wait: one may be counted only a moment after its publication was acknowledged.
func (s *system) settled(ctx context.Context, last uint64) (bool, error) {
	if s.consumer == nil {
		consumer, err := s.js.Consumer(ctx, event.Stream, consumerName)
		if err != nil {
			return false, fmt.Errorf("settler's consumer: %w", err)
		}
		s.consumer = consumer
	}
	info, err := s.consumer.Info(ctx)
	if err != nil {
		return false, fmt.Errorf("settler's consumer: %w", err)
	}
	return info.AckFloor.Stream >= last, nil
}

// verify proves the ledger's invariants, and that no reservation is left open.
func (s *system) verify(ctx context.Context) error {
	checks, err := s.store.Verify(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, c := range checks {
		if !c.OK {
			problems = append(problems, fmt.Errorf("the ledger breaks %s: %d (%s)", c.Name, c.Figure, c.Meaning))
		}
	}
	open, err := s.store.OpenCount(ctx)
	if err != nil {
		return err
	}
	if open > 0 {
		problems = append(problems, fmt.Errorf("%d reservations are left open", open))
	}
	return errors.Join(problems...)
}
