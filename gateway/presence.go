package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
)

// presenceTimeout bounds one renewal, and with it how late the next may be.
const presenceTimeout = time.Second

// stayPresent renews this gateway's entry among the live ones, takes it away at the end, and learns the generation where a
// barrier did not bring it. It also records the policy in force where that could not be done before.
func (g *Gateway) stayPresent(ctx context.Context) error {
	ticker := time.NewTicker(event.PresenceRenewal)
	defer ticker.Stop()
	defer g.leavePresence()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := g.present(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("settlers are not told that this gateway is here", "error", err)
		}
		if g.owesPolicy.Load() {
			g.announce()
		}
	}
}

// present renews the entry, and only then looks for the generation: who judges by one is always among those whom the barrier of
// the next one asks.
func (g *Gateway) present(ctx context.Context) error {
	timed, cancel := context.WithTimeoutCause(ctx, presenceTimeout, errors.New("presence: NATS did not answer in time"))
	defer cancel()
	bucket, err := g.presenceBucket(timed)
	if err != nil {
		return err
	}
	if _, err := bucket.PutString(timed, g.outbox.Producer(), g.control.Generation()); err != nil {
		return fmt.Errorf("presence of %s: %w", g.outbox.Producer(), err)
	}
	g.presentOnce.Store(true)
	if err := g.control.Refresh(timed); err != nil {
		return fmt.Errorf("generation: %w", err)
	}
	return nil
}

func (g *Gateway) presenceBucket(ctx context.Context) (jetstream.KeyValue, error) {
	return g.bucket(ctx, jetstream.KeyValueConfig{Bucket: event.PresenceBucket, TTL: event.PresenceTTL})
}

// leavePresence spares a rebuild the wait for this gateway's entry to lapse.
func (g *Gateway) leavePresence() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), presenceTimeout, errors.New("presence: NATS did not answer in time"))
	defer cancel()
	bucket, err := g.presenceBucket(ctx)
	if err == nil {
		err = bucket.Delete(ctx, g.outbox.Producer())
	}
	if err != nil {
		g.log.Debug("presence not taken away, it will lapse", "error", err)
	}
}

// errNotPresent keeps a gateway from judging by a generation before settlers can know of it.
var errNotPresent = errors.New("this gateway has not been able to show its presence yet")

// delivered is what a generation waits for.
func (g *Gateway) delivered(ctx context.Context) error {
	if !g.presentOnce.Load() {
		return errNotPresent
	}
	return g.outbox.Delivered(ctx)
}
