package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// followAgain is the pause before a watch that has ended is begun anew.
const followAgain = time.Second

// Follow has watch follow a bucket until ctx ends, and begins it anew, a pause later, when it ended before. It hands each error
// to failed, and returns nil.
func Follow(ctx context.Context, watch func(context.Context) error, failed func(error)) error {
	for {
		if err := watch(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		timer := time.NewTimer(followAgain)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// openBucket opens a bucket that settlers make. It errs with jetstream.ErrBucketNotFound until they have.
func openBucket(ctx context.Context, js jetstream.JetStream, name string) (jetstream.KeyValue, error) {
	bucket, err := js.KeyValue(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	return bucket, nil
}

// checkEvery is how often a watch is compared with its bucket.
const checkEvery = 2 * time.Second

// Watch hands every entry of the bucket to apply, what stands there first, then nil, then what changes. It
// returns nil when ctx ends, and an error when the watch has ended or has died: a watch does not notice that its bucket was
// made anew, and after an outage it can take long to go on. Call it again then, on the bucket opened anew.
func Watch(ctx context.Context, bucket jetstream.KeyValue, apply func(jetstream.KeyValueEntry)) error {
	begun, err := statusOf(ctx, bucket)
	if err != nil {
		return err
	}
	watcher, err := bucket.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch %s: %w", bucket.Bucket(), err)
	}
	defer func() { _ = watcher.Stop() }() // the subscription may have ended by itself
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	seen, due := uint64(0), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case entry, open := <-watcher.Updates():
			if !open {
				return errors.New("the watch ended")
			}
			if entry != nil {
				seen = max(seen, entry.Revision())
			}
			apply(entry)
		case <-ticker.C:
			now, err := statusOf(ctx, bucket)
			switch {
			case err != nil:
				return err
			case !now.Created.Equal(begun.Created):
				return fmt.Errorf("bucket %s was made anew", bucket.Bucket())
			case seen < due:
				return fmt.Errorf("the watch of %s has stopped at revision %d of %d", bucket.Bucket(), seen, due)
			}
			due = now.State.LastSeq // must have come by the next time
		}
	}
}

func statusOf(ctx context.Context, bucket jetstream.KeyValue) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkEvery, errors.New("watch: NATS did not answer in time"))
	defer cancel()
	status, err := bucket.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket.Bucket(), err)
	}
	of, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return nil, fmt.Errorf("bucket %s: status of type %T", bucket.Bucket(), status)
	}
	return of.StreamInfo(), nil
}
