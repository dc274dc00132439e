package settler

import (
	"context"
	"time"

	"tollgate/lua"
)

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
