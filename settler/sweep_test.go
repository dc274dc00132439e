package settler_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/lua"
	"tollgate/settler/sweep"
)

// mark lets gateways judge by what Redis holds, as after a rebuild.
func (w *world) mark() {
	w.Helper()
	for _, slot := range []string{lua.SharedSlot, app} {
		require.NoError(w, w.scripts.Rebuild(w.Context(), lua.RebuildCall{Slot: slot, Generation: "1"}))
	}
}

// sweeper ends what was overdue, or will be within ahead.
func (w *world) sweeper(certain sweep.Certain, ahead time.Duration) *sweep.Sweeper {
	return sweep.New(w.store, w.scripts, w.js, certain, -ahead, slog.New(slog.DiscardHandler), time.Now)
}

// TestUnknownIsGivenBackOnlyWhenNothingIsOnItsWay: an amount that the ledger does not know may belong to a request whose event
// waits, on the stream or behind it.
func TestUnknownIsGivenBackOnlyWhenNothingIsOnItsWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.mark()
	r := newReservation(time.Millisecond)
	w.reserve(r)
	away := errors.New("a gateway has not passed the barrier")
	sweeper := w.sweeper(func(context.Context) error { return away }, time.Minute)

	require.ErrorIs(t, sweeper.Once(t.Context()), away)
	w.awaitRedis(0, 1000)
	away = nil
	require.NoError(t, sweeper.Once(t.Context()))
	w.awaitRedis(0, 0)
}

// TestNothingIsGivenBackBeforeItCountsAsUsed: between a settlement's commit and its write-back, which another settler may be doing,
// Redis has the amount only as held. Given back then, it would be admitted once more.
func TestNothingIsGivenBackBeforeItCountsAsUsed(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sweep.Sweeper, *pg.Session) error{
		"swept":     func(s *sweep.Sweeper, _ *pg.Session) error { return s.Once(t.Context()) },
		"refreshed": func(s *sweep.Sweeper, session *pg.Session) error { return s.EndFinished(t.Context(), session, app) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, parts{})
			w.mark()
			r := newReservation(time.Millisecond)
			w.reserve(r)
			session, err := w.store.Settling(t.Context())
			require.NoError(t, err)
			defer session.Close(t.Context())
			var batch []pg.Received
			for _, e := range []*event.Event{w.event(event.KindReserved, r), w.event(event.KindUsed, r)} {
				body, err := e.Encode()
				require.NoError(t, err)
				batch = append(batch, pg.Received{Event: e, Body: body, Subject: e.Subject(), StreamSeq: e.Sequence})
			}
			_, err = session.Post(t.Context(), batch)
			require.NoError(t, err)

			require.NoError(t, end(w.sweeper(func(context.Context) error { return nil }, time.Minute), session))

			want := lua.BudgetState{Used: 500}
			platform, own, err := w.amounts()
			require.NoError(t, err)
			require.Equal(t, want, own)
			require.Equal(t, want, platform)
		})
	}
}

// TestNothingIsAdmittedTwice sweeps without a pause while reservations are overdue before they are settled, and settlers are late to
// tell Redis what they committed.
func TestNothingIsAdmittedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	slow := w.connect(patience)
	slow.AddHook(late{})
	w.settlers = lua.New(slow)
	w.settle()
	w.settle()
	const budget = 400
	var recording sync.RWMutex // held for reading from the reserve until its event is on the stream
	sweeper := w.sweeper(func(ctx context.Context) error {
		recording.Lock()
		end := w.end()
		recording.Unlock()
		for w.settledThrough(end) != nil {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return nil
	}, 0)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sweeping, ends errgroup.Group
	sweeping.Go(func() error {
		for ctx.Err() == nil {
			if err := sweeper.Once(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})

	var admitted atomic.Int64
	request := func() (used bool, err error) {
		recording.RLock()
		defer recording.RUnlock()
		r := newReservation(time.Millisecond)
		d, err := w.scripts.Reserve(ctx, &lua.ReserveCall{
			ID: r.ID, App: app, Generation: w.generation(), TTL: time.Millisecond, Need: r.Held, Counters: r.Counters,
			Budgets: []lua.Budget{{Counter: 1, Unit: ledger.UnitRequests, Limit: budget}},
		})
		if err != nil || d.Status != lua.StatusAllowed {
			return err == nil && d.Status == lua.StatusRefused && d.Budgets[0].Held == 0, err
		}
		admitted.Add(1)
		ends.Go(func() error {
			time.Sleep(rand.N(20 * time.Millisecond))
			return w.record(ctx, event.KindUsed, r)
		})
		return false, w.record(ctx, event.KindReserved, r)
	}
	var clients errgroup.Group
	for range 8 {
		clients.Go(func() error {
			for {
				if used, err := request(); used || err != nil {
					return err
				}
			}
		})
	}
	require.NoError(t, clients.Wait())
	require.NoError(t, ends.Wait())
	stop()
	require.NoError(t, sweeping.Wait())
	require.EqualValues(t, budget, admitted.Load())
	w.awaitRedis(budget*500, 0)
	w.requireVerified("")
}

// late is a Redis that is slow to be told anything.
type late struct{}

func (late) DialHook(next redis.DialHook) redis.DialHook { return next }

func (late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(rand.N(50 * time.Millisecond))
		return next(ctx, cmd)
	}
}

func (late) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
