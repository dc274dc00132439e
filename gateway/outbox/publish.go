package outbox

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
)

// publication is one event on its way to the stream.
type publication struct {
	sequence uint64
	kind     event.Kind
	deadline time.Time // for the acknowledgement
	message  *nats.Msg
	sent     chan struct{}          // closed when future is set; nil when nobody waits but the collector
	future   jetstream.PubAckFuture // nil when the publication failed at once
	slot     <-chan struct{}        // one is taken from it when the publication is settled; nil for first publications
}

func (o *Outbox) newPublication(sequence uint64, l label, data []byte) *publication {
	return &publication{
		sequence: sequence, kind: l.kind, deadline: time.Now().Add(o.config.AckTimeout),
		message: &nats.Msg{Subject: l.subject, Data: data, Header: nats.Header{jetstream.MsgIDHeader: []string{l.id}}},
	}
}

// queueLocked hands the event to publish. Using a connection, even asking for its state, can block for as long as the other
// side is silent, so it is nothing to do under the lock. When the queue is full, the drainer will publish the event.
func (o *Outbox) queueLocked(e *event.Event, data []byte, awaited bool) *publication {
	p := o.newPublication(e.Sequence, label{e.Sequence, e.Kind, e.Subject(), e.ID}, data)
	if awaited {
		p.sent = make(chan struct{})
	}
	select {
	case o.queue <- p:
		o.inFlight[e.Sequence] = struct{}{}
		return p
	default:
		return nil
	}
}

// queueUnkeptLocked hands over an event that no segment has. Its number is used up, and that is noted first: a later start
// does not see it in the segments. With the connection down, too, nothing is lost by waiting to learn so.
func (o *Outbox) queueUnkeptLocked(e *event.Event, data []byte) *publication {
	if !o.js.Conn().IsConnected() {
		return nil
	}
	if err := o.unkept.set(e.Sequence); err != nil {
		o.log.Error("event can neither be kept nor published", "event", e.ID, "error", err)
		return nil
	}
	p := o.queueLocked(e, data, true)
	if p == nil {
		if err := o.unkept.set(o.sequence); err != nil {
			o.log.Error("unused sequence number cannot be given back and will be missed", "sequence", e.Sequence, "error", err)
			o.sequence++
		}
		return nil
	}
	o.sequence++
	return p
}

// awaitAck waits until the stream has acknowledged the publication, for as long as the configuration allows. What is there
// already counts, however late it is looked at.
func (o *Outbox) awaitAck(ctx context.Context, p *publication) bool {
	timer := time.NewTimer(time.Until(p.deadline))
	defer timer.Stop()
	select {
	case <-p.sent:
		return o.settle(ctx, p, timer)
	default:
	}
	select {
	case <-p.sent:
		return o.settle(ctx, p, timer)
	case <-timer.C:
	case <-ctx.Done():
	}
	o.unacknowledged(p.sequence)
	return false
}

// settle waits for the answer to a publication that was sent, and notes it.
func (o *Outbox) settle(ctx context.Context, p *publication, timer *time.Timer) bool {
	if p.slot != nil {
		defer func() { <-p.slot }()
	}
	if p.future != nil {
		if ack := o.answered(ctx, p, timer); ack != nil {
			o.acknowledged(p.sequence, p.kind, ack.Sequence)
			return true
		}
	}
	o.unacknowledged(p.sequence)
	return false
}

// answered is the acknowledgement, nil when there is none in time.
func (o *Outbox) answered(ctx context.Context, p *publication, timer *time.Timer) *jetstream.PubAck {
	select {
	case ack := <-p.future.Ok():
		return ack
	default:
	}
	select {
	case ack := <-p.future.Ok():
		return ack
	case err := <-p.future.Err():
		o.log.Debug("publication failed", "sequence", p.sequence, "error", err)
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// publish sends what was queued, in order.
func (o *Outbox) publish(ctx context.Context) error {
	for {
		var p *publication
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p = <-o.queue:
		}
		o.send(p)
		if p.sent != nil {
			close(p.sent)
			continue
		}
		if p.future == nil {
			o.metrics.events.WithLabelValues(string(p.kind), "spooled").Inc()
			o.unacknowledged(p.sequence)
			continue
		}
		select {
		case o.acks <- p:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *Outbox) send(p *publication) {
	future, err := o.js.PublishMsgAsync(p.message)
	if err != nil {
		o.log.Debug("publication failed at once", "sequence", p.sequence, "error", err)
		return
	}
	p.future = future
}

// collect waits for the acknowledgements that nobody else waits for. They arrive nearly in order, so one after the other is
// enough.
func (o *Outbox) collect(ctx context.Context) error {
	timer := time.NewTimer(o.config.AckTimeout)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p := <-o.acks:
			timer.Reset(time.Until(p.deadline))
			o.settle(ctx, p, timer)
		}
	}
}
