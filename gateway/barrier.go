package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger/event"
)

const (
	// barrierTimeout is how long this gateway tries to pass one barrier; the settler asks again.
	barrierTimeout = 20 * time.Second
	// barriersAtOnce is how many questions may wait here: settlers repeat them.
	barriersAtOnce = 16
)

// serveBarriers answers the settlers that want to rebuild Redis.
func (g *Gateway) serveBarriers(ctx context.Context, requests <-chan *nats.Msg) error {
	var group errgroup.Group
	group.SetLimit(barriersAtOnce)
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case request := <-requests:
			group.Go(func() error {
				g.passBarrier(ctx, request)
				return nil
			})
		}
	}
}

func (g *Gateway) passBarrier(ctx context.Context, request *nats.Msg) {
	ctx, cancel := context.WithTimeoutCause(ctx, barrierTimeout, errors.New("barrier: took more than 20 s"))
	defer cancel()
	answer := event.BarrierDone
	if err := g.control.Barrier(ctx, string(request.Data)); err != nil {
		g.log.Warn("barrier not passed", "generation", string(request.Data), "error", err)
		answer = "error: " + err.Error()
	}
	if err := request.Respond([]byte(answer)); err != nil {
		g.log.Debug("answer not sent", "subject", request.Subject, "error", err)
	}
}

// hearBarriers subscribes to this gateway's own questions.
func (g *Gateway) hearBarriers() (*nats.Subscription, <-chan *nats.Msg, error) {
	requests := make(chan *nats.Msg, barriersAtOnce)
	subscription, err := g.nc.ChanSubscribe(event.BarrierSubject(g.outbox.Producer()), requests)
	if err != nil {
		return nil, nil, fmt.Errorf("subscribe to barriers of %s: %w", g.outbox.Producer(), err)
	}
	return subscription, requests, nil
}
