package settler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/lua"
	"tollgate/settler"
)

var keyDay = event.FillFamily{Family: "key", Period: ledger.PeriodDay}

// fill asks for families as a gateway does.
func (w *world) fill(ctx context.Context, families ...event.FillFamily) error {
	request := event.Fill{Timezone: "UTC", WeekStart: time.Monday, Families: families}
	data, err := request.Encode()
	if err != nil {
		return err
	}
	answer, err := w.nc.RequestWithContext(ctx, event.FillSubject, data)
	for errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil { // a settler that has just begun
		time.Sleep(10 * time.Millisecond)
		answer, err = w.nc.RequestWithContext(ctx, event.FillSubject, data)
	}
	if err != nil {
		return err
	}
	if string(answer.Data) != event.FillDone {
		return errors.New(string(answer.Data))
	}
	return nil
}

// usedOf reads what Redis has for counters, by asking for more than there could ever be.
func (w *world) usedOf(counters ...ledger.Counter) []int64 {
	w.Helper()
	used, err := w.tryUsedOf(counters...)
	require.NoError(w, err)
	return used
}

func (w *world) tryUsedOf(counters ...ledger.Counter) (used []int64, err error) {
	call := &lua.ReserveCall{
		ID: event.NewReservationID(time.Now()), App: app, Generation: w.generation(), TTL: time.Minute, Need: ledger.Amounts{NanoUSD: 1}, Counters: counters,
	}
	for i := range counters {
		call.Budgets = append(call.Budgets, lua.Budget{Counter: i, Unit: ledger.UnitUSD})
	}
	d, err := w.scripts.Reserve(context.Background(), call)
	if err == nil && d.Status != lua.StatusRefused {
		err = fmt.Errorf("probe: status %d", d.Status)
	}
	for _, b := range d.Budgets {
		used = append(used, b.Used)
	}
	return used, err
}

func keyCounter(period ledger.Period) ledger.Counter {
	return ledger.Counter{
		Tier: ledger.TierKey, Family: "key", Subject: "key:k_1", Period: period, Window: ledger.Calendar{}.Window(period, time.Now()),
	}
}

func modelCounter() ledger.Counter {
	return ledger.Counter{
		Tier: ledger.TierProvider, Family: "provider[model]", Subject: "provider:openai[model=m]", Period: ledger.PeriodMonth,
		Window: ledger.Calendar{}.Window(ledger.PeriodMonth, time.Now()),
	}
}

// TestFillBeforeALimitBinds: what was used without the limit stands in Redis when the answer comes, what was in flight then
// follows, and both count once.
func TestFillBeforeALimitBinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	before, inFlight := newReservation(time.Hour), newReservation(time.Hour)
	w.reserve(before)
	w.reserve(inFlight)
	w.publish(w.event(event.KindReserved, before), w.event(event.KindReserved, inFlight), w.event(event.KindUsed, before))
	w.awaitState(before.ID, "settled")
	w.awaitRedis(500, 1000)
	own, shared := keyCounter(ledger.PeriodDay), modelCounter()
	require.Equal(t, []int64{0, 0}, w.usedOf(own, shared))

	families := []event.FillFamily{keyDay, {Family: "provider[model]", Period: ledger.PeriodMonth}}
	require.NoError(t, w.fill(t.Context(), families...))
	require.Equal(t, []int64{500, 500}, w.usedOf(own, shared))
	require.NoError(t, w.fill(t.Context(), families...), "known by now")

	w.publish(w.event(event.KindUsed, inFlight))
	w.awaitRedis(1000, 0)
	require.Equal(t, []int64{1000, 1000}, w.usedOf(own, shared))
	require.Zero(t, w.metric("tollgate_settler_negative_held_total"))
	w.requireVerified("")
	require.Error(t, w.fill(t.Context(), event.FillFamily{Family: "app[ip]", Period: ledger.PeriodDay}))
}

// TestFillByThreeSettlersCountsOnce asks three settlers at once, many times, while they settle.
func TestFillByThreeSettlersCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	for range 2 {
		w.joinSettler()
	}
	w.settle()
	var list []event.Reservation
	for range 60 {
		r := newReservation(time.Hour)
		w.reserve(r)
		w.publish(w.event(event.KindReserved, r))
		list = append(list, r)
	}
	var group errgroup.Group
	for range 9 {
		group.Go(func() error {
			for _, f := range []event.FillFamily{keyDay, {Family: "key", Period: ledger.PeriodTotal}} {
				if err := w.fill(t.Context(), f); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, r := range list {
		w.publish(w.event(event.KindUsed, r))
	}
	require.NoError(t, group.Wait())
	w.awaitRedis(60*500, 0)
	require.Equal(t, []int64{60 * 500, 60 * 500}, w.usedOf(keyCounter(ledger.PeriodDay), keyCounter(ledger.PeriodTotal)))
	w.requireVerified("")
}

// joinSettler runs one more settler, with connections of its own, until the end of the test.
func (w *world) joinSettler() {
	w.Helper()
	store, err := pg.Open(w.Context(), w.databaseURL, 12)
	require.NoError(w, err)
	w.Cleanup(store.Close)
	s, err := settler.New(testConfig(), settler.Deps{
		Store: store, Scripts: w.settlers, NATS: w.nc, Log: slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Registry: prometheus.NewRegistry(),
	})
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		require.NoError(w, <-done)
	})
	w.eventually(s.Ready)
}

// TestFillWithoutRedis: no answer is given before Redis has it, and nothing is added twice by asking again.
func TestFillWithoutRedis(t *testing.T) {
	t.Parallel()
	redis, err := url.Parse(stack.Redis(t))
	require.NoError(t, err)
	link := stack.Proxy(t, redis.Host)
	redis.Host = link.Addr
	w := newWorld(t, parts{redisURL: redis.String()})
	w.settle()
	r := newReservation(time.Hour)
	w.reserve(r)
	w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
	w.awaitRedis(500, 0)
	link.Refuse(true)
	link.Drop()
	require.Error(t, w.fill(t.Context(), keyDay))
	link.Refuse(false)
	w.eventually(func() error { return w.fill(t.Context(), keyDay) })
	w.eventually(func() error {
		used, err := w.tryUsedOf(keyCounter(ledger.PeriodDay)) // over a connection that may be of before
		if err == nil && used[0] != 500 {
			err = fmt.Errorf("used %d", used[0])
		}
		return err
	})
	w.requireVerified("")
}
