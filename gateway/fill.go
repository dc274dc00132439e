package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

const (
	// fillPause is how soon a policy that waits asks again where no settler listens.
	fillPause = 50 * time.Millisecond
	// fillRetry is how soon settlers are asked again afterwards, fillTimeout how long they may take then.
	fillRetry   = time.Second
	fillTimeout = 5 * time.Second
	// fillRenew is how often settlers are told that the policy still stands: far more often than they forget it.
	fillRenew = event.FillFor / 48
	// fillChunk keeps a request well below what NATS carries.
	fillChunk = 64
)

// filler has the settlers fill a policy's new budgets from the ledger, so that they do not begin at zero inside a running
// window. A policy that is not answered for in time is taken all the same: until the answer its new budgets have seen only what
// was admitted under it. It is safe for concurrent use.
type filler struct {
	nc       *nats.Conn
	degraded func(bool) // told whether budgets in force are not filled
	log      *slog.Logger

	mu      sync.Mutex
	wanted  *event.Fill      // of the policy in force
	filled  map[fillKey]bool // what was answered for
	changed chan struct{}    // holds one value when wanted has something that is not filled
}

// fillKey is everything that makes a family one.
type fillKey struct {
	timezone  string
	weekStart time.Weekday
	event.FillFamily
}

func newFiller(nc *nats.Conn, degraded func(bool), log *slog.Logger) *filler {
	return &filler{nc: nc, degraded: degraded, log: log, wanted: &event.Fill{}, filled: map[fillKey]bool{}, changed: make(chan struct{}, 1)}
}

// before has filled what the policy is about to be judged by, as far as that takes no longer than the patience.
func (f *filler) before(ctx context.Context, p *policy.Policy, patience time.Duration) {
	missing := f.missing(p.Fill())
	if len(missing.Families) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("fill: no settler has answered in time"))
	defer cancel()
	err := f.ask(ctx, missing)
	for errors.Is(err, nats.ErrNoResponders) && pause(ctx, fillPause) {
		err = f.ask(ctx, missing)
	}
	if err != nil {
		f.log.Warn("new budgets count from zero until a settler has filled them", "revision", p.Revision, "families", len(missing.Families), "error", err)
	}
}

// follow has the policy, which is in force now, filled where it is not, and keeps it so.
func (f *filler) follow(p *policy.Policy) {
	fill := p.Fill()
	f.mu.Lock()
	f.wanted = fill
	kept := map[fillKey]bool{}
	for _, family := range fill.Families {
		if key := keyOfFill(fill, family); f.filled[key] {
			kept[key] = true
		}
	}
	f.filled = kept
	f.mu.Unlock()
	f.tell()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// run asks for what is missing until it is answered for, and now and then for everything, until ctx ends.
func (f *filler) run(ctx context.Context) error {
	renew := time.NewTicker(fillRenew)
	defer renew.Stop()
	warned := false
	for {
		missing := f.missing(f.inForce())
		if len(missing.Families) == 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-f.changed:
			case <-renew.C:
				f.mu.Lock()
				f.filled = map[fillKey]bool{}
				f.mu.Unlock()
			}
			continue
		}
		err := f.askFor(ctx, missing)
		switch {
		case err == nil:
			f.log.Info("budgets are filled", "families", len(missing.Families))
			f.tell()
			warned = false
		case !warned && ctx.Err() == nil:
			f.log.Warn("budgets are not filled, asking again", "families", len(missing.Families), "error", err)
			warned = true
		}
		if err != nil && !pause(ctx, fillRetry) {
			return nil
		}
	}
}

// inForce is what the policy in force wants filled.
func (f *filler) inForce() *event.Fill {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wanted
}

// tell says whether budgets in force are not filled, by the policy that is in force now: it may be another than was asked for.
func (f *filler) tell() { f.degraded(len(f.missing(f.inForce()).Families) > 0) }

func (f *filler) askFor(ctx context.Context, fill *event.Fill) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fillTimeout, errors.New("fill: no settler has answered in time"))
	defer cancel()
	return f.ask(ctx, fill)
}

// ask requests the families, some at a time, and notes what is answered for.
func (f *filler) ask(ctx context.Context, fill *event.Fill) error {
	part := *fill
	for rest := fill.Families; len(rest) > 0; {
		part.Families = rest[:min(fillChunk, len(rest))]
		rest = rest[len(part.Families):]
		data, err := part.Encode()
		if err != nil {
			return err
		}
		answer, err := f.nc.RequestWithContext(ctx, event.FillSubject, data)
		if err != nil {
			return fmt.Errorf("ask for budgets to be filled: %w", errors.Join(err, context.Cause(ctx)))
		}
		if string(answer.Data) != event.FillDone {
			return fmt.Errorf("ask for budgets to be filled: %s", answer.Data)
		}
		f.mu.Lock()
		for _, family := range part.Families {
			f.filled[keyOfFill(&part, family)] = true
		}
		f.mu.Unlock()
	}
	return nil
}

// missing is what of the request has not been answered for.
func (f *filler) missing(fill *event.Fill) *event.Fill {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := &event.Fill{Timezone: fill.Timezone, WeekStart: fill.WeekStart}
	for _, family := range fill.Families {
		if !f.filled[keyOfFill(fill, family)] {
			left.Families = append(left.Families, family)
		}
	}
	return left
}

func keyOfFill(fill *event.Fill, family event.FillFamily) fillKey {
	return fillKey{fill.Timezone, fill.WeekStart, family}
}

// pause reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
