package settler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger/event"
	"tollgate/settler/rebuild"
)

// TestNoPresentGatewayIsPassedOver: gateways renew their presence while they are listed, and a listing that reads the entries one by one
// can take the old one for gone and end before the new.
func TestNoPresentGatewayIsPassedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	barrier := rebuild.NewBarrier(w.nc, w.js, 1, 0, time.Now)
	require.NoError(t, barrier.Ensure(t.Context()))
	bucket, err := w.js.KeyValue(t.Context(), event.PresenceBucket)
	require.NoError(t, err)
	const gateways = 6
	var asked [gateways]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var renewing errgroup.Group
	for i := range gateways {
		producer := fmt.Sprintf("gw-%d", i)
		_, err := bucket.PutString(t.Context(), producer, "1")
		require.NoError(t, err)
		_, err = w.nc.Subscribe(event.BarrierSubject(producer), func(question *nats.Msg) {
			asked[i].Add(1)
			_ = question.Respond([]byte(event.BarrierDone))
		})
		require.NoError(t, err)
		renewing.Go(func() error {
			for ctx.Err() == nil {
				if _, err := bucket.PutString(ctx, producer, "1"); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	for n := range 300 {
		var before [gateways]int64
		for i := range asked {
			before[i] = asked[i].Load()
		}
		require.NoError(t, barrier.Pass(t.Context(), "1", true))
		for i := range asked {
			require.Greater(t, asked[i].Load(), before[i], "gateway %d at barrier %d", i, n)
		}
	}
	stop()
	require.NoError(t, renewing.Wait())
}

// TestListIsNotBelievedAfterSilence: entries lapse also while the connection stands, when NATS was paused or the network was; then
// gateways need time to show themselves again.
func TestListIsNotBelievedAfterSilence(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	var paused atomic.Bool
	now := func() time.Time {
		if paused.Load() {
			return time.Now().Add(event.PresenceTTL)
		}
		return time.Now()
	}
	barrier := rebuild.NewBarrier(w.nc, w.js, 1, event.PresenceTTL/2, now)
	require.NoError(t, barrier.Ensure(t.Context()))
	paused.Store(true) // and nobody is listed any more
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, barrier.Pass(ctx, "1", false), "it waits for gateways to show their presence")
}

// TestWhoLapsedInASilenceIsNotGone: a gateway that is asked when NATS falls silent has no entry afterwards, and has not passed.
func TestWhoLapsedInASilenceIsNotGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	var paused atomic.Bool
	now := func() time.Time {
		if paused.Load() {
			return time.Now().Add(event.PresenceTTL)
		}
		return time.Now()
	}
	barrier := rebuild.NewBarrier(w.nc, w.js, 1, 0, now)
	require.NoError(t, barrier.Ensure(t.Context()))
	bucket, err := w.js.KeyValue(t.Context(), event.PresenceBucket)
	require.NoError(t, err)
	_, err = bucket.PutString(t.Context(), "gw-1", "1")
	require.NoError(t, err)
	_, err = w.nc.Subscribe(event.BarrierSubject("gw-1"), func(*nats.Msg) {
		paused.Store(true)
		_ = bucket.Purge(context.Background(), "gw-1")
	})
	require.NoError(t, err)
	require.ErrorContains(t, barrier.Pass(t.Context(), "1", false), "NATS was away")
}
