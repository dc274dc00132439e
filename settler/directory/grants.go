package directory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/settler/buckets"
)

// RunGrants makes the bucket of grants if it is missing and brings it to the grants in force by Postgres: those that are taken
// back or have lapsed leave it.
func (s *Sync) RunGrants(ctx context.Context) error {
	bucket, err := buckets.Open(ctx, s.js, jetstream.KeyValueConfig{Bucket: event.GrantsBucket, Description: "grants in force"})
	if err != nil {
		return err
	}
	entries, err := read(ctx, bucket) // before Postgres, as in Run
	if err != nil {
		return err
	}
	grants, err := s.store.GrantsInForce(ctx)
	if err != nil {
		return err
	}
	wanted := map[string][]byte{}
	for i := range grants {
		key := event.GrantPrefix + grants[i].ID
		if wanted[key], err = json.Marshal(&grants[i]); err != nil {
			return fmt.Errorf("encode grant %s: %w", grants[i].ID, err)
		}
	}
	for key, value := range wanted {
		if err := put(ctx, bucket, entries[key], key, value); err != nil {
			return err
		}
	}
	for key, entry := range entries {
		if wanted[key] != nil || key == event.GrantsComplete || entry.Operation() != jetstream.KeyValuePut {
			continue
		}
		err := bucket.Delete(ctx, key, jetstream.LastRevision(entry.Revision()))
		if err != nil && !errors.Is(err, jetstream.ErrKeyExists) && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
			return fmt.Errorf("take %s back: %w", key, err)
		}
	}
	return put(ctx, bucket, entries[event.GrantsComplete], event.GrantsComplete, []byte("1"))
}

// put writes an entry that is missing or differs, unless somebody changed it since it was read.
func put(ctx context.Context, bucket jetstream.KeyValue, entry jetstream.KeyValueEntry, key string, value []byte) error {
	var revision uint64
	if entry != nil {
		if entry.Operation() == jetstream.KeyValuePut && bytes.Equal(entry.Value(), value) {
			return nil
		}
		revision = entry.Revision()
	}
	if _, err := bucket.Update(ctx, key, value, revision); err != nil &&
		!errors.Is(err, jetstream.ErrKeyExists) && !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}
