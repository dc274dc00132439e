package settler_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
)

// What a settler had taken when it was killed goes to another one after AckWait, also when it had taken all that may be out at
// once. Until then it is unsettled, and the lag says so, though nothing waits to be delivered.
func TestKilledSettlersMessagesComeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	const requests = 5
	config := testConfig()
	config.AckWait, config.MaxAckPending = 15*time.Second, 2*requests // longer than any process stands still
	stop := w.settleWith(config)
	stop()
	var ids []string
	publish := func() {
		for range requests {
			r := newReservation(time.Hour)
			ids = append(ids, r.ID)
			w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
		}
	}
	publish()
	consumer, err := w.js.Consumer(t.Context(), event.Stream, "settler")
	require.NoError(t, err)
	fetched, err := consumer.Fetch(2*requests, jetstream.FetchMaxWait(patience))
	require.NoError(t, err)
	var taken []jetstream.Msg
	for m := range fetched.Messages() {
		taken = append(taken, m)
	}
	require.Len(t, taken, 2*requests)

	w.settleWith(config)
	var killed time.Time
	w.eventually(func() error {
		killed = time.Now()
		for _, m := range taken { // alive until the lag was seen
			if err := m.InProgress(); err != nil {
				return err
			}
		}
		if w.metric("tollgate_settlement_lag_seconds") == 0 {
			return errors.New("no lag")
		}
		return nil
	})
	require.Zero(t, w.consumer().NumPending)
	publish() // cannot be delivered before the others are settled
	for _, id := range ids {
		w.awaitState(id, "settled")
	}
	later, err := w.scan(`SELECT bool_and(recorded_at >= $1)::text FROM events`, killed.Add(config.AckWait))
	require.NoError(t, err)
	require.Equal(t, "true", later, "nobody takes what another may still be settling")
	w.requireVerified("")
}

// While Postgres refuses, messages go back and come again a second later at the earliest, and nothing is parked for being late.
func TestRefusedBatchesComeAgainSlowly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	const requests = 150
	_, err := w.scan(`ALTER TABLE events RENAME TO events_away`)
	require.ErrorIs(t, err, pgx.ErrNoRows)
	refusing := time.Now()
	for range requests {
		r := newReservation(time.Hour)
		w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
	}
	var deliveries uint64
	w.eventually(func() error {
		if deliveries = w.consumer().Delivered.Consumer; deliveries < 3*2*requests {
			return fmt.Errorf("%d deliveries", deliveries)
		}
		return nil
	})
	require.LessOrEqual(t, float64(deliveries), 2*requests*(1+time.Since(refusing).Seconds()), "each once, and once a second after that")
	_, err = w.scan(`ALTER TABLE events_away RENAME TO events`)
	require.ErrorIs(t, err, pgx.ErrNoRows)
	w.eventually(func() error {
		n, err := w.scan(`SELECT count(*)::text FROM reservations WHERE state = 'settled'`)
		if err == nil && n != strconv.Itoa(requests) {
			err = fmt.Errorf("%s settled", n)
		}
		return err
	})
	parked, err := w.scan(`SELECT count(*)::text FROM parked_events`)
	require.NoError(t, err)
	require.Equal(t, "0", parked)
	w.requireVerified("")
}
