package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/gateway/admission"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
)

// followPushed takes published prices into force as they come, and pushed policies where the gateway has none of its own. One that
// cannot be taken leaves the running one.
func (g *Gateway) followPushed(ctx context.Context) error {
	return admission.Follow(ctx, g.watchPushed, func(err error) {
		g.log.Warn("pushed policies and prices cannot be followed, the running ones stay", "error", err)
	})
}

func (g *Gateway) watchPushed(ctx context.Context) error {
	bucket, err := PolicyBucket(ctx, g.js)
	if err != nil {
		return err
	}
	return admission.Watch(ctx, bucket, func(entry jetstream.KeyValueEntry) { g.takePushed(ctx, entry) })
}

// readPushed takes what was pushed before this gateway serves, also while it was starting, so that not one request is judged
// without it. Where NATS does not answer soon, watching will find it.
func (g *Gateway) readPushed(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.waits.pushed, errors.New("read pushed policy and prices: NATS did not answer in time"))
	defer cancel()
	bucket, err := PolicyBucket(ctx, g.js)
	if err == nil {
		err = errors.Join(g.readKey(ctx, bucket, policy.PricesKey), g.readKey(ctx, bucket, policy.BucketKey))
	}
	if err != nil {
		g.log.Warn("pushed policy and prices cannot be read yet", "error", err)
	}
}

func (g *Gateway) readKey(ctx context.Context, bucket jetstream.KeyValue, key string) error {
	entry, err := bucket.Get(ctx, key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("key %s: %w", key, err)
	}
	g.takePushed(ctx, entry)
	return nil
}

func (g *Gateway) takePushed(ctx context.Context, entry jetstream.KeyValueEntry) {
	switch {
	case entry == nil || entry.Operation() != jetstream.KeyValuePut:
	case entry.Key() == policy.BucketKey && g.follow:
		g.takePolicy(ctx, entry.Value())
	case entry.Key() == policy.PricesKey:
		g.takePrices(entry.Value())
	}
}

// takePrices takes published prices into force, or leaves the running ones.
func (g *Gateway) takePrices(data []byte) {
	sheet, err := price.ParseSheet(data)
	if err == nil {
		err = g.admission.SetPrices(sheet.Rows)
	}
	if err != nil {
		g.log.Error("published prices are not taken, the running ones stay", "error", err)
		return
	}
	g.log.Info("prices in force", "rows", len(sheet.Rows), "source", sheet.Source.String())
}

// PolicyBucket opens the bucket of pushed policies and prices, making it where it is missing.
func PolicyBucket(ctx context.Context, js jetstream.JetStream) (jetstream.KeyValue, error) {
	bucket, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: policy.Bucket, Description: "the policy in force, published prices, and the history of both", History: 64, Storage: jetstream.FileStorage,
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
		g.filler.before(ctx, p, g.waits.fill)
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
