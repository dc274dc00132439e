package outbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// Pending counts events that the stream has not acknowledged.
func (o *Outbox) Pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, s := range o.segments {
		n += s.pending.count()
	}
	return n
}

// Run publishes, collects acknowledgements, syncs, publishes again what has no acknowledgement and removes what is confirmed, until ctx ends and all
// its goroutines have.
func (o *Outbox) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.publish(ctx) })
	group.Go(func() error { return o.collect(ctx) })
	group.Go(func() error { return o.keep(ctx) })
	group.Go(func() error { return o.drainLoop(ctx) })
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
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
	for _, path := range o.undelivered() {
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

// undelivered lists the segments with an event that nothing is under way for. Those whose events only wait for their first
// acknowledgement are not read.
func (o *Outbox) undelivered() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var paths []string
	for _, s := range o.segments {
		if o.idleLocked(s) {
			paths = append(paths, s.path)
		}
	}
	if len(paths) == 0 {
		o.away = false // with nothing to try the stream with, the next event is what tries it
	}
	return paths
}

// idleLocked tells whether the segment has a pending event that is not in flight.
func (o *Outbox) idleLocked(s *segment) bool {
	for _, run := range s.pending {
		for sequence := run.From; sequence < run.Until; sequence++ {
			if _, ok := o.inFlight[sequence]; !ok {
				return true
			}
		}
	}
	return false
}

// maxAgain is how many repeated publications may wait for the stream at once: few enough that even a slow one acknowledges
// them in time, because what it does not is sent once more and makes it slower still.
const maxAgain = 256

// publishAgain waits while too many are outstanding.
func (o *Outbox) publishAgain(ctx context.Context, payload []byte) error {
	l := labelOf(payload)
	round, taken := o.take(l.sequence)
	if !taken {
		return nil
	}
	select {
	case o.again <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	p := o.newPublication(l.sequence, l, payload)
	p.message.Header.Set(jetstream.MsgIDHeader, l.id+round)
	p.slot = o.again
	if o.send(p); p.future == nil {
		<-o.again
		o.release(l.sequence)
		return fmt.Errorf("event %s could not be published", l.id)
	}
	select {
	case o.acks <- p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take marks the event as in flight, unless it is already or needs no publication. round is what to add to its message id.
func (o *Outbox) take(sequence uint64) (round string, taken bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.inFlight[sequence]; ok {
		return "", false
	}
	s := o.segmentLocked(sequence)
	if s == nil || !s.pending.has(sequence) {
		return "", false
	}
	o.inFlight[sequence] = struct{}{}
	if s.lost.has(sequence) {
		round = s.round
	}
	return round, true
}

func (o *Outbox) release(sequence uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.inFlight, sequence)
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
