package gateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/event"
)

// confirmEvery is how often the settler is asked how far Postgres holds this gateway's events.
const confirmEvery = 5 * time.Second

// confirmations tells the outbox which of its segments are no longer needed.
func (g *Gateway) confirmations(ctx context.Context) error {
	ticker := time.NewTicker(confirmEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		confirmed, err := g.confirmed(ctx)
		if err != nil {
			g.log.Debug("no confirmation from a settler", "error", err)
			continue
		}
		g.outbox.Confirm(confirmed)
	}
}

func (g *Gateway) confirmed(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("confirmed: no settler answered in time"))
	defer cancel()
	reply, err := g.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: event.ConfirmSubject, Data: []byte(g.outbox.Producer())})
	if err != nil {
		return 0, fmt.Errorf("ask for confirmed sequence: %w", err)
	}
	return strconv.ParseUint(string(reply.Data), 10, 64)
}
