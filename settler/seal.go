package settler

import (
	"context"
	"errors"
	"time"
)

const (
	sealEvery = 5 * time.Second
	// sealBlock is how many serials one block covers at most: half a megabyte of digests, and well below a second of work.
	sealBlock = 10_000
	// sealTimeout bounds one round; the next goes on where it ended.
	sealTimeout = time.Minute
)

// seal appends to the journal's chain of hashes what was settled since the last time.
func (s *Settler) seal(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sealTimeout, errors.New("seal: took more than a minute"))
	defer cancel()
	sealed, err := s.store.Seal(ctx, sealBlock)
	s.metrics.unsealed.Set(float64(sealed.Behind))
	return err
}
