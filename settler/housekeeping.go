package settler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/event"
)

// queueGroup shares requests among settlers.
const queueGroup = "settler"

// serveRebuilds rebuilds on request and wherever a mark is found missing.
func (s *Settler) serveRebuilds(ctx context.Context) error {
	requests := make(chan *nats.Msg, 64)
	subscription, err := s.nc.ChanQueueSubscribe(event.RebuildSubject, queueGroup, requests)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", event.RebuildSubject, err)
	}
	defer s.unsubscribe(subscription)
	ticker := time.NewTicker(s.config.RebuildEvery)
	defer ticker.Stop()
	var lastAll time.Time
	for {
		// All apps are looked at now and then; between, a lost mark shows by the gateways' requests or by the shared one.
		all := s.now().Sub(lastAll) >= 10*s.config.RebuildEvery
		if all {
			lastAll = s.now()
		}
		if err := s.rebuild.Missing(ctx, all); err != nil && ctx.Err() == nil {
			s.log.Warn("rebuild failed, trying again", "error", err)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case request := <-requests:
				answer := "ok"
				if err := s.rebuild.Slot(ctx, string(request.Data)); err != nil {
					s.log.Warn("rebuild failed", "slot", string(request.Data), "error", err)
					answer = "error: " + err.Error()
				}
				s.respond(request, answer)
			case <-ticker.C:
				waiting = false
			}
		}
	}
}

// serveHandRebuilds rebuilds although nothing is known to be missing.
func (s *Settler) serveHandRebuilds(ctx context.Context) error {
	return s.serve(ctx, event.HandRebuildSubject, func(request *nats.Msg) {
		written, err := s.rebuild.ByHand(ctx, string(request.Data))
		if err != nil {
			s.log.Warn("rebuild by hand failed", "app", string(request.Data), "error", err)
			written.Error = err.Error()
		}
		answer, err := json.Marshal(written)
		if err != nil {
			s.log.Error("answer cannot be encoded", "error", err)
			return
		}
		s.respond(request, string(answer))
	})
}

func (s *Settler) serve(ctx context.Context, subject string, handle func(*nats.Msg)) error {
	requests := make(chan *nats.Msg, 64)
	subscription, err := s.nc.ChanQueueSubscribe(subject, queueGroup, requests)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	defer s.unsubscribe(subscription)
	for {
		select {
		case <-ctx.Done():
			return nil
		case request := <-requests:
			handle(request)
		}
	}
}

func (s *Settler) unsubscribe(subscription *nats.Subscription) {
	if err := subscription.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.log.Warn("unsubscribe", "subject", subscription.Subject, "error", err)
	}
}

func (s *Settler) respond(request *nats.Msg, answer string) {
	if err := request.Respond([]byte(answer)); err != nil {
		s.log.Debug("answer not sent", "subject", request.Subject, "error", err)
	}
}
