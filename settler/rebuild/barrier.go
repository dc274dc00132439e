package rebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger/event"
	"tollgate/settler/buckets"
)

const (
	// askTimeout is how long one question to a gateway may take before it is repeated, if the gateway is still present.
	askTimeout = 3 * time.Second
	// askAgain is the pause between two questions to a gateway that is present and does not listen.
	askAgain = 100 * time.Millisecond
	// lookAgain is how often NATS is asked whether it is still there while gateways are given time.
	lookAgain = time.Second
	// silence is shorter than entries last that were about to be renewed when NATS fell silent.
	silence = event.PresenceTTL - 2*event.PresenceRenewal
	// asksAtOnce bounds the questions under way.
	asksAtOnce = 64
)

// Barrier asks every live gateway to bring what it has admitted to the stream. It is safe for concurrent use.
type Barrier struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	replicas int
	wait     time.Duration
	now      func() time.Time

	mu         sync.Mutex // guards what follows
	since      time.Time  // when NATS was first heard of without an interruption until now; zero before it was
	last       time.Time  // when it was last
	reconnects uint64
}

// NewBarrier makes a barrier. wait is how long gateways have to show their presence after NATS was away or the bucket was made,
// before the list of them is believed.
func NewBarrier(nc *nats.Conn, js jetstream.JetStream, replicas int, wait time.Duration, now func() time.Time) *Barrier {
	return &Barrier{nc: nc, js: js, replicas: replicas, wait: wait, now: now}
}

// Ensure makes the bucket in which gateways show their presence.
func (b *Barrier) Ensure(ctx context.Context) error {
	_, err := b.bucket(ctx)
	if err == nil {
		b.heard()
	}
	return err
}

func (b *Barrier) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	return buckets.Open(ctx, b.js, jetstream.KeyValueConfig{Bucket: event.PresenceBucket, TTL: event.PresenceTTL, Replicas: b.replicas})
}

// Pass returns when every live gateway has adopted the generation and has nothing of before that the stream does not have.
// Gateways that appear meanwhile are asked, too. One that does not answer is waited for until its presence lapses: with
// event.PresenceTTL that is longer than decisions live in a gateway that does nothing. With empty, the ledger has never seen a
// reservation, and gateways need no time to show that they are there: this is the first start.
func (b *Barrier) Pass(ctx context.Context, generation string, empty bool) error {
	bucket, err := b.bucket(ctx)
	if err != nil {
		return err
	}
	if !empty {
		if err := b.believable(ctx, bucket); err != nil {
			return err
		}
	}
	since := b.heard()
	asked := map[string]bool{}
	for {
		present, err := b.presentGateways(ctx)
		if err != nil {
			return err
		}
		present = slices.DeleteFunc(present, func(producer string) bool { return asked[producer] })
		if b.heard().After(since) {
			return errors.New("ask live gateways: NATS was away meanwhile, and who has no entry may be there")
		}
		if len(present) == 0 {
			return nil
		}
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(asksAtOnce)
		for _, producer := range present {
			asked[producer] = true
			group.Go(func() error { return b.ask(ctx, bucket, producer, generation) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
}

// believable waits until gateways have had time to show their presence.
func (b *Barrier) believable(ctx context.Context, bucket jetstream.KeyValue) error {
	for {
		status, err := bucket.Status(ctx)
		if err != nil {
			return fmt.Errorf("bucket %s: %w", event.PresenceBucket, err)
		}
		since := b.heard()
		if of, ok := status.(*jetstream.KeyValueBucketStatus); ok && of.StreamInfo().Created.After(since) {
			since = of.StreamInfo().Created
		}
		left := since.Add(b.wait).Sub(b.now())
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(min(left, lookAgain))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for gateways to show their presence: %w", context.Cause(ctx))
		}
	}
}

// heard notes that NATS has just answered, and is since when it is known to be there. Who has not heard of it for so long that entries
// may have lapsed, though the connection stands, does not know whether it was paused.
func (b *Barrier) heard() time.Time {
	reconnects, now := b.nc.Stats().Reconnects, b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() || reconnects != b.reconnects || now.Sub(b.last) > silence {
		b.since, b.reconnects = now, reconnects
	}
	b.last = now
	return b.since
}

// presentGateways lists the producer ids of the live gateways and of those that took their entry away of late. The entries are not read
// one by one: one that is renewed meanwhile goes from its place, and can come in its new one when the end was reached. The server tells
// the stream's subjects as of one moment.
func (b *Barrier) presentGateways(ctx context.Context) ([]string, error) {
	const prefix = "$KV." + event.PresenceBucket + "."
	stream, err := b.js.Stream(ctx, "KV_"+event.PresenceBucket)
	if err != nil {
		return nil, fmt.Errorf("list live gateways: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return nil, fmt.Errorf("list live gateways: %w", err)
	}
	var present []string
	for subject := range info.State.Subjects {
		present = append(present, strings.TrimPrefix(subject, prefix))
	}
	return present, nil
}

// ask repeats the question until the gateway has answered or is no longer present.
func (b *Barrier) ask(ctx context.Context, bucket jetstream.KeyValue, producer, generation string) error {
	for {
		answer, err := b.askOnce(ctx, producer, generation)
		if err == nil && answer == event.BarrierDone {
			return nil
		}
		switch _, gone := bucket.Get(ctx, producer); {
		case errors.Is(gone, jetstream.ErrKeyNotFound):
			return nil
		case gone == nil:
			b.heard()
		}
		timer := time.NewTimer(askAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("gateway %s has not passed the barrier: %w", producer, errors.Join(context.Cause(ctx), err, refusedWith(answer)))
		}
	}
}

func refusedWith(answer string) error {
	if text, ok := strings.CutPrefix(answer, "error: "); ok {
		return errors.New(text)
	}
	return nil
}

func (b *Barrier) askOnce(ctx context.Context, producer, generation string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("no answer in time"))
	defer cancel()
	reply, err := b.nc.RequestWithContext(ctx, event.BarrierSubject(producer), []byte(generation))
	if err != nil {
		return "", err
	}
	return string(reply.Data), nil
}
