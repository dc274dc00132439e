package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/event"
)

// confirmTimeout is how long one answer may take, which waits for what the stream holds to be settled.
const confirmTimeout = 4 * time.Second

// confirmations tells the outbox which of its segments are no longer needed, and what to send again.
func (g *Gateway) confirmations(ctx context.Context) error {
	ticker := time.NewTicker(g.config.ConfirmEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		g.outbox.Mark()
		confirmation, err := g.confirmed(ctx)
		if err != nil {
			g.log.Debug("no confirmation from a settler", "error", err)
			continue
		}
		g.outbox.Confirm(confirmation)
	}
}

func (g *Gateway) confirmed(ctx context.Context) (event.Confirmation, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTimeout, errors.New("confirmed: no settler answered in time"))
	defer cancel()
	reply, err := g.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: event.ConfirmSubject, Data: []byte(g.outbox.Producer())})
	if err != nil {
		return event.Confirmation{}, fmt.Errorf("ask for confirmed sequence: %w", err)
	}
	return event.DecodeConfirmation(reply.Data)
}
