package settler_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/lua"
	"tollgate/settler/rebuild"
)

// TestSettledDuringARebuildThatLostItsLock: a rebuild that is cut off from Postgres has read its rows and does not keep settlements out
// any more. What they commit finds no mark in Redis, and must not be missing beside the one that comes.
func TestSettledDuringARebuildThatLostItsLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	r := newReservation(time.Hour)
	client := w.connect(patience)
	once := sync.OnceFunc(func() { w.settleWithoutLock(r) })
	client.AddHook(onRebuilding{"{shared}:tg1:rebuilding", once}) // which is written last
	rebuilder := w.rebuilder(lua.New(client))
	w.eventually(func() error { return rebuilder.Slot(t.Context(), lua.SharedSlot) })
	want := lua.BudgetState{Used: 500}
	platform, own, err := w.amounts()
	require.NoError(t, err)
	require.Equal(t, want, own)
	require.Equal(t, want, platform)
}

// rebuilder is one of a settler that does nothing else.
func (w *world) rebuilder(scripts *lua.Scripts) *rebuild.Rebuilder {
	w.Helper()
	generations := rebuild.NewGenerations(w.js, 1, time.Now)
	require.NoError(w, generations.Ensure(w.Context()))
	barrier := rebuild.NewBarrier(w.nc, w.js, 1, 0, time.Now)
	return rebuild.New(rebuild.Parts{
		Store: w.store, Scripts: scripts, Generations: generations, Barrier: barrier, Settled: func(context.Context) error { return nil },
		Refresh: func(string) {}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
}

// settleWithoutLock ends the connection of whoever excludes settlements, and has another settler settle the reservation.
func (w *world) settleWithoutLock(r event.Reservation) {
	_, err := w.scan(`
SELECT bool_and(pg_terminate_backend(pid))::text FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	require.NoError(w, err)
	session, err := w.store.Settling(w.Context())
	require.NoError(w, err)
	defer session.Close(w.Context())
	var batch []pg.Received
	for _, e := range []*event.Event{w.event(event.KindReserved, r), w.event(event.KindUsed, r)} {
		body, err := e.Encode()
		require.NoError(w, err)
		batch = append(batch, pg.Received{Event: e, Body: body, Subject: e.Subject(), StreamSeq: e.Sequence})
	}
	result, err := session.Post(w.Context(), batch)
	require.NoError(w, err)
	for _, back := range result.WriteBacks {
		told, err := w.scripts.Settle(w.Context(), back.App, back.Counters, nil, nil)
		require.NoError(w, err)
		require.False(w, told.Applied)
	}
}

// onRebuilding calls do before the slot begins to be written.
type onRebuilding struct {
	key string
	do  func()
}

func (h onRebuilding) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h onRebuilding) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h onRebuilding) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "set" && cmd.Args()[1] == h.key {
				h.do()
			}
		}
		return next(ctx, cmds)
	}
}
