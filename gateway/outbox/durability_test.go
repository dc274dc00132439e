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
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// disk knows what of an outbox's files has been synced: what is left of them when the power fails.
type disk struct {
	dir   string
	mu    sync.Mutex
	sizes map[string]int64 // of the files, as they were when a sync that was well began
	names map[string]bool  // in the folder, likewise
	syncs int              // of files
}

// underneath puts a disk under an outbox that does not run yet.
func (o *opened) underneath() *disk {
	d := &disk{dir: o.config.Dir, sizes: map[string]int64{}, names: map[string]bool{}}
	o.fsync = d.sync
	return d
}

func (d *disk) sync(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var entries []os.DirEntry
	if info.IsDir() {
		if entries, err = os.ReadDir(d.dir); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range entries {
		d.names[e.Name()] = true
	}
	if !info.IsDir() {
		d.syncs++
		name := filepath.Base(f.Name())
		d.sizes[name] = max(d.sizes[name], info.Size())
	}
	return nil
}

// cut returns the events that the disk has after the power failed, with garbage where more had been written.
func (d *disk) cut(t *testing.T) map[uint64]string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := map[uint64]string{}
	for name, size := range d.sizes {
		if !d.names[name] {
			continue
		}
		data, err := os.ReadFile(filepath.Join(d.dir, name))
		require.NoError(t, err)
		clear(data[size:])
		_, err = framesOf(data, func(payload []byte) error {
			l := labelOf(payload)
			ids[l.sequence] = l.id
			return nil
		})
		require.NoError(t, err)
	}
	return ids
}

// With DurabilitySync, and with a stream that is away, whatever was answered is on the disk when the power fails, at any moment.
func TestPowerFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		durability Durability
		away       bool
	}{"sync": {DurabilitySync, false}, "ack from a stream that is away": {DurabilityAck, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(t.TempDir())
			config.Durability, config.SyncEvery, config.AckTimeout = c.durability, time.Hour, patience
			nc := away(t)
			if !c.away {
				nc = streamed(t).nc
			}
			o := open(t, config, nc)
			d := o.underneath()
			o.run()
			var mu sync.Mutex
			answered := map[uint64]string{}
			var workers sync.WaitGroup
			for range 8 {
				workers.Go(func() {
					for i := range 40 {
						e := reserved(1 << 10)
						var err error
						if i%2 == 1 && !c.away {
							err = o.Append(e)
						} else {
							err = o.Record(context.Background(), e)
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						answered[e.Sequence] = e.ID
						mu.Unlock()
					}
				})
			}
			check := func() int {
				mu.Lock()
				known := make(map[uint64]string, len(answered))
				for sequence, id := range answered {
					known[sequence] = id
				}
				mu.Unlock()
				kept := d.cut(t)
				for sequence, id := range known {
					require.Equal(t, id, kept[sequence], "sequence %d was answered and is gone", sequence)
				}
				return len(known)
			}
			for check() < 8*40 && !t.Failed() {
			}
			workers.Wait()
			check()
			require.Greater(t, len(segmentFiles(t, config.Dir)), 3)
		})
	}
}

// A sync is for all whose events were appended when it began.
func TestGroupCommit(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.Durability, config.SyncEvery, config.AckTimeout = DurabilitySync, time.Hour, patience
	o := open(t, config, streamed(t).nc)
	d := o.underneath()
	first, pass := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o.fsync = func(f *os.File) error {
		once.Do(func() { close(first); <-pass })
		return d.sync(f)
	}
	o.run()
	var workers sync.WaitGroup
	record := func() {
		if err := o.Record(context.Background(), reserved(0)); err != nil {
			t.Error(err)
		}
	}
	workers.Go(record)
	<-first
	for range 50 {
		workers.Go(record)
	}
	stack.Eventually(t, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.sequence != 51 {
			return fmt.Errorf("%d events appended", o.sequence)
		}
		return nil
	})
	close(pass)
	workers.Wait()
	require.Equal(t, 2, d.syncs)
}

// With DurabilitySync the acknowledgement is needed, too: without it events are refused, soon at once and without leaving
// anything behind, until there is one again.
func TestSyncNeedsTheStream(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	config.Durability, config.AckTimeout = DurabilitySync, patience
	o := start(t, config, w.nc)
	mustRecord(t, o, 1)
	w.shutdown()
	refused := 0
	stack.Eventually(t, func() error {
		err := o.Record(t.Context(), reserved(0))
		if errors.Is(err, ErrNotTaken) {
			return nil
		}
		require.ErrorIs(t, err, errNoAck)
		refused++
		return err
	})
	require.Equal(t, refused, o.Pending())
	for range 10 {
		if err := o.Record(t.Context(), reserved(0)); !errors.Is(err, ErrNotTaken) {
			require.ErrorIs(t, err, errNoAck) // now and then one is let try
			refused++
		}
	}
	require.NoError(t, o.Append(reserved(0)), "what is over is kept all the same")
	require.Equal(t, refused+1, o.Pending())
	require.NoError(t, w.nats.Restart(t.Context()))
	stack.Eventually(t, func() error {
		err := o.Record(t.Context(), reserved(0))
		if err != nil && !errors.Is(err, ErrNotTaken) {
			refused++
		}
		return err
	})
	o.flush()
	w.requireAll(uint64(1+refused+1+1), nil)
}

// With DurabilitySync the stream's acknowledgement is not enough.
func TestSyncNeedsTheDisk(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	config.Durability, config.SyncEvery, config.AckTimeout = DurabilitySync, time.Hour, patience
	o := open(t, config, w.nc)
	var full atomic.Bool
	o.fsync = func(f *os.File) error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return f.Sync()
	}
	o.run()
	mustRecord(t, o, 1)
	full.Store(true)
	err := o.Record(t.Context(), reserved(0))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotErrorIs(t, err, ErrNotTaken, "it is on the stream")
	err = o.Record(t.Context(), reserved(0))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, err, ErrNotTaken)
	require.NoError(t, o.Append(reserved(0)), "the stream has it")
	full.Store(false)
	require.NoError(t, o.sync())
	mustRecord(t, o, 1)
	o.flush()
	w.requireAll(4, nil)
}

// A system that fails to sync may take what it could not write for written, and forget it. The next sync writes it again, and
// until then nothing is taken in.
func TestFailedSyncLosesNothing(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.SyncEvery = time.Hour
	w := streamed(t)
	w.shutdown()
	o := open(t, config, w.nc)
	d := o.underneath()
	o.run()
	ids := mustRecord(t, o, 3)
	o.fsync = func(f *os.File) error { // as if its pages were dropped
		size := d.sizes[filepath.Base(f.Name())]
		info, err := f.Stat()
		if err == nil {
			_, err = f.WriteAt(make([]byte, info.Size()-size), size)
		}
		return errors.Join(syscall.EIO, err)
	}
	for sequence, id := range mustAppend(t, o, 3, 100) {
		ids[sequence] = id
	}
	err := o.Record(t.Context(), reserved(0))
	require.ErrorIs(t, err, syscall.EIO)
	require.NotErrorIs(t, err, ErrNotTaken)
	require.ErrorIs(t, o.Record(t.Context(), reserved(0)), ErrNotTaken)
	require.ErrorIs(t, o.Append(reserved(0)), syscall.EIO)
	require.Error(t, o.sync())
	o.fsync = d.sync
	require.NoError(t, o.sync())
	for sequence, id := range mustRecord(t, o, 1) {
		require.Equal(t, uint64(8), sequence)
		ids[sequence] = id
	}
	kept := d.cut(t)
	require.Len(t, kept, 8)
	for sequence, id := range ids {
		require.Equal(t, id, kept[sequence])
	}
	require.NoError(t, w.nats.Restart(t.Context()))
	o.flush()
	w.requireAll(8, ids)
}

// A segment whose only write could neither be done nor undone does not stand in the way of the next, whose name is the same.
func TestSegmentThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.SyncEvery = time.Hour
	o := start(t, config, away(t))
	o.mu.Lock()
	s, err := o.currentLocked(1)
	require.NoError(t, err)
	s.sealed = true
	o.mu.Unlock()
	require.ErrorContains(t, o.Append(reserved(0)), "not closed yet")
	require.NoError(t, o.sync())
	require.Contains(t, mustRecord(t, o, 1), uint64(1))
	require.Len(t, segmentFiles(t, config.Dir), 1)
}

// What cannot be removed is kept in mind and removed when it can be.
func TestRemovalIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	o := start(t, config, w.nc)
	mustAppend(t, o, 20, 8<<10)
	o.flush()
	stack.Eventually(t, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.segments[0].file != nil {
			return errors.New("still open")
		}
		return nil
	})
	files := segmentFiles(t, config.Dir)
	require.Len(t, files, 3)
	before := o.gauge("tollgate_outbox_bytes")
	require.NoError(t, os.Rename(files[0], filepath.Join(config.Dir, "aside")))
	require.NoError(t, os.MkdirAll(filepath.Join(files[0], "full"), 0o700)) // a folder that is not empty cannot be removed
	o.Confirm(confirmedThrough(20))
	belowBytes := func(most float64) func() error {
		return func() error {
			if now := o.gauge("tollgate_outbox_bytes"); now >= most {
				return fmt.Errorf("%v bytes", now)
			}
			return nil
		}
	}
	stack.Eventually(t, belowBytes(before))
	require.Contains(t, o.logs.String(), "cannot be removed")
	require.Len(t, segmentFiles(t, config.Dir), 2)
	left := o.gauge("tollgate_outbox_bytes")
	require.NoError(t, os.RemoveAll(files[0])) // a file that is gone already counts as removed
	stack.Eventually(t, belowBytes(left))
	require.Len(t, segmentFiles(t, config.Dir), 1)
	require.Equal(t, 1, strings.Count(o.logs.String(), "cannot be removed"))
}
