package outbox

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
)

// confirmWhatIs answers as a settler does that has settled everything on the stream into Postgres, which held some before.
func (w *world) confirmWhatIs(o *opened, held map[uint64]string) {
	w.t.Helper()
	o.Mark()
	maps.Copy(held, w.arrived())
	c := event.Confirmation{Settled: true}
	for sequence := range held {
		c.Through = max(c.Through, sequence)
	}
	for sequence := uint64(1); sequence < c.Through; sequence++ {
		if held[sequence] == "" {
			c.Missing = append(c.Missing, event.Span{From: sequence, Until: sequence + 1})
		}
	}
	o.Confirm(c)
}

// lost runs a stream that loses events by what lose does, after settled of them have reached Postgres, and requires that all
// others arrive again, although the stream remembers the ids of what it lost, and again when it loses those.
func lost(t *testing.T, settled uint64, lose func(w *world, stream jetstream.Stream)) {
	t.Helper()
	w := newWorld(t)
	ctx := t.Context()
	config := jetstream.StreamConfig{
		Name: event.Stream, Subjects: []string{event.Subjects}, Storage: jetstream.FileStorage, Duplicates: 10 * time.Minute, AllowDirect: true,
	}
	stream, err := w.js.CreateStream(ctx, config)
	require.NoError(t, err)
	o := start(t, testConfig(t.TempDir()), w.nc)
	ids := mustRecord(t, o, 10)
	maps.Copy(ids, mustAppend(t, o, 30, 8<<10))
	o.flush()
	inPostgres := map[uint64]string{}
	for sequence := uint64(1); sequence <= settled; sequence++ {
		inPostgres[sequence] = ids[sequence]
	}
	thereAgain := func() error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		stream, err = w.js.CreateOrUpdateStream(ctx, config)
		return err
	}
	lose(w, stream)
	stack.Eventually(t, thereAgain)
	there := func() error {
		arrived := w.arrived()
		maps.Copy(arrived, inPostgres)
		for sequence := uint64(1); sequence <= 40; sequence++ {
			if arrived[sequence] != ids[sequence] {
				return fmt.Errorf("sequence %d is missing", sequence)
			}
		}
		return nil
	}
	require.Error(t, there(), "nothing was lost")
	w.confirmWhatIs(o, inPostgres)
	stack.Eventually(t, pendingIs(o, 0))
	require.NoError(t, there(), "one confirmation is enough")
	require.NoError(t, stream.Purge(ctx))
	w.confirmWhatIs(o, inPostgres)
	stack.Eventually(t, pendingIs(o, 0))
	require.NoError(t, there())
	require.Equal(t, 2, strings.Count(o.logs.String(), "the stream lost events"))
}

func TestStreamDeletedAndMadeAnew(t *testing.T) {
	t.Parallel()
	lost(t, 17, func(w *world, _ jetstream.Stream) {
		require.NoError(t, w.js.DeleteStream(t.Context(), event.Stream))
	})
}

func TestStreamPurged(t *testing.T) {
	t.Parallel()
	lost(t, 17, func(_ *world, s jetstream.Stream) { require.NoError(t, s.Purge(t.Context())) })
}

func TestStreamHasHoles(t *testing.T) {
	t.Parallel()
	lost(t, 5, func(_ *world, s jetstream.Stream) {
		for _, at := range []uint64{7, 8, 20, 40} { // in the middle and at the end
			require.NoError(t, s.DeleteMsg(t.Context(), at))
		}
	})
}

func TestStreamStoreEmptied(t *testing.T) {
	t.Parallel()
	lost(t, 17, func(w *world, _ jetstream.Stream) {
		require.NoError(t, w.nats.Shutdown(t.Context()))
		require.NoError(t, os.RemoveAll(filepath.Join(w.storeDir, "jetstream")))
		require.NoError(t, w.nats.Restart(t.Context()))
	})
}

// What was acknowledged only after the settler was asked is no loss, nor is anything while the settler is behind.
func TestUnderWayIsNotLost(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	config.AckTimeout = patience
	o := start(t, config, w.nc)
	mustRecord(t, o, 3)
	o.Mark()
	mustRecord(t, o, 3)
	o.Confirm(event.Confirmation{Through: 3, Settled: true})
	require.Zero(t, o.Pending())
	o.Confirm(event.Confirmation{Settled: true})
	require.Zero(t, o.Pending(), "without a mark it may be under way")
	o.Mark()
	o.Confirm(event.Confirmation{Through: 1})
	require.Zero(t, o.Pending(), "the settler is behind")
	require.Positive(t, o.oldest())
	o.Mark()
	o.Confirm(event.Confirmation{Through: 6, Settled: true})
	require.Zero(t, o.oldest())
	require.NotContains(t, o.logs.String(), "lost")
}

// Beyond its most bytes the outbox lets no request in while NATS is away, has room for the outcomes of those it let in, and
// delivers everything once, in order, when NATS is there again.
func TestDiskUseIsBounded(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	w.shutdown()
	config := testConfig(t.TempDir())
	config.MaxBytes, config.AckTimeout = 1<<20, patience
	require.NoError(t, config.Validate())
	o := start(t, config, w.nc)
	ids := map[uint64]string{}
	for {
		e := reserved(2 << 10)
		err := o.Record(t.Context(), e)
		if err != nil {
			require.ErrorIs(t, err, errFull)
			break
		}
		ids[e.Sequence] = e.ID
	}
	require.Greater(t, len(ids), 300)
	maps.Copy(ids, mustAppend(t, o, 20, 2<<10))
	var onDisk int64
	for _, path := range segmentFiles(t, config.Dir) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		onDisk += info.Size()
	}
	require.LessOrEqual(t, onDisk, config.MaxBytes)
	require.Equal(t, float64(onDisk), o.gauge("tollgate_outbox_bytes"))
	require.NoError(t, w.nats.Restart(t.Context()))
	o.flush()
	w.requireAll(uint64(len(ids)), ids)
	require.NoError(t, o.Record(t.Context(), reserved(0)), "the stream's acknowledgement is enough")
	o.Mark()
	o.Confirm(event.Confirmation{Through: uint64(len(ids)), Settled: true})
	stack.Eventually(t, func() error {
		if n := o.gauge("tollgate_outbox_bytes"); n > 1<<16+1<<12 {
			return fmt.Errorf("%v bytes", n)
		}
		return nil
	})
}
