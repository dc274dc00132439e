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
	var lag time.Duration
	away := errors.New("NATS is away")
	sweeper := sweep.New(w.store, w.scripts, w.js, func(context.Context) (time.Duration, error) { return lag, away },
		0, slog.New(slog.DiscardHandler), func() time.Time { return r.Deadline.Add(time.Minute) })

	require.ErrorIs(t, sweeper.Once(t.Context()), away)
	w.awaitRedis(0, 1000)
	away, lag = nil, 2*time.Minute
	require.NoError(t, sweeper.Once(t.Context()))
	w.awaitRedis(0, 1000)
	lag = 30 * time.Second
	require.NoError(t, sweeper.Once(t.Context()))
	w.awaitRedis(0, 0)
}
