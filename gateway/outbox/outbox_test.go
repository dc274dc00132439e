package outbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
)

func TestDelivers(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	o := start(t, testConfig(t.TempDir()), w.nc)
	ids, mu, workers := map[uint64]string{}, sync.Mutex{}, sync.WaitGroup{}
	for i := range 8 {
		workers.Go(func() {
			for range 50 {
				e := reserved(0)
				var err error
				if i%2 == 0 {
					err = o.Record(context.Background(), e)
				} else {
					err = o.Append(e)
				}
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				ids[e.Sequence] = e.ID
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	o.flush()
	w.requireAll(400, ids)
	require.Zero(t, o.gauge("tollgate_spool_events"))
	require.Equal(t, 400.0, testutil.ToFloat64(o.metrics.events.WithLabelValues("reserved", "acknowledged")))
	problems, err := testutil.GatherAndLint(o.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestNumbersHaveNoGapAcrossRestarts(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	total, producer := uint64(0), ""
	for round := range 6 {
		o := start(t, config, w.nc)
		if producer == "" {
			producer = o.Producer()
		}
		require.Equal(t, producer, o.Producer())
		for sequence := range mustAppend(t, o, round, 0) {
			total++
			require.LessOrEqual(t, sequence, uint64(15))
		}
		o.end() // what was not delivered is delivered by the next
	}
	o := start(t, config, w.nc)
	o.flush()
	w.requireAll(total, nil)
	require.Equal(t, uint64(15), total)
}

func TestFolderIsOneGateways(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	nc := away(t)
	o := open(t, config, nc)
	_, err := Open(config, nc, o.log, o.registry)
	require.ErrorIs(t, err, ErrLocked)
	child := startChild(t, roleOpen, config.Dir, "nats://127.0.0.1:1")
	child.WaitLog("open: " + ErrLocked.Error())
	o.end()
	open(t, config, nc)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	require.NoError(t, testConfig("x").Validate())
	err := Config{}.Validate()
	for _, name := range []string{"DATA_DIR", "DURABILITY", "PUBLISH_TIMEOUT", "OUTBOX_SYNC", "OUTBOX_SEGMENT_BYTES"} {
		name = "TOLLGATE_" + name
		require.ErrorContains(t, err, name)
	}
	require.ErrorContains(t, Config{Dir: "x", AckTimeout: 1, SyncEvery: 1, SegmentBytes: 1 << 31}.Validate(), "SEGMENT_BYTES")
}

func TestEmptyIDIsRefused(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	require.NoError(t, os.WriteFile(filepath.Join(config.Dir, "id"), []byte("\n"), 0o600))
	_, err := Open(config, away(t), nil, nil)
	require.ErrorContains(t, err, "is empty")
	require.NoError(t, os.Remove(filepath.Join(config.Dir, "id")))
	open(t, config, away(t)) // the failed attempt has given the folder free
}

// An event that no settler could read takes no number and leaves nothing behind.
func TestBadEventIsRefused(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	o := start(t, testConfig(t.TempDir()), w.nc)
	for name, spoil := range map[string]func(*event.Event){
		"app cannot be part of a subject": func(e *event.Event) { e.App = "a.b" },
		"no reservation":                  func(e *event.Event) { e.Reservation = nil },
		"negative amount":                 func(e *event.Event) { e.Reservation.Held.Tokens = -1 },
		"larger than the stream takes":    func(e *event.Event) { e.TraceID = strings.Repeat("x", maxEvent) },
	} {
		e := reserved(0)
		spoil(e)
		require.Error(t, o.Append(e), name)
		require.Error(t, o.Record(t.Context(), e), name)
	}
	require.Zero(t, o.Pending())
	mustRecord(t, o, 1)
	o.flush()
	w.requireAll(1, nil)
}

func TestLargestEventIsTaken(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	o := start(t, testConfig(t.TempDir()), w.nc)
	e := reserved(1)
	data, err := e.Encode()
	require.NoError(t, err)
	e.Reservation.Flags = []string{strings.Repeat("x", maxEvent-len(data)-100)}
	require.NoError(t, o.Append(e))
	o.flush()
	w.requireAll(1, nil)
}

// An event of another version neither stops a start nor what stands behind it.
func TestForeignEventPasses(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	s, err := createSegment(config.Dir, 1)
	require.NoError(t, err)
	require.NoError(t, s.append(1, []byte(`{"v":99,"id":"next","kind":"used","app":"checkout","sequence":1}`)))
	require.NoError(t, s.file.Close())
	o := start(t, config, w.nc)
	ids := mustRecord(t, o, 1)
	o.flush()
	require.Contains(t, ids, uint64(2))
	w.requireAll(2, map[uint64]string{1: "next", 2: ids[2]})
}

func TestRotationAndConfirm(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	o := start(t, config, w.nc)
	mustAppend(t, o, 40, 8<<10) // eight to a segment
	o.flush()
	files := segmentFiles(t, config.Dir)
	require.Len(t, files, 5)
	firsts := make([]uint64, len(files))
	for i, path := range files {
		var err error
		firsts[i], err = firstSequence(path)
		require.NoError(t, err)
	}
	count := func(n int) func() error {
		return func() error {
			if files := segmentFiles(t, config.Dir); len(files) != n {
				return fmt.Errorf("%d segments, want %d", len(files), n)
			}
			return nil
		}
	}
	o.Confirm(event.Confirmation{Through: firsts[2]}) // the third segment has more than its first event
	stack.Eventually(t, count(3))
	o.Confirm(event.Confirmation{Through: firsts[4] - 1})
	stack.Eventually(t, count(1))
	o.Confirm(event.Confirmation{Through: 1 << 40})
	o.end()
	require.NoError(t, count(1)(), "the newest segment is where numbering goes on")
	again := start(t, config, w.nc)
	require.Contains(t, mustRecord(t, again, 1), uint64(41))
}

// What Postgres holds needs no acknowledgement.
func TestConfirmedIsNotPending(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	o := start(t, config, away(t))
	mustAppend(t, o, 40, 8<<10)
	require.Equal(t, 40.0, o.gauge("tollgate_spool_events"))
	o.Confirm(event.Confirmation{Through: 40})
	stack.Eventually(t, pendingIs(o, 8))
	require.Equal(t, 8.0, o.gauge("tollgate_spool_events"))
}

func TestFlushAndClose(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	o := start(t, config, away(t))
	require.NoError(t, o.Flush(t.Context()), "nothing to wait for")
	mustAppend(t, o, 3, 0)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("time is up"))
	defer cancel()
	require.EqualError(t, o.Flush(ctx), "flush outbox: 3 events wait for the stream and are kept: time is up")
	o.end()
	require.ErrorContains(t, o.Append(reserved(0)), "closed")
	require.ErrorContains(t, o.Record(t.Context(), reserved(0)), "closed")
	require.Equal(t, 3, open(t, config, away(t)).Pending())
}

// Record does not return while the sync that covers its event is still under way in another call.
func TestRecordWaitsForTheSyncOfAnother(t *testing.T) {
	t.Parallel()
	o := open(t, testConfig(t.TempDir()), away(t))
	o.syncing.Lock()
	var released atomic.Bool
	done := make(chan bool, 1)
	go func() {
		if err := o.Record(context.Background(), reserved(0)); err != nil {
			t.Error(err)
		}
		done <- released.Load()
	}()
	stack.Eventually(t, pendingIs(o, 1))
	o.mu.Lock()
	o.dirty = false // as another sync leaves it when it begins
	o.mu.Unlock()
	released.Store(true)
	o.syncing.Unlock()
	require.True(t, <-done)
}

func TestSyncFailureIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	o := open(t, testConfig(t.TempDir()), away(t))
	require.NoError(t, o.Append(reserved(0)))
	silent, other, err := os.Pipe() // cannot be synced
	require.NoError(t, err)
	defer silent.Close()
	defer other.Close()
	o.mu.Lock()
	s := o.segments[0]
	good := s.file
	s.file = silent
	o.mu.Unlock()
	require.Error(t, o.sync())
	require.True(t, o.dirty)
	s.file = good
	require.NoError(t, o.sync())
	require.False(t, o.dirty)
}

// The drainer reads no segment whose events only wait for their first acknowledgement.
func TestUndelivered(t *testing.T) {
	t.Parallel()
	o := open(t, testConfig(t.TempDir()), away(t))
	require.NoError(t, o.Append(reserved(0)))
	require.Empty(t, o.undelivered(), "its first publication is under way")
	o.unacknowledged(1)
	require.Len(t, o.undelivered(), 1)
	take := func(sequence uint64) bool {
		round, taken := o.take(sequence)
		require.Empty(t, round)
		return taken
	}
	require.True(t, take(1))
	require.False(t, take(1))
	require.Empty(t, o.undelivered())
	o.unacknowledged(1)
	require.Len(t, o.undelivered(), 1)
	o.acknowledged(1, event.KindReserved, 0)
	require.Empty(t, o.undelivered())
	require.False(t, take(1))
	require.False(t, take(99))
}

// A backlog of many times what may wait for acknowledgements is delivered whole, once and in order, and what is recorded
// meanwhile does not wait for its end.
func TestLongBacklog(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	const backlog, between = 2000, 50
	w := streamed(t)
	config := testConfig(t.TempDir())
	config.SegmentBytes, config.AckTimeout = 1<<20, patience
	before := open(t, config, away(t))
	mustAppend(t, before, backlog, 0)
	before.end()
	o := start(t, config, w.nc)
	mustRecord(t, o, between)
	left := o.Pending()
	o.flush()
	t.Logf("%d were left when %d more were acknowledged", left, between)
	require.Equal(t, float64(backlog+between), testutil.ToFloat64(o.metrics.events.WithLabelValues("reserved", "acknowledged")),
		"each was acknowledged once")
	stream, err := w.js.Stream(t.Context(), event.Stream)
	require.NoError(t, err)
	next := uint64(1)
	for i := uint64(1); i <= backlog+between; i++ {
		msg, err := stream.GetMsg(t.Context(), i)
		require.NoError(t, err)
		if sequence := labelOf(msg.Data).sequence; sequence <= backlog {
			require.Equal(t, next, sequence)
			next++
		}
	}
	require.Equal(t, uint64(backlog+1), next)
}
