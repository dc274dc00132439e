package admission

import (
	"context"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/keys"
)

// Directory is what this gateway knows of all keys: a copy of the NATS KV bucket, followed live and kept when NATS is away.
// It is safe for concurrent use.
type Directory struct {
	js    jetstream.JetStream
	log   *slog.Logger
	ready chan struct{}

	mu      sync.RWMutex // guards records
	records map[string]keys.Record
}

// NewDirectory makes an empty directory; Run fills it.
func NewDirectory(js jetstream.JetStream, log *slog.Logger) *Directory {
	return &Directory{js: js, log: log, ready: make(chan struct{}), records: map[string]keys.Record{}}
}

// Ready is closed when the directory has been read in full once.
func (d *Directory) Ready() <-chan struct{} { return d.ready }

// Find returns the record of a secret.
func (d *Directory) Find(secret string) (keys.Record, bool) {
	hash := keys.Hash(secret)
	d.mu.RLock()
	defer d.mu.RUnlock()
	record, ok := d.records[hash]
	return record, ok
}

// Run follows the bucket until ctx ends. A bucket that is away is asked for again every second.
func (d *Directory) Run(ctx context.Context) error {
	return Follow(ctx, d.watch, func(err error) {
		d.log.Warn("key directory cannot be followed, known keys are served", "error", err)
	})
}

func (d *Directory) watch(ctx context.Context) error {
	bucket, err := openBucket(ctx, d.js, keys.Bucket)
	if err != nil {
		return err
	}
	return Watch(ctx, bucket, d.apply)
}

// apply takes one change; nil marks the end of what was there at the start of the watch.
func (d *Directory) apply(entry jetstream.KeyValueEntry) {
	if entry == nil {
		select {
		case <-d.ready:
		default:
			close(d.ready)
		}
		return
	}
	// Keys leave the directory by being revoked. A deleted entry is an accident, and the settler will write it again.
	if entry.Operation() != jetstream.KeyValuePut {
		return
	}
	record, err := keys.Decode(entry.Value())
	if err != nil {
		d.log.Error("key record cannot be read", "entry", entry.Key(), "error", err)
		return
	}
	d.mu.Lock()
	d.records[entry.Key()] = record
	d.mu.Unlock()
}
