package settler

import (
	"context"
	"errors"
	"time"
)

const (
	// sealLook is how often it is looked how much waits to be sealed. Under load little at a time is sealed, while Postgres has it in
	// memory; else every sealEvery, since each block is one more to verify.
	sealLook  = 500 * time.Millisecond
	sealEvery = 5 * time.Second
	sealFull  = 2000 // serials
	// sealBlock is how many serials one block covers at most: half a megabyte of digests, and well below a second of work.
	sealBlock = 10_000
	// sealTimeout bounds one round; the next goes on where it ended.
	sealTimeout = time.Minute
)

// sealer appends to the journal's chain of hashes what was settled since the last time.
func (s *Settler) sealer() func(context.Context) error {
	var last time.Time
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, sealTimeout, errors.New("seal: took more than a minute"))
		defer cancel()
		atLeast := int64(sealFull)
		if s.now().Sub(last) >= sealEvery {
			last, atLeast = s.now(), 1
		}
		sealed, err := s.store.Seal(ctx, atLeast, sealBlock)
		// Where it was only looked how much waits, what failed before is not mended.
		if sealed.Behind > 0 || err == nil && (atLeast == 1 || sealed.Rows > 0) {
			s.metrics.unsealed.Set(float64(sealed.Behind))
		}
		return err
	}
}
