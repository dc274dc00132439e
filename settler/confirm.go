package settler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/event"
)

// confirmPatience is how long requests for a confirmation wait for the settlement of what the stream held when they arrived.
// A settler further behind confirms what Postgres holds and says nothing of what was lost.
const confirmPatience = time.Second

// serveConfirmations tells gateways which of their events Postgres holds, so that they delete those and send again what the
// stream has lost.
func (s *Settler) serveConfirmations(ctx context.Context) error {
	requests := make(chan *nats.Msg, 64)
	subscription, err := s.nc.ChanQueueSubscribe(event.ConfirmSubject, queueGroup, requests)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", event.ConfirmSubject, err)
	}
	defer s.unsubscribe(subscription)
	for {
		var waiting []*nats.Msg
		select {
		case <-ctx.Done():
			return nil
		case request := <-requests:
			waiting = append(waiting, request)
		}
		for more := true; more; { // one wait serves all that are there
			select {
			case request := <-requests:
				waiting = append(waiting, request)
			default:
				more = false
			}
		}
		s.confirm(ctx, waiting)
	}
}

func (s *Settler) confirm(ctx context.Context, requests []*nats.Msg) {
	settled := s.settledByNow(ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("confirm: Postgres did not answer"))
	defer cancel()
	for _, request := range requests {
		// Read after the wait, so that it has what the wait was for.
		c, err := s.store.Held(ctx, string(request.Data))
		var answer []byte
		if err == nil {
			c.Settled = settled
			answer, err = c.Encode()
		}
		if err != nil {
			s.log.Warn("no confirmation given", "error", err)
			continue
		}
		s.respond(request, string(answer))
	}
}

// settledByNow tells whether everything that the stream holds now is settled within confirmPatience.
func (s *Settler) settledByNow(ctx context.Context) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, confirmPatience, errors.New("confirm: the settler is behind"))
	defer cancel()
	if err := s.awaitSettled(ctx); err != nil {
		s.log.Debug("confirmation cannot say what was lost", "error", err)
		return false
	}
	return true
}
