package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/gateway/admission"
	"tollgate/ledger/policy"
)

// followPolicy takes pushed policies into force as they come. One that cannot be taken leaves the running one.
func (g *Gateway) followPolicy(ctx context.Context) error {
	return admission.Follow(ctx, g.watchPolicy, func(err error) {
		g.log.Warn("pushed policies cannot be followed, the running one stays", "error", err)
	})
}

func (g *Gateway) watchPolicy(ctx context.Context) error {
	bucket, err := PolicyBucket(ctx, g.js)
	if err != nil {
		return err
	}
	return admission.Watch(ctx, bucket, func(entry jetstream.KeyValueEntry) {
		if entry != nil && entry.Key() == policy.BucketKey && entry.Operation() == jetstream.KeyValuePut {
			g.takePolicy(ctx, entry.Value())
		}
	})
}

// PolicyBucket opens the bucket of pushed policies, making it where it is missing.
func PolicyBucket(ctx context.Context, js jetstream.JetStream) (jetstream.KeyValue, error) {
	bucket, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: policy.Bucket, Description: "the policy in force and its history", History: 64, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", policy.Bucket, err)
	}
	return bucket, nil
}

// takePolicy takes a pushed policy into force once its new budgets are filled, or after a moment without.
func (g *Gateway) takePolicy(ctx context.Context, data []byte) {
	if policy.RevisionOf(data) == g.admission.Policy().Revision {
		return
	}
	p, err := policy.Parse(data, os.LookupEnv)
	if err == nil {
		g.filler.before(ctx, p)
		err = g.setPolicy(p)
	}
	if err != nil {
		g.log.Error("pushed policy is not taken, the running one stays", "revision", policy.RevisionOf(data), "error", err)
		return
	}
	g.filler.follow(p)
	g.log.Info("policy in force", "revision", p.Revision)
	g.announce()
}

// bucket opens a bucket as it stands, making it by the configuration where it is missing.
func (g *Gateway) bucket(ctx context.Context, config jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	bucket, err := g.js.KeyValue(ctx, config.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = g.js.CreateOrUpdateKeyValue(ctx, config)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", config.Bucket, err)
	}
	return bucket, nil
}
