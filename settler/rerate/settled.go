package rerate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/event"
)

const (
	// askAgain is the least time between two questions to the settlers.
	askAgain = 50 * time.Millisecond
	// askTimeout is longer than a settler takes that answers at all: one that cannot ask Postgres says nothing.
	askTimeout = 5 * time.Second
)

// Settled gives a Certain that asks the settlers, for at most so long.
func Settled(nc *nats.Conn, limit time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the settlers are behind: not everything on the stream was settled within %s", limit))
		defer cancel()
		for {
			question, answered := context.WithTimeout(ctx, askTimeout)
			reply, err := nc.RequestWithContext(question, event.ConfirmSubject, []byte(Producer))
			answered()
			switch {
			case errors.Is(err, nats.ErrNoResponders):
				return errors.New("no settler is running: only a settler can post adjustments")
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, context.DeadlineExceeded):
				continue
			case err != nil:
				return fmt.Errorf("ask a settler: %w", err)
			}
			c, err := event.DecodeConfirmation(reply.Data)
			if err != nil {
				return err
			}
			if c.Settled {
				return nil
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(askAgain):
			}
		}
	}
}
