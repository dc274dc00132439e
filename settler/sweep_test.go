package settler_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

func (w *world) sweeper(certain sweep.Certain) *sweep.Sweeper {
	return sweep.New(w.store, w.scripts, w.js, certain, 0, slog.New(slog.DiscardHandler), func() time.Time { return time.Now().Add(time.Minute) })
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
	sweeper := w.sweeper(func(context.Context) error { return away })

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

			require.NoError(t, end(w.sweeper(func(context.Context) error { return nil }), session))

			want := lua.BudgetState{Used: 500}
			platform, own, err := w.amounts()
			require.NoError(t, err)
			require.Equal(t, want, own)
			require.Equal(t, want, platform)
		})
	}
}
