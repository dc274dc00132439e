package settler_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
	"tollgate/settler"
)

// TestRebuildByAClockThatIsAhead: a window that is over by the settler's clock is still judged by while it is not by Redis's, and a
// counter of it that is missing would read as unused.
func TestRebuildByAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	stop := w.settle()
	r := newReservation(time.Hour)
	r.Counters = counters()[1:]
	now := time.Now().UTC().Truncate(time.Second)
	end := now.Add(time.Hour)
	r.Counters[0].Period, r.Counters[0].Window = ledger.PeriodDay, ledger.Window{Start: now.Add(-time.Hour), End: end}
	w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
	w.awaitState(r.ID, "settled")
	w.awaitSettled()
	stop()
	require.NoError(t, w.redis.FlushDB(t.Context()).Err())

	s, err := settler.New(testConfig(), settler.Deps{
		Store: w.store, Scripts: w.settlers, NATS: w.nc, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Now: func() time.Time { return end.Add(time.Second + time.Since(now)/20) }, // not far ahead, however long this takes
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	w.askRebuild(lua.SharedSlot, app)
	var d lua.Decision
	w.eventually(func() (err error) {
		d, err = w.scripts.Reserve(t.Context(), &lua.ReserveCall{
			ID: event.NewReservationID(time.Now()), App: app, Generation: w.generation(), TTL: time.Minute, Need: r.Held, Counters: r.Counters,
			Budgets: []lua.Budget{{Counter: 0, Unit: ledger.UnitUSD, Limit: 0}},
		})
		if err == nil && d.Status != lua.StatusRefused {
			err = fmt.Errorf("reserve: status %d", d.Status)
		}
		return err
	})
	require.EqualValues(t, 500, d.Budgets[0].Used)
}
