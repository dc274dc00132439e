package outbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tollgate/ledger/event"
)

// ErrNotTaken is returned by Record when the event is nowhere: it will not arrive, and nothing needs to end it.
var ErrNotTaken = errors.New("event was not taken")

// errFull is why an event is not kept when the segments have their most.
var errFull = errors.New("outbox has TOLLGATE_OUTBOX_MAX_BYTES")

// errNoAck is why an event that needs the stream's acknowledgement is refused.
var errNoAck = errors.New("no ack from the stream")

// Record appends the event and returns when it is durable as the configuration says. It numbers the event and sets its
// producer. An error means that it is not durable; but for ErrNotTaken it may still arrive.
func (o *Outbox) Record(ctx context.Context, e *event.Event) error {
	p, kept := o.put(e, true)
	if p == nil && kept != nil {
		return fmt.Errorf("record %s: %w: %w", e.ID, ErrNotTaken, kept)
	}
	if o.config.Durability == DurabilitySync {
		return o.awaitBoth(ctx, e, p)
	}
	if p != nil && o.awaitAck(ctx, p) {
		return nil
	}
	if kept != nil {
		return fmt.Errorf("record %s: %w, and the outbox refused it: %w", e.ID, errNoAck, kept)
	}
	if err := o.syncThrough(e.Sequence); err != nil {
		return fmt.Errorf("record %s: %w, and the outbox cannot be synced: %w", e.ID, errNoAck, err)
	}
	o.metrics.events.WithLabelValues(string(e.Kind), "spooled").Inc()
	return nil
}

// awaitBoth waits for the sync and the acknowledgement of an event that was appended. Both are under way together.
func (o *Outbox) awaitBoth(ctx context.Context, e *event.Event, p *publication) error {
	unsynced := o.syncThrough(e.Sequence)
	if p == nil || !o.awaitAck(ctx, p) {
		o.metrics.events.WithLabelValues(string(e.Kind), "spooled").Inc()
		if p != nil {
			o.noAck(p)
		}
		return fmt.Errorf("record %s: %w", e.ID, errors.Join(errNoAck, unsynced))
	}
	if unsynced != nil {
		return fmt.Errorf("record %s: the outbox cannot be synced: %w", e.ID, unsynced)
	}
	return nil
}

// noAck has later events refused at once when the stream has acknowledged nothing since this one was queued, until it
// acknowledges one: the drainer goes on trying.
func (o *Outbox) noAck(p *publication) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = o.acked.Before(p.deadline.Add(-o.config.AckTimeout))
}

// Append keeps and publishes the event without waiting for either to be durable; a background sync follows, and with
// DurabilitySync it is waited for. Where the event cannot be appended, Append waits for the stream's acknowledgement instead.
// An error means that there was none either, and nobody will publish the event again.
func (o *Outbox) Append(e *event.Event) error {
	p, kept := o.put(e, false)
	if kept != nil {
		if p != nil && o.awaitAck(context.Background(), p) {
			return nil
		}
		return fmt.Errorf("append %s: %w", e.ID, kept)
	}
	if p == nil {
		o.metrics.events.WithLabelValues(string(e.Kind), "spooled").Inc()
	}
	if o.config.Durability == DurabilitySync {
		if err := o.syncThrough(e.Sequence); err != nil {
			o.log.Warn("event is published without being synced", "event", e.ID, "error", err)
		}
	}
	return nil
}

// put numbers, encodes, appends and queues the event for publication. p is nil when it cannot be published now; err says
// why the event is not in a segment. The sender of a publication that is waited for, or that is all there is of the event,
// must await it.
func (o *Outbox) put(e *event.Event, awaited bool) (p *publication, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, errors.New("outbox is closed")
	}
	// What no settler can read must not take a number, nor stand in the way of what comes after it.
	if err := e.Check(); err != nil {
		return nil, err
	}
	both := awaited && o.config.Durability == DurabilitySync
	if both && o.away {
		return nil, errNoAck
	}
	e.Producer, e.Sequence = o.producer, o.sequence+1
	data, err := e.Encode()
	if err != nil {
		return nil, err
	}
	if len(data) > maxEvent {
		return nil, fmt.Errorf("event of %d bytes is larger than the stream takes (%d)", len(data), maxEvent)
	}
	err = o.appendLocked(e.Sequence, data, awaited)
	switch {
	case err == nil:
		o.sequence++
		return o.queueLocked(e, data, awaited), nil
	case both:
		return nil, err
	default:
		return o.queueUnkeptLocked(e, data), err
	}
}

func (o *Outbox) appendLocked(sequence uint64, data []byte, awaited bool) error {
	if o.unsynced != nil {
		return fmt.Errorf("outbox could not be synced: %w", o.unsynced)
	}
	room := o.config.MaxBytes - o.bytes
	if awaited {
		room -= o.config.MaxBytes / 16
	}
	if int64(headerSize+len(data)) > room {
		return errFull
	}
	current, err := o.currentLocked(sequence)
	if err != nil {
		return err
	}
	before := current.size
	if err := current.append(sequence, data); err != nil {
		return err
	}
	o.bytes += current.size - before
	o.confirmed.began(sequence, time.Now())
	o.dirty = true
	o.metrics.spool.Inc()
	o.metrics.bytes.Set(float64(o.bytes))
	return nil
}

// currentLocked is the segment to append to.
func (o *Outbox) currentLocked(next uint64) (*segment, error) {
	if n := len(o.segments); n > 0 {
		switch current := o.segments[n-1]; {
		case current.last == 0 && current.sealed:
			// Its only write failed and could not be taken back, and the next may need its name.
			if current.file != nil {
				return nil, fmt.Errorf("segment %s is not closed yet", filepath.Base(current.path))
			}
			if err := os.Remove(current.path); err != nil {
				return nil, err
			}
			o.segments = o.segments[:n-1]
		case current.file == nil || current.sealed:
		case current.size < o.config.SegmentBytes:
			return current, nil
		default:
			current.sealed = true
		}
	}
	created, err := createSegment(o.config.Dir, next)
	if err != nil {
		return nil, err
	}
	o.segments = append(o.segments, created)
	o.created = true
	return created, nil
}
