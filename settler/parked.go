package settler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tollgate/ledger/pg"
)

const (
	parkedEvery = 10 * time.Second
	parkedLate  = 5 * time.Minute // how long after they were parked messages are tried, each time
)

// parkedReader settles what another settler could not read and this one can: those of the version before park what a newer gateway
// writes. At first it tries all that was ever parked so, then what has come lately, each once; what another such settler has settled
// is a duplicate.
func (s *Settler) parkedReader() func(context.Context) error {
	var since time.Time
	var tried map[int64]bool // by id in the table, of the last round
	return func(ctx context.Context) error {
		next, listed := s.now().Add(-parkedLate), map[int64]bool{}
		for after := int64(0); ; {
			parked, err := s.store.Unread(ctx, since, after, s.config.Batch)
			if err != nil || len(parked) == 0 {
				if err == nil {
					since, tried = next, listed
				}
				return err
			}
			var batch []pg.Received
			for _, p := range parked {
				after, listed[p.ID] = p.ID, true
				if tried[p.ID] {
					continue
				}
				if p.Event, err = read(p.Body); err == nil {
					batch = append(batch, p.Received)
				}
			}
			if err := s.takeUp(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// takeUp settles parked events, and leaves those that cannot be.
func (s *Settler) takeUp(ctx context.Context, batch []pg.Received) error {
	if len(batch) == 0 {
		return nil
	}
	work, cancel := context.WithTimeoutCause(ctx, batchTimeout, errors.New("settle parked events: took more than 30 s"))
	defer cancel()
	result, err := s.postAndTell(work, batch)
	switch {
	case err == nil:
	case !pg.Permanent(err):
		return fmt.Errorf("settle parked events: %w", err)
	case len(batch) == 1:
		return nil
	default:
		half := len(batch) / 2
		return errors.Join(s.takeUp(ctx, batch[:half]), s.takeUp(ctx, batch[half:]))
	}
	s.count(batch, result.Fates)
	return nil
}
