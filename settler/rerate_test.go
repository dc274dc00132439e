package settler_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/ledger/price"
	"tollgate/settler/rerate"
)

// bookOf prices an input token of model m, an output token costs ten nano-dollars.
func bookOf(t testing.TB, input ledger.NanoUSD) *price.Book {
	t.Helper()
	const million = 1_000_000
	book, err := price.NewBook(price.Row{Provider: "openai", Model: "m", Prices: price.Prices{
		ledger.ClassInput: price.Flat(input * million), ledger.ClassOutput: price.Flat(10 * million),
	}})
	require.NoError(t, err)
	return book
}

// request settles one request of 40 input and 10 output tokens at 500 nano-dollars, as the first book has it.
func (w *world) request(change func(*event.Event)) event.Reservation {
	w.Helper()
	r := newReservation(time.Hour)
	r.PriceRow = "first"
	reserved, used := w.event(event.KindReserved, r), w.event(event.KindUsed, r)
	if change != nil {
		change(reserved)
		change(used)
	}
	w.publish(reserved, used)
	return r
}

func (w *world) rerater(book *price.Book, stream jetstream.JetStream) *rerate.Rerater {
	return &rerate.Rerater{Store: w.store, Book: book, Examples: 3, Stream: stream, Certain: rerate.Settled(w.nc, patience)}
}

// dying is a stream whose caller dies after some more publications.
type dying struct {
	jetstream.JetStream
	left int
}

var errKilled = errors.New("killed")

func (d *dying) PublishAsync(subject string, data []byte, options ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if d.left--; d.left < 0 {
		return nil, errKilled
	}
	return d.JetStream.PublishAsync(subject, data, options...)
}

// requireCharged wants every account, budget, view and Redis to say that so many requests cost so much.
func (w *world) requireCharged(requests int, each int64) {
	w.Helper()
	total := int64(requests) * each
	w.awaitRedis(total, 0)
	w.awaitSettled()
	for query, want := range map[string]string{
		`SELECT count(*)::text FROM reservations WHERE state = 'settled' AND charged_nanousd = $1`:                                       strconv.Itoa(requests),
		`SELECT (sum(cost_usd) * 1000000000)::bigint::text FROM finance.spend_daily WHERE $1 > 0`:                                        strconv.FormatInt(total, 10),
		`SELECT ((spend_usd + adjustments_usd) * 1000000000)::bigint::text FROM finance.statement('checkout', now()::date) WHERE $1 > 0`: strconv.FormatInt(total, 10),
		`SELECT (500 * count(*) FILTER (WHERE state = 'settled') + (SELECT coalesce(sum(difference_usd), 0) * 1000000000 FROM finance.adjustments))::bigint::text
			FROM finance.requests WHERE $1 > 0`: strconv.FormatInt(total, 10),
	} {
		got, err := w.scan(query, each)
		require.NoError(w, err)
		require.Equal(w, want, got, query)
	}
	w.requireVerified("")
}

// requireRebuilt wants the events alone to give the same ledger.
func (w *world) requireRebuilt() {
	w.Helper()
	differences, _, err := w.store.Rebuild(context.Background(), pg.RebuildOptions{Schema: "again", Examples: 3})
	require.NoError(w, err)
	for _, d := range differences {
		require.Zero(w, d.Differ, "%s: %v", d.Table, d.Examples)
	}
}

// TestRerate prices what was settled by one book anew by another: beside settlement, with runs that die halfway and runs side by
// side, every account says at the end what pricing each request by the new book gives, and doing it again does nothing.
func TestRerate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	w.settle()
	const before, during = 30, 20
	for range before {
		w.request(nil)
	}
	w.requireCharged(before, 500)

	report, err := w.rerater(bookOf(t, 20), nil).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []rerate.Model{{Provider: "openai", Model: "m", Requests: before, Before: before * 500, After: before * 900}}, report.Models)
	require.Len(t, report.Largest, 3)
	require.EqualValues(t, 900, report.Largest[0].After)
	w.requireCharged(before, 500) // nothing was written

	_, err = w.rerater(bookOf(t, 20), &dying{w.js, 7}).Run(t.Context())
	require.ErrorIs(t, err, errKilled)
	runs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := w.rerater(bookOf(t, 20), w.js).Run(t.Context())
			runs <- err
		}()
	}
	for range during {
		w.request(nil)
	}
	for range 2 {
		if err := <-runs; !errors.Is(err, pg.ErrRerating) {
			require.NoError(t, err)
		}
	}
	require.NoError(t, rerate.Settled(w.nc, patience)(t.Context()))
	report, err = w.rerater(bookOf(t, 20), w.js).Run(t.Context()) // what was settled beside the runs
	require.NoError(t, err)
	require.LessOrEqual(t, report.Posted, int64(during))
	w.requireCharged(before+during, 900)
	report, err = w.rerater(bookOf(t, 20), w.js).Run(t.Context())
	require.NoError(t, err)
	require.Empty(t, report.Models)
	require.Zero(t, report.Posted)
	require.EqualValues(t, before+during, report.Looked)

	for _, book := range []struct{ input, each int64 }{{5, 300}, {0, 100}, {10, 500}} { // from the last price, and back to the first
		report, err = w.rerater(bookOf(t, ledger.NanoUSD(book.input)), w.js).Run(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, before+during, report.Posted)
		w.requireCharged(before+during, book.each)
	}
	require.NoError(t, w.redis.FlushDB(t.Context()).Err())
	w.requireCharged(before+during, 500)
	w.requireRebuilt()
}

// TestRerateLeavesAlone what nobody can price, what expired, what is free, and what the filter leaves out.
func TestRerateLeavesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	of := func(provider, model string) func(*event.Event) {
		return func(e *event.Event) { e.Reservation.Provider, e.Reservation.Model = provider, model }
	}
	w.request(of("openai", "unknown"))
	w.request(of("other", "m"))
	w.request(func(e *event.Event) { // an image, which the book has no price of
		if e.Outcome != nil {
			e.Outcome.Usage.OutputImage = 7
		}
	})
	w.request(func(e *event.Event) { e.Reservation.PriceRow = "" }) // billed by nobody
	w.request(func(e *event.Event) {                                // another model, which is charged as before, had tried first
		if e.Outcome != nil {
			e.Reservation.User = `"others": none`
			e.Outcome.Others = []ledger.ModelUsage{{Model: "m", Usage: ledger.Usage{Input: 5, Output: 1}}}
			e.Outcome.Cost, e.Outcome.Components[0].Cost = 1010, 1010
		}
	})
	w.request(func(e *event.Event) { // admitted without a price
		e.Reservation.PriceRow, e.Reservation.Flags = "", []string{"unpriced"}
		if e.Outcome != nil {
			told := ledger.NanoUSD(100_000)
			e.Outcome.Cost, e.Outcome.Components, e.Outcome.ProviderCost = 0, nil, &told
		}
	})
	expired := newReservation(0)
	w.publish(w.event(event.KindReserved, expired))
	w.awaitState(expired.ID, "expired")
	require.NoError(t, rerate.Settled(w.nc, patience)(t.Context()))

	r := w.rerater(bookOf(t, 20), w.js)
	r.Filter = pg.PricedFilter{From: time.Now().Add(time.Hour)}
	report, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Zero(t, report.Looked)

	r = w.rerater(bookOf(t, 20), w.js)
	r.Filter = pg.PricedFilter{Provider: "openai", From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}
	report, err = r.Run(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, report.Looked)
	require.EqualValues(t, 1, report.Posted)
	require.EqualValues(t, 1, report.Unconfirmed)
	require.EqualValues(t, 1000, report.UnconfirmedCharge)
	require.Len(t, report.Models, 2)
	require.Equal(t, rerate.Model{Provider: "openai", Model: "m", Requests: 1, After: 900, Unpriced: 1, Kept: 500, Why: report.Models[0].Why}, report.Models[0])
	require.Contains(t, report.Models[0].Why, "output_image: no price")
	require.EqualValues(t, 500, report.Models[1].Kept)
	w.awaitRedis(500+500+500+500+900+1000+1010, 0)
	w.requireVerified("")
	row, err := w.scan(`SELECT price_row || ' ' || adjustments || ' ' || array_to_string(flags, ' ') || ' ' || producer FROM reservations WHERE adjustments > 0`)
	require.NoError(t, err)
	require.Regexp(t, `^openai/m@start#[0-9a-f]+ 1 unpriced cost_differs gw-1$`, row)
}
