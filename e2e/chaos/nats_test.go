package chaos

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/e2e/system"
	"tollgate/ledger/event"
)

// again is at most how many events are delivered again or given back at a time.
const again = 200

// deliverAgain publishes what is on the stream once more, in another order and under no id, as a stream does whose window of
// deduplication is over.
func deliverAgain(ctx context.Context, r *run) error {
	events, err := r.Events(ctx)
	if err != nil {
		return err
	}
	r.dice(1).Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	return r.publish(ctx, events[:min(len(events), again)], nil)
}

// publish puts events on the stream under no id, or under that of headers, and waits until it has them.
func (r *run) publish(ctx context.Context, events []system.Event, id func(i int) string) error {
	futures := make([]jetstream.PubAckFuture, 0, len(events))
	for i, e := range events {
		var options []jetstream.PublishOpt
		if id != nil {
			options = append(options, jetstream.WithMsgID(id(i)))
		}
		future, err := r.JetStream.PublishAsync(e.Subject, e.Data, options...)
		if err != nil {
			return err
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// deliverStale publishes events of the run's beginning, under ids that are new, oldest last: a stream that was restored from a
// copy, or sourced twice, does so.
func deliverStale(ctx context.Context, r *run) error {
	events, err := r.Events(ctx)
	if err != nil {
		return err
	}
	events = events[:min(len(events), again)]
	for i, j := 0, len(events)-1; i < j; i, j = i+1, j-1 {
		events[i], events[j] = events[j], events[i]
	}
	d := r.dice(2)
	return r.publish(ctx, events, func(int) string { return string(rune('a'+d.IntN(26))) + time.Now().String() })
}

// giveBack takes what the settlers have not yet had and gives it back in another order, some at once, some late, and some never:
// those are delivered when their time to be acknowledged is over.
func giveBack(ctx context.Context, r *run) error {
	consumer, err := r.JetStream.Consumer(ctx, event.Stream, "settler")
	if err != nil {
		return err
	}
	d := r.dice(3)
	for range 10 {
		batch, err := consumer.Fetch(20, jetstream.FetchMaxWait(50*time.Millisecond))
		if err != nil {
			return err
		}
		var taken []jetstream.Msg
		for m := range batch.Messages() {
			taken = append(taken, m)
		}
		d.Shuffle(len(taken), func(i, j int) { taken[i], taken[j] = taken[j], taken[i] })
		for _, m := range taken {
			switch d.IntN(3) {
			case 0:
				err = m.Nak()
			case 1:
				err = m.NakWithDelay(time.Duration(d.IntN(300)) * time.Millisecond)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ackWithin sets how long settlers have to acknowledge: what takes longer is delivered again while it is still being settled.
func ackWithin(wait time.Duration) func(r *run, _ int) {
	return func(r *run, _ int) {
		ctx, cancel := context.WithTimeout(r.t.Context(), system.Patience)
		defer cancel()
		consumer, err := r.JetStream.Consumer(ctx, event.Stream, "settler")
		if err == nil {
			config := consumer.CachedInfo().Config
			config.AckWait = wait
			_, err = r.JetStream.UpdateConsumer(ctx, event.Stream, config)
		}
		if isGone(err) {
			return // the settlers make it anew, with their own figure
		}
		r.do(err)
	}
}

// dice of the seed for one purpose.
func (r *run) dice(purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(r.plan.seed, 1<<32+purpose))
}
