package rebuild

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/settler/buckets"
)

// Generations are the numbers that marks name, kept where every gateway and settler can read them. A generation serves for one
// rebuild of everything: it is raised before, and noted as rebuilt before its marks are written, so that a later rebuild, also one
// after a crash in between, raises the next.
type Generations struct {
	js       jetstream.JetStream
	replicas int
	now      func() time.Time
}

// NewGenerations makes the bucket with so many replicas where it is missing.
func NewGenerations(js jetstream.JetStream, replicas int, now func() time.Time) *Generations {
	return &Generations{js: js, replicas: replicas, now: now}
}

// Ensure makes the bucket and the first generation where there is none.
func (g *Generations) Ensure(ctx context.Context) error {
	control, err := buckets.Open(ctx, g.js, jetstream.KeyValueConfig{Bucket: event.ControlBucket, Replicas: g.replicas})
	if err != nil {
		return err
	}
	if _, err := control.Create(ctx, event.GenerationKey, []byte(g.after(""))); err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		return fmt.Errorf("make generation: %w", err)
	}
	return nil
}

// after is a generation newer than another: it is taken from the clock, so that it is newer also than those of a bucket that was
// lost, which marks and gateways may still name.
func (g *Generations) after(generation string) string {
	before, _ := strconv.ParseInt(generation, 10, 64) // what is no number is older than all
	return strconv.FormatInt(max(before+1, g.now().UnixMilli()), 10)
}

// Current reads the generation that marks must name.
func (g *Generations) Current(ctx context.Context) (string, error) {
	_, entry, err := g.read(ctx)
	if err != nil {
		return "", err
	}
	return string(entry.Value()), nil
}

func (g *Generations) read(ctx context.Context) (jetstream.KeyValue, jetstream.KeyValueEntry, error) {
	bucket, err := g.js.KeyValue(ctx, event.ControlBucket)
	if err != nil {
		if !errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil, nil, fmt.Errorf("bucket %s: %w", event.ControlBucket, err)
		}
		if err := g.Ensure(ctx); err != nil { // lost with NATS's disk
			return nil, nil, err
		}
		if bucket, err = g.js.KeyValue(ctx, event.ControlBucket); err != nil {
			return nil, nil, fmt.Errorf("bucket %s: %w", event.ControlBucket, err)
		}
	}
	entry, err := bucket.Get(ctx, event.GenerationKey)
	if err != nil {
		return nil, nil, fmt.Errorf("read generation: %w", err)
	}
	return bucket, entry, nil
}

// Begin is the generation to rebuild everything for: the current one where no marks were written for it yet, so that settlers
// that begin at once agree, else a new one. In between, done looks whether another settler has just finished: then there is nothing
// to begin, and the generation is "".
func (g *Generations) Begin(ctx context.Context, done func(ctx context.Context, generation string) (bool, error)) (string, error) {
	for {
		bucket, entry, err := g.read(ctx)
		if err != nil {
			return "", err
		}
		used, _, err := rebuilt(ctx, bucket)
		if err != nil {
			return "", err
		}
		current := string(entry.Value())
		if used != current {
			return current, nil
		}
		if finished, err := done(ctx, current); err != nil || finished {
			return "", err
		}
		if err := g.raise(ctx, bucket, entry); err != nil {
			return "", err
		}
	}
}

// Raise makes every mark one of the past.
func (g *Generations) Raise(ctx context.Context) error {
	bucket, entry, err := g.read(ctx)
	if err != nil {
		return err
	}
	return g.raise(ctx, bucket, entry)
}

// raise also returns when another settler has raised the generation since it was read.
func (g *Generations) raise(ctx context.Context, bucket jetstream.KeyValue, entry jetstream.KeyValueEntry) error {
	next := g.after(string(entry.Value()))
	_, err := bucket.Update(ctx, event.GenerationKey, []byte(next), entry.Revision())
	if err != nil && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return fmt.Errorf("raise generation %s to %s: %w", entry.Value(), next, err)
	}
	return nil
}

// Elsewhere raises the generation if its marks were written to another Redis than this one, and says whether it did.
func (g *Generations) Elsewhere(ctx context.Context, redis string) (raised bool, err error) {
	bucket, entry, err := g.read(ctx)
	if err != nil {
		return false, err
	}
	used, of, err := rebuilt(ctx, bucket)
	if err != nil || used != string(entry.Value()) || of == redis {
		return false, err // where no marks name the generation yet, a rebuild is due anyway
	}
	err = g.raise(ctx, bucket, entry)
	return err == nil, err
}

// Use notes that marks of the generation are about to be written to the Redis. It errs when they must not be: the generation was
// raised since its barrier, or has served for a rebuild already, after which gateways may have admitted what its barrier did not
// cover. The caller must keep other rebuilds away.
func (g *Generations) Use(ctx context.Context, generation, redis string) error {
	bucket, entry, err := g.read(ctx)
	if err != nil {
		return err
	}
	used, _, err := rebuilt(ctx, bucket)
	if err != nil {
		return err
	}
	if current := string(entry.Value()); current != generation || used == generation {
		return fmt.Errorf("generation %s cannot serve, it is %s now, rebuilt was %q", generation, current, used)
	}
	if _, err := bucket.PutString(ctx, event.RebuiltKey, generation+" "+redis); err != nil {
		return fmt.Errorf("use generation %s: %w", generation, err)
	}
	return nil
}

// rebuilt is the last generation that marks were written for, and which Redis they were written to; "" before there was one.
func rebuilt(ctx context.Context, bucket jetstream.KeyValue) (generation, redis string, err error) {
	entry, err := bucket.Get(ctx, event.RebuiltKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("read %s: %w", event.RebuiltKey, err)
	}
	generation, redis, _ = strings.Cut(string(entry.Value()), " ")
	return generation, redis, nil
}
