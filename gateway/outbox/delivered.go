package outbox

import (
	"context"
	"fmt"
	"time"
)

// deliveredPoll is how often Delivered looks.
const deliveredPoll = 5 * time.Millisecond

// Delivered waits until the stream has acknowledged every event that was appended before the call, whatever is appended
// meanwhile. Run must be running. It errors when ctx ends first.
func (o *Outbox) Delivered(ctx context.Context) error {
	o.mu.Lock()
	until := o.sequence
	o.mu.Unlock()
	ticker := time.NewTicker(deliveredPoll)
	defer ticker.Stop()
	for {
		n := o.undeliveredUntil(until)
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("deliver events up to %d, %d are not acknowledged: %w", until, n, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// undeliveredUntil counts the events up to a sequence that the stream has not acknowledged; those that no segment has are among
// those in flight.
func (o *Outbox) undeliveredUntil(until uint64) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, s := range o.segments {
		n += s.pending.until(until)
	}
	for sequence := range o.inFlight {
		if sequence > until {
			continue
		}
		if s := o.segmentLocked(sequence); s == nil || !s.pending.has(sequence) {
			n++
		}
	}
	return n
}
