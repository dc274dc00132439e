package admission

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// grants is what this gateway knows of the grants in force: a copy of the NATS KV bucket, followed live and kept when NATS is
// away. Judging reads it without a lock. It is safe for concurrent use.
type grants struct {
	js      jetstream.JetStream
	log     *slog.Logger
	ready   chan struct{}
	inForce atomic.Pointer[map[grantee][]event.GrantInForce] // never changed once it stands

	mu    sync.Mutex // guards known
	known map[string]event.GrantInForce
}

// grantee is who a grant is for: a limit that counts the same as when it was granted.
type grantee struct {
	limit, subject string
	unit           ledger.Unit
	period         ledger.Period
}

func newGrants(js jetstream.JetStream, log *slog.Logger) *grants {
	return &grants{js: js, log: log, ready: make(chan struct{}), known: map[string]event.GrantInForce{}}
}

// GrantsReady is closed when the grants in force have been read once, or there has never been one.
func (a *Admission) GrantsReady() <-chan struct{} { return a.grants.ready }

// raise adds to each budget what has been granted to its subject in the running window.
func (g *grants) raise(applied []policy.Applied, calendar ledger.Calendar, now time.Time) {
	all := g.inForce.Load()
	if all == nil || len(*all) == 0 {
		return
	}
	for i := range applied {
		x := &applied[i]
		budget := x.Limit.Budget
		if budget == nil {
			continue
		}
		list := (*all)[grantee{x.Limit.Name, x.Subject, budget.Unit, budget.Period}]
		if len(list) == 0 {
			continue
		}
		window := calendar.Window(budget.Period, now)
		for j := range list {
			if list[j].Raises(window, now) {
				x.Value = min(x.Value, math.MaxInt64-list[j].Amount) + list[j].Amount
			}
		}
	}
}

// run follows the bucket until ctx ends. A bucket that is away is asked for again every second.
func (g *grants) run(ctx context.Context) error {
	return Follow(ctx, g.watch, func(err error) {
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			g.markReady() // what was known stays: a bucket that is lost comes back
			return
		}
		g.log.Warn("grants cannot be followed, known ones stay in force", "error", err)
	})
}

func (g *grants) watch(ctx context.Context) error {
	bucket, err := openBucket(ctx, g.js, event.GrantsBucket)
	if err != nil {
		return err
	}
	standing, complete := map[string]event.GrantInForce{}, false
	begun := true // what stands in the bucket is still coming
	return Watch(ctx, bucket, func(entry jetstream.KeyValueEntry) {
		switch {
		case entry == nil:
			begun = false
			g.replace(standing, complete)
			g.markReady()
		case entry.Key() == event.GrantsComplete:
			complete = true
		case begun:
			g.take(standing, entry)
		default:
			g.change(entry)
		}
	})
}

func (g *grants) markReady() {
	select {
	case <-g.ready:
	default:
		close(g.ready)
	}
}

// replace drops what is no longer in the bucket, unless the bucket is being filled anew and does not have everything yet.
func (g *grants) replace(standing map[string]event.GrantInForce, complete bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if complete {
		clear(g.known)
	}
	for key, grant := range standing {
		g.known[key] = grant
	}
	g.publishLocked()
}

func (g *grants) change(entry jetstream.KeyValueEntry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.take(g.known, entry)
	g.publishLocked()
}

// take reads one entry into the map; one that is deleted was taken back or has lapsed.
func (g *grants) take(into map[string]event.GrantInForce, entry jetstream.KeyValueEntry) {
	if !strings.HasPrefix(entry.Key(), event.GrantPrefix) {
		return
	}
	if entry.Operation() != jetstream.KeyValuePut {
		delete(into, entry.Key())
		return
	}
	var grant event.GrantInForce
	if err := json.Unmarshal(entry.Value(), &grant); err != nil || grant.Amount <= 0 {
		g.log.Error("grant cannot be read", "entry", entry.Key(), "error", err)
		return
	}
	into[entry.Key()] = grant
}

func (g *grants) publishLocked() {
	all := make(map[grantee][]event.GrantInForce)
	for _, grant := range g.known {
		key := grantee{grant.Limit, grant.Subject, grant.Unit, grant.Period}
		all[key] = append(all[key], grant)
	}
	g.inForce.Store(&all)
}
