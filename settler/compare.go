package settler

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/event"
	"tollgate/lua"
)

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

// comparePause is the least time between two apps that are compared.
const comparePause = 50 * time.Millisecond

// compare looks at what Redis knows, slot after slot, spread over CompareEvery.
func (s *Settler) compare(ctx context.Context) error {
	for {
		apps, err := s.store.Apps(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("redis is not compared with the ledger", "error", err)
		}
		slots := append(apps, lua.SharedSlot)
		for _, slot := range slots {
			if sleep(ctx, max(comparePause, s.config.CompareEvery/time.Duration(len(slots)))) != nil {
				return nil
			}
			lost, err := s.rebuild.Compare(ctx, slot)
			if err != nil && ctx.Err() == nil {
				s.log.Warn("redis is not compared with the ledger", "slot", slot, "error", err)
			}
			s.metrics.lost.Add(float64(lost))
			if lost > 0 && slot != lua.SharedSlot {
				s.markDirty(slot)
			}
		}
	}
}
