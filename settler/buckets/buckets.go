// Package buckets opens the buckets of NATS that settlers keep.
package buckets

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Open opens a bucket, making it where it is missing and bringing its time to live and replicas to the configuration where they
// differ. What is already as it should be is not written again: settlers open buckets often, and side by side. Idempotent.
func Open(ctx context.Context, js jetstream.JetStream, config jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	bucket, err := js.KeyValue(ctx, config.Bucket)
	if err == nil {
		var fits bool
		if fits, err = asConfigured(ctx, bucket, config); err == nil && fits {
			return bucket, nil
		}
	}
	if err == nil || errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = js.CreateOrUpdateKeyValue(ctx, config)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", config.Bucket, err)
	}
	return bucket, nil
}

// asConfigured compares what Open promises; the server fills in the rest.
func asConfigured(ctx context.Context, bucket jetstream.KeyValue, config jetstream.KeyValueConfig) (bool, error) {
	status, err := bucket.Status(ctx)
	if err != nil {
		return false, err
	}
	present := status.Config()
	return present.TTL == config.TTL && max(present.Replicas, 1) == max(config.Replicas, 1), nil
}
