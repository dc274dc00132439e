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

// Control is what gateways and settlers agree on over NATS: the generation that marks must name, the barrier that goes before a
// rebuild, and rebuilds on demand. It is safe for concurrent use.
type Control struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	delivered Delivered
	sections  *sections

	mu         sync.Mutex // guards what follows
	generation string
	rebuilds   map[string]chan struct{} // slot -> closed when the rebuild asked for has been answered
}

// Delivered waits until the stream has acknowledged everything that this gateway has recorded so far.
type Delivered func(ctx context.Context) error

// NewControl makes a control without a generation; Refresh learns it.
func NewControl(nc *nats.Conn, js jetstream.JetStream, delivered Delivered) *Control {
	return &Control{nc: nc, js: js, delivered: delivered, sections: newSections(), rebuilds: map[string]chan struct{}{}}
}

// Generation is the one last learned, "" before that: no mark names it, so nothing is judged.
func (c *Control) Generation() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// adopt has every decision that begins from now on name the generation. One that is older than this gateway's is not taken.
func (c *Control) adopt(generation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if event.Newer(generation, c.generation) {
		c.generation = generation
	}
}

// Barrier adopts a generation and returns once nothing that was admitted before is unknown to the stream: what is judged from
// now on is judged by the marks that the rebuild will write, and what was judged before, the rebuild will find in the ledger.
func (c *Control) Barrier(ctx context.Context, generation string) error {
	c.adopt(generation)
	return c.recorded(ctx)
}

// recorded waits for the sections that have begun, then for the stream to have what they recorded.
func (c *Control) recorded(ctx context.Context) error {
	if err := c.sections.passed(ctx); err != nil {
		return err
	}
	return c.delivered(ctx)
}

// Refresh reads the generation. A newer one is one whose barrier did not reach this gateway, or has not yet: it is adopted when
// what was admitted before is delivered.
func (c *Control) Refresh(ctx context.Context) error {
	bucket, err := openBucket(ctx, c.js, event.ControlBucket)
	if err != nil {
		return err
	}
	entry, err := bucket.Get(ctx, event.GenerationKey)
	if err != nil {
		return fmt.Errorf("read generation: %w", err)
	}
	generation := string(entry.Value())
	if !event.Newer(generation, c.Generation()) {
		return nil
	}
	if err := c.recorded(ctx); err != nil {
		return fmt.Errorf("adopt generation %s: %w", generation, err)
	}
	c.adopt(generation)
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
