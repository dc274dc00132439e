package settler_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/lua"
	"tollgate/settler/sweep"
)

// TestUnknownIsGivenBackOnlyWhenNothingIsOnItsWay: an amount that the ledger does not know may belong to a request whose event
// waits, on the stream or behind it.
func TestUnknownIsGivenBackOnlyWhenNothingIsOnItsWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	for _, slot := range []string{lua.SharedSlot, app} {
		require.NoError(t, w.scripts.Rebuild(t.Context(), lua.RebuildCall{Slot: slot, Generation: "1"}))
	}
	r := newReservation(time.Millisecond)
	w.reserve(r)
	away := errors.New("a gateway has not passed the barrier")
	sweeper := sweep.New(w.store, w.scripts, w.js, func(context.Context) error { return away }, 0, slog.New(slog.DiscardHandler),
		func() time.Time { return r.Deadline.Add(time.Minute) })

	require.ErrorIs(t, sweeper.Once(t.Context()), away)
	w.awaitRedis(0, 1000)
	away = nil
	require.NoError(t, sweeper.Once(t.Context()))
	w.awaitRedis(0, 0)
}
