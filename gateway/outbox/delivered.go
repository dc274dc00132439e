package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
)

// deliveredPoll is how often Delivered looks.
const deliveredPoll = 5 * time.Millisecond

// Delivered waits until the stream has every event that was appended before the call, whatever is appended meanwhile, save what
// Postgres is known to hold. Run must be running. It errors when ctx ends first.
func (o *Outbox) Delivered(ctx context.Context) error {
	o.mu.Lock()
	until := o.sequence
	o.mu.Unlock()
	for {
		if err := o.acknowledgedUntil(ctx, until); err != nil {
			return err
		}
		// Looked at afterwards: the acknowledgements may be of a stream that is gone.
		if gone, err := o.gone(ctx); err != nil || !gone {
			return err
		}
	}
}

func (o *Outbox) acknowledgedUntil(ctx context.Context, until uint64) error {
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

// trusted is the stream whose acknowledgements count.
type trusted struct {
	made time.Time // zero before it was looked at
	last uint64    // the highest of its numbers that it has acknowledged
}

// gone looks whether the stream is another one than acknowledged the events, or has lost its end. Then it is sent anew what Postgres is
// not known to hold.
func (o *Outbox) gone(ctx context.Context) (bool, error) {
	var info jetstream.StreamInfo
	stream, err := o.js.Stream(ctx, event.Stream)
	switch {
	case err == nil:
		info = *stream.CachedInfo()
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return false, fmt.Errorf("look at the stream: %w", err)
	}
	o.mu.Lock()
	known := o.trusted
	gone := !known.made.IsZero() && !known.made.Equal(info.Created) || info.State.LastSeq < known.last
	o.trusted.made = info.Created
	lost := 0
	if gone {
		o.trusted.last = 0
		lost = o.sendAgainLocked(o.confirmed.latest, o.sequence, nil)
	}
	o.mu.Unlock()
	o.tellLost(lost)
	return gone, nil
}
