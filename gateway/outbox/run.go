package outbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"tollgate/ledger/event"
)

// Confirm says that Postgres holds this producer's events up to and including sequence: segments that end there or before
// are removed by Run.
func (o *Outbox) Confirm(sequence uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.confirmed = max(o.confirmed, sequence)
}

// Pending counts events that the stream has not acknowledged.
func (o *Outbox) Pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, s := range o.segments {
		n += len(s.pending)
	}
	return n
}

// Run syncs, collects acknowledgements, publishes again what has none and removes what is confirmed, until ctx ends and all
// its goroutines have.
func (o *Outbox) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.collect(ctx) })
	group.Go(func() error { return o.keep(ctx) })
	group.Go(func() error { return o.drainLoop(ctx) })
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// collect waits for the acknowledgements of Append. They arrive nearly in order, so one after the other is enough.
func (o *Outbox) collect(ctx context.Context) error {
	timer := time.NewTimer(o.config.AckTimeout)
	defer timer.Stop()
	for {
		var ack pendingAck
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ack = <-o.acks:
		}
		timer.Reset(time.Until(ack.deadline))
		select {
		case <-ack.future.Ok():
			o.acknowledged(ack.sequence, ack.kind)
			continue
		case err := <-ack.future.Err():
			o.log.Debug("publication failed", "sequence", ack.sequence, "error", err)
		case <-timer.C:
		case <-ctx.Done():
		}
		o.unacknowledged(ack.sequence)
	}
}

// keep syncs appended events and removes confirmed segments.
func (o *Outbox) keep(ctx context.Context) error {
	ticker := time.NewTicker(o.config.SyncEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if err := o.sync(); err != nil {
			o.log.Error("outbox cannot be synced", "error", err)
		}
		o.removeConfirmed()
	}
}

func (o *Outbox) removeConfirmed() {
	o.mu.Lock()
	var done []*segment
	for len(o.segments) > 0 {
		s := o.segments[0]
		// The newest segment stays: its name and frames are where the numbering continues after a restart.
		if s.file != nil || s.last > o.confirmed || len(o.segments) == 1 {
			break
		}
		done = append(done, s)
		o.metrics.spool.Sub(float64(len(s.pending)))
		o.segments = o.segments[1:]
	}
	o.mu.Unlock()
	for _, s := range done {
		if err := os.Remove(s.path); err != nil {
			o.log.Error("confirmed outbox segment cannot be removed", "error", err)
		}
	}
}

// drainLoop publishes again what has no acknowledgement: at the start, after a failure, and every second while any is left.
func (o *Outbox) drainLoop(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		if err := o.drainOnce(ctx); err != nil {
			o.log.Debug("outbox not drained", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.drain:
			// Whatever failed at once fails again at once; the next tick is soon enough.
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
		case <-ticker.C:
		}
	}
}

func (o *Outbox) drainOnce(ctx context.Context) error {
	o.mu.Lock()
	var paths []string
	for _, s := range o.segments {
		if len(s.pending) > 0 {
			paths = append(paths, s.path)
		}
	}
	o.mu.Unlock()
	for _, path := range paths {
		_, err := frames(path, func(payload []byte) error { return o.publishAgain(ctx, payload) })
		if errors.Is(err, os.ErrNotExist) {
			continue // confirmed and removed meanwhile
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *Outbox) publishAgain(ctx context.Context, payload []byte) error {
	e, err := event.Decode(payload)
	if err != nil {
		return fmt.Errorf("outbox holds an event that cannot be read: %w", err)
	}
	o.mu.Lock()
	if !o.waitingLocked(e.Sequence) {
		o.mu.Unlock()
		return nil
	}
	future, err := o.publishLocked(e.Subject(), e.ID, e.Sequence, payload)
	o.mu.Unlock()
	if err != nil {
		return err
	}
	o.await(e.Sequence, e.Kind, future)
	return ctx.Err()
}

// waitingLocked reports whether the event has no acknowledgement and no publication that may still bring one.
func (o *Outbox) waitingLocked(sequence uint64) bool {
	if _, ok := o.inFlight[sequence]; ok {
		return false
	}
	for _, s := range o.segments {
		if _, ok := s.pending[sequence]; ok {
			return true
		}
	}
	return false
}

// Flush waits until the stream has acknowledged every event, or ctx ends; then it syncs the rest. It errors when events
// remain, which the next start will publish.
func (o *Outbox) Flush(ctx context.Context) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for o.Pending() > 0 {
		select {
		case <-ctx.Done():
			if err := o.sync(); err != nil {
				return fmt.Errorf("flush outbox: %w", err)
			}
			return fmt.Errorf("flush outbox: %d events wait for the stream and are kept: %w", o.Pending(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
	return nil
}

// Close syncs and closes the open segment and gives the folder free. Run must have ended.
func (o *Outbox) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	var err error
	if n := len(o.segments); n > 0 && o.segments[n-1].file != nil {
		err = o.segments[n-1].close()
	}
	return errors.Join(err, o.lock.Close())
}
