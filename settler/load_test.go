package settler_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
)

// TestRedisEmptiedUnderLoad runs requests while Redis is emptied again and again, beside two settlers: at rest Redis and
// Postgres must agree, and nothing may be held.
func TestRedisEmptiedUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	w.settle()
	const clients, requests = 4, 60
	var admitted atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	for range clients {
		group.Go(func() error {
			for range requests {
				r := newReservation(time.Hour)
				if err := w.admit(ctx, r); err != nil {
					return err
				}
				admitted.Add(1)
				for _, kind := range []event.Kind{event.KindReserved, event.KindUsed} {
					if err := w.record(ctx, kind, r); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	ticker := time.NewTicker(400 * time.Millisecond)
	defer ticker.Stop()
	for running, before := true, int64(0); running; {
		select {
		case err := <-done:
			require.NoError(t, err)
			running = false
		case <-ticker.C:
			// A rebuild may take longer than that: nobody would ever be admitted.
			if n := admitted.Load(); n > before {
				before = n
				require.NoError(t, w.redis.FlushDB(t.Context()).Err())
			}
		}
	}
	w.awaitRedis(clients*requests*500, 0)
	w.eventually(func() error {
		n, err := w.scan(`SELECT count(*)::text FROM events`)
		if err == nil && n != strconv.Itoa(2*clients*requests) {
			err = fmt.Errorf("%s events are settled", n)
		}
		return err
	})
	w.requireVerified("")
	require.Zero(t, w.metric("tollgate_settler_negative_held_total"))
}

// admit reserves, waiting while the counters are being rebuilt.
func (w *world) admit(ctx context.Context, r event.Reservation) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		d, err := w.scripts.Reserve(ctx, &lua.ReserveCall{
			ID: r.ID, App: app, Generation: w.generation(), TTL: time.Minute, Need: r.Held, Counters: r.Counters,
			Budgets: []lua.Budget{{Counter: 1, Unit: ledger.UnitUSD, Limit: 1 << 60}},
		})
		if err != nil || d.Status == lua.StatusAllowed {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
