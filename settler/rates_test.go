package settler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
)

func rateOf(tier ledger.Tier, algorithm ledger.Algorithm, unit ledger.Unit) lua.Rate {
	rate := lua.Rate{
		Rate:   ledger.Rate{Tier: tier, Limit: string(algorithm) + "-" + string(unit), Subject: "app:" + app, Algorithm: algorithm, Unit: unit},
		Amount: 100_000, Window: 24 * time.Hour,
	}
	if algorithm == ledger.AlgorithmTokenBucket {
		rate.Amount, rate.Burst = 1000, 1000
	}
	return rate
}

// reserveAt makes the reservation in Redis under the rates, as a gateway does, and returns what it would put on record.
func (w *world) reserveAt(r event.Reservation, rates []lua.Rate) event.Reservation {
	w.Helper()
	d, err := w.scripts.Reserve(w.Context(), &lua.ReserveCall{
		ID: r.ID, App: app, Generation: w.generation(), TTL: time.Until(r.Deadline), Need: r.Held, Counters: r.Counters, Rates: rates,
	})
	require.NoError(w, err)
	require.Equal(w, lua.StatusAllowed, d.Status)
	r.ReservedAt = d.Now
	for _, x := range rates {
		recorded := event.Rate{Rate: x.Rate, WindowMS: x.Window.Milliseconds()}
		if x.Burst > 0 {
			recorded.Amount, recorded.Burst = x.Amount, x.Burst
		}
		r.Rates = append(r.Rates, recorded)
	}
	return r
}

// generation is the one that marks must name now.
func (w *world) generation() string {
	bucket, err := w.js.KeyValue(w.Context(), event.ControlBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return "1" // no settler has run yet
	}
	require.NoError(w, err)
	entry, err := bucket.Get(w.Context(), event.GenerationKey)
	require.NoError(w, err)
	return string(entry.Value())
}

// figures are the units used of each rate; err while Redis cannot be judged by.
func (w *world) figures(rates []lua.Rate) (used []int64, err error) {
	shut := lua.Rate{Rate: ledger.Rate{Tier: ledger.TierApp, Limit: "shut", Subject: "app:" + app, Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitRequests}, Window: time.Second}
	d, err := w.scripts.Reserve(w.Context(), &lua.ReserveCall{
		ID: "figures", App: app, Generation: w.generation(), TTL: time.Minute, Need: ledger.Amounts{Requests: 1, Tokens: 1}, Rates: append([]lua.Rate{shut}, rates...),
	})
	if err != nil || d.Status != lua.StatusRefused {
		return nil, fmt.Errorf("status %d: %w", d.Status, err)
	}
	for _, r := range d.Rates[1:] {
		used = append(used, r.Used)
	}
	return used, nil
}

// An emptied Redis has back what rates were charged, also long ones, from the ledger; what is settled afterwards corrects it.
func TestRebuildChargesRates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	var rates []lua.Rate
	for _, tier := range []ledger.Tier{ledger.TierApp, ledger.TierProvider} {
		rates = append(rates,
			rateOf(tier, ledger.AlgorithmSlidingLog, ledger.UnitRequests), rateOf(tier, ledger.AlgorithmSlidingLog, ledger.UnitTokens),
			rateOf(tier, ledger.AlgorithmSlidingCounter, ledger.UnitTokens), rateOf(tier, ledger.AlgorithmFixedWindow, ledger.UnitTokens),
			rateOf(tier, ledger.AlgorithmTokenBucket, ledger.UnitRequests))
	}
	w.eventually(func() error { _, err := w.figures(rates); return err })

	var open event.Reservation
	for i := range 4 {
		r := w.reserveAt(newReservation(time.Hour), rates)
		w.publish(w.event(event.KindReserved, r))
		if i == 3 {
			open = r
			break
		}
		w.publish(w.event(event.KindUsed, r))
		w.awaitState(r.ID, "settled")
	}
	w.awaitState(open.ID, "pending")
	var before []int64
	w.eventually(func() (err error) {
		before, err = w.figures(rates)
		if err == nil && before[1] != 3*50+int64(open.Held.Tokens) {
			err = fmt.Errorf("the settlements have not reached Redis: %v", before)
		}
		return err
	})

	require.NoError(t, w.redis.FlushDB(t.Context()).Err())
	w.eventually(func() error {
		after, err := w.figures(rates)
		if err == nil {
			require.Equal(t, before, after)
		}
		return err
	})

	w.publish(w.event(event.KindUsed, open))
	w.awaitState(open.ID, "settled")
	w.eventually(func() error {
		after, err := w.figures(rates)
		if err == nil && (after[1] != 4*50 || after[6] != 4*50) {
			err = fmt.Errorf("not corrected: %v", after)
		}
		return err
	})
}
