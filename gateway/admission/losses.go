package admission

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tollgate/ledger"
)

// losses are the apps whose counters are missing in Redis. Counters that nobody has rebuilt from the ledger are never believed.
type losses struct {
	wanted chan string // apps whose rebuild must be asked for
	seen   sync.Map    // app -> when Redis first judged it here

	lost atomic.Int64 // how many apps are in since

	mu    sync.Mutex // guards since
	since map[string]*loss
}

// loss is one app whose counters are missing.
type loss struct {
	noticed time.Time
	asked   bool // its rebuild is wanted, or goes on
}

func newLosses() *losses {
	return &losses{wanted: make(chan string, 1024), since: map[string]*loss{}}
}

// judged notes that the app's counters are there.
func (l *losses) judged(app string) {
	if _, seen := l.seen.Load(app); !seen {
		l.seen.LoadOrStore(app, time.Now())
	}
	if l.lost.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, app)
	l.lost.Store(int64(len(l.since)))
}

// noticed reports whether the app is known to be missing.
func (l *losses) noticed(app string) bool {
	if l.lost.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.since[app]
	return known
}

// notice has the app rebuilt in the background, and says for how long it has been missing.
func (l *losses) notice(app string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.since[app]
	if x == nil {
		x = &loss{noticed: time.Now()}
		l.since[app] = x
		l.lost.Store(int64(len(l.since)))
	}
	if !x.asked {
		select {
		case l.wanted <- app:
			x.asked = true
		default: // as many are asked for already
		}
	}
	return time.Since(x.noticed)
}

// answered notes that a rebuild has ended, well or not: who is refused then may want another.
func (l *losses) answered(app string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.since[app]; x != nil {
		x.asked = false
	}
}

// rebuiltNow has the counters of an app rebuilt while its first request here waits: a new app, or a new gateway, has nothing
// to fall back on. An app that was judged before, or whose rebuild goes on in the background, does not make its callers wait.
// Requests that were on their way when the first was judged have only been told too early: the counters are there now.
func (a *Admission) rebuiltNow(ctx context.Context, c *candidate) bool {
	app := c.ask.Caller.App
	if first, seen := a.losses.seen.Load(app); seen {
		return c.start.Before(first.(time.Time))
	}
	if a.losses.noticed(app) {
		return false
	}
	if err := a.rebuild(ctx, app); err != nil {
		a.log.Warn("counters are missing and cannot be rebuilt", "app", app, "error", err)
		return false
	}
	return true
}

func (a *Admission) rebuild(ctx context.Context, app string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.rebuildTimeout, errors.New("rebuild: no answer in time"))
	defer cancel()
	return a.control.Rebuild(ctx, app)
}

// rebuildPatience is how long callers are told to come back in a second while counters are being rebuilt. When that takes
// longer, because NATS or the settlers are away, too, the gateway judges by itself.
const rebuildPatience = 3 * time.Second

// judgeLost decides on a request whose counters are missing.
func (a *Admission) judgeLost(c *candidate) {
	if a.losses.notice(c.ask.Caller.App) < rebuildPatience {
		c.Limits = nil
		c.Refusal = &Refusal{
			Reason: ledger.ReasonRebuilding, RetryAfter: time.Second,
			Message: "the counters of this app are being rebuilt from the ledger",
		}
		return
	}
	a.judgeLocally(c, errNotAsked)
}

// rebuildLost asks for the rebuilds that requests have found wanting.
func (a *Admission) rebuildLost(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(8)
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case app := <-a.losses.wanted:
			group.Go(func() error {
				defer a.losses.answered(app)
				if err := a.rebuild(ctx, app); err != nil && ctx.Err() == nil {
					a.log.Warn("counters are missing and cannot be rebuilt", "app", app, "error", err)
				}
				return nil
			})
		}
	}
}
