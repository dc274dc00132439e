package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
)

// leases are the concurrency slots that this gateway's requests in flight have. One goroutine renews them and gives them back, in
// that order, so that a slot is never renewed after it was given back. A gateway that dies renews nothing, and its slots lapse.
type leases struct {
	scripts *lua.Scripts
	timeout time.Duration
	freed   func(limit, subject string) // told of each slot that was given back
	log     *slog.Logger

	mu    sync.Mutex // guards what follows
	live  map[string][]lua.Lease
	ended []lua.Lease
	wake  chan struct{}

	asked chan chan struct{} // who asks for a renewal has its channel closed when it is done
}

func newLeases(scripts *lua.Scripts, timeout time.Duration, log *slog.Logger) *leases {
	return &leases{scripts: scripts, timeout: timeout, log: log, live: map[string][]lua.Lease{}, wake: make(chan struct{}, 1), asked: make(chan chan struct{})}
}

// begin notes the slots that the reservation has taken.
func (l *leases) begin(app string, res *event.Reservation) {
	var taken []lua.Lease
	for _, rate := range res.Rates {
		if rate.Algorithm == ledger.AlgorithmConcurrency {
			taken = append(taken, lua.Lease{App: app, Rate: rate.Rate, ReservationID: res.ID})
		}
	}
	if len(taken) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[res.ID] = taken
}

// end gives back the slots of a reservation, soon. It may be called for any.
func (l *leases) end(reservation string) {
	l.mu.Lock()
	taken := l.live[reservation]
	delete(l.live, reservation)
	l.ended = append(l.ended, taken...)
	l.mu.Unlock()
	if len(taken) == 0 {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run serves until ctx ends. What is given back then is given back within one more timeout.
func (l *leases) run(ctx context.Context) error {
	ticker := time.NewTicker(lua.LeaseTTL / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			l.giveBack(context.WithoutCancel(ctx))
			return nil
		case <-l.wake:
			l.giveBack(ctx)
		case done := <-l.asked:
			l.renew(ctx)
			close(done)
		case <-ticker.C:
			l.renew(ctx)
		}
	}
}

// renewNow returns when every slot in use has been renewed as well as it can be, or ctx has ended. It needs run.
func (l *leases) renewNow(ctx context.Context) error {
	l.mu.Lock()
	none := len(l.live) == 0
	l.mu.Unlock()
	if none {
		return nil
	}
	done := make(chan struct{})
	select {
	case l.asked <- done:
	case <-ctx.Done():
		return fmt.Errorf("renew slots: %w", context.Cause(ctx))
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("renew slots: %w", context.Cause(ctx))
	}
}

func (l *leases) giveBack(ctx context.Context) {
	l.mu.Lock()
	ended := l.ended
	l.ended = nil
	l.mu.Unlock()
	if len(ended) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.timeout, errors.New("give slots back: Redis did not answer in time"))
	defer cancel()
	if err := l.scripts.ReleaseLeases(ctx, ended); err != nil {
		// The settlement gives them back, too, and else they lapse.
		l.log.Warn("slots not given back", "slots", len(ended), "error", err)
		return
	}
	for i := range ended {
		l.freed(ended[i].Rate.Limit, ended[i].Rate.Subject)
	}
}

func (l *leases) renew(ctx context.Context) {
	l.mu.Lock()
	live := slices.Concat(slices.Collect(maps.Values(l.live))...)
	l.mu.Unlock()
	if len(live) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, max(l.timeout, time.Second), errors.New("renew slots: Redis did not answer in time"))
	defer cancel()
	if err := l.scripts.RenewLeases(ctx, live); err != nil {
		l.log.Warn("slots of requests in flight not renewed", "slots", len(live), "error", err)
	}
}
