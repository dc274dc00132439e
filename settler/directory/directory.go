// Package directory keeps the key directory that gateways follow (a NATS KV bucket) equal to the keys in Postgres.
package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
	"tollgate/settler/buckets"
)

// Sync brings the bucket to what Postgres says. It is safe for concurrent use, also by several processes.
type Sync struct {
	store *pg.Store
	js    jetstream.JetStream
}

// NewSync makes a Sync that has not looked yet.
func NewSync(store *pg.Store, js jetstream.JetStream) *Sync { return &Sync{store: store, js: js} }

// Run makes the bucket if it is missing and writes every entry that is missing or differs. It is how a change of an app or a
// key reaches the gateways at once, and how a lost bucket comes back.
func (s *Sync) Run(ctx context.Context) error {
	bucket, err := buckets.Open(ctx, s.js, jetstream.KeyValueConfig{Bucket: keys.Bucket, Description: "API keys by the hash of their secret"})
	if err != nil {
		return err
	}
	// The bucket is read before Postgres, and written by revision: an entry that somebody changed in between is newer than
	// what is about to be read here, and is left alone.
	entries, err := read(ctx, bucket)
	if err != nil {
		return err
	}
	wanted, err := s.store.Directory(ctx)
	if err != nil {
		return err
	}
	for hash, record := range wanted {
		value, err := record.Encode()
		if err != nil {
			return err
		}
		var revision uint64
		if entry := entries[hash]; entry != nil {
			if bytes.Equal(entry.Value(), value) {
				continue
			}
			revision = entry.Revision()
		}
		if _, err := bucket.Update(ctx, hash, value, revision); err != nil && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			return fmt.Errorf("write key %s: %w", record.KeyID, err)
		}
	}
	return nil
}

// read is every entry of the bucket.
func read(ctx context.Context, bucket jetstream.KeyValue) (map[string]jetstream.KeyValueEntry, error) {
	watcher, err := bucket.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", keys.Bucket, err)
	}
	entries := map[string]jetstream.KeyValueEntry{}
	for {
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), watcher.Stop())
		case entry, open := <-watcher.Updates():
			switch {
			case !open:
				return nil, fmt.Errorf("read bucket %s: watch ended", keys.Bucket)
			case entry == nil: // all present ones have come
				if err := watcher.Stop(); err != nil {
					return nil, fmt.Errorf("read bucket %s: %w", keys.Bucket, err)
				}
				return entries, nil
			default:
				entries[entry.Key()] = entry
			}
		}
	}
}
