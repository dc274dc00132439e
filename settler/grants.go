package settler

import (
	"context"
	"time"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// noteGrants has gateways told at once when the batch changed what is granted.
func (s *Settler) noteGrants(batch []pg.Received) {
	for i := range batch {
		if batch[i].Event.Kind == event.KindGranted {
			select {
			case s.granted <- struct{}{}:
			default: // is told already, and reads what stands when it gets there
			}
			return
		}
	}
}

// tellGrants keeps the grants that gateways follow equal to those in Postgres, until ctx ends.
func (s *Settler) tellGrants(ctx context.Context) error {
	ticker := time.NewTicker(s.config.DirectoryEvery)
	defer ticker.Stop()
	for {
		if err := s.keys.RunGrants(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("periodic work failed", "work", "grants", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.granted:
		case <-ticker.C:
		}
	}
}
