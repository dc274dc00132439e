package admission

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/lua"
)

// Control is what gateways and settlers agree on over NATS: the generation that marks must name, and rebuilds on demand.
type Control struct {
	nc *nats.Conn
	js jetstream.JetStream

	mu         sync.Mutex // guards what follows
	generation string
	rebuilds   map[string]chan struct{} // slot -> closed when the rebuild asked for has been answered
}

// NewControl makes a control without a generation; Refresh learns it.
func NewControl(nc *nats.Conn, js jetstream.JetStream) *Control {
	return &Control{nc: nc, js: js, rebuilds: map[string]chan struct{}{}}
}

// Generation is the one last learned, "" before that: no mark names it, so nothing is judged.
func (c *Control) Generation() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// Refresh reads the generation.
func (c *Control) Refresh(ctx context.Context) error {
	bucket, err := c.js.KeyValue(ctx, event.ControlBucket)
	if err != nil {
		return fmt.Errorf("bucket %s: %w", event.ControlBucket, err)
	}
	entry, err := bucket.Get(ctx, event.GenerationKey)
	if err != nil {
		return fmt.Errorf("read generation: %w", err)
	}
	c.mu.Lock()
	c.generation = string(entry.Value())
	c.mu.Unlock()
	return nil
}

// Rebuild has the settler rebuild the shared slot and the app's where their marks are missing, and returns when it has
// answered. Callers of one app share one request.
func (c *Control) Rebuild(ctx context.Context, app string) error {
	c.mu.Lock()
	done, asked := c.rebuilds[app]
	if !asked {
		done = make(chan struct{})
		c.rebuilds[app] = done
	}
	c.mu.Unlock()
	if asked {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() {
		c.mu.Lock()
		delete(c.rebuilds, app)
		c.mu.Unlock()
		close(done)
	}()
	for _, slot := range []string{lua.SharedSlot, app} {
		if _, err := c.nc.RequestWithContext(ctx, event.RebuildSubject, []byte(slot)); err != nil {
			return fmt.Errorf("ask for a rebuild of %s: %w", slot, err)
		}
	}
	return c.Refresh(ctx)
}

// rebuildTimeout is how long a request waits for the counters of its app before it is refused as REBUILDING.
const rebuildTimeout = 5 * time.Second
