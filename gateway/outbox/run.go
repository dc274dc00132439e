package outbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Pending counts events that the stream has not acknowledged.
func (o *Outbox) Pending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, s := range o.segments {
		n += len(s.pending)
	}
	return n
}

// Run publishes, collects acknowledgements, syncs, publishes again what has no acknowledgement and removes what is confirmed, until ctx ends and all
// its goroutines have.
func (o *Outbox) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.publish(ctx) })
	group.Go(func() error { return o.collect(ctx) })
	group.Go(func() error { return o.keep(ctx) })
	group.Go(func() error { return o.drainLoop(ctx) })
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// keep syncs appended events and removes confirmed segments.
func (o *Outbox) keep(ctx context.Context) error {
	ticker := time.NewTicker(o.config.SyncEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if err := o.sync(); err != nil {
			o.log.Error("outbox cannot be synced", "error", err)
		}
		o.removeConfirmed()
		o.metrics.oldest.Set(o.oldest().Seconds())
	}
}

// drainLoop publishes again what has no acknowledgement: at the start, after a failure, and every second while any is left.
func (o *Outbox) drainLoop(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		if err := o.drainOnce(ctx); err != nil {
			o.log.Debug("outbox not drained", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.drain:
			// Whatever failed at once fails again at once; the next tick is soon enough.
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
		case <-ticker.C:
		}
	}
}

func (o *Outbox) drainOnce(ctx context.Context) error {
	for _, path := range o.undelivered() {
		_, err := frames(path, func(payload []byte) error { return o.publishAgain(ctx, payload) })
		if errors.Is(err, os.ErrNotExist) {
			continue // confirmed and removed meanwhile
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// undelivered lists the segments with an event that nothing is under way for. Those whose events only wait for their first
// acknowledgement are not read.
func (o *Outbox) undelivered() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var paths []string
	for _, s := range o.segments {
		for sequence := range s.pending {
			if _, ok := o.inFlight[sequence]; !ok {
				paths = append(paths, s.path)
				break
			}
		}
	}
	return paths
}

// maxAgain is how many repeated publications may wait for the stream at once: few enough that even a slow one acknowledges
// them in time, because what it does not is sent once more and makes it slower still.
const maxAgain = 256

// publishAgain waits while too many are outstanding.
func (o *Outbox) publishAgain(ctx context.Context, payload []byte) error {
	l := labelOf(payload)
	if !o.take(l.sequence) {
		return nil
	}
	select {
	case o.again <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	p := o.newPublication(l.sequence, l, payload)
	p.slot = o.again
	if o.send(p); p.future == nil {
		<-o.again
		o.release(l.sequence)
		return fmt.Errorf("event %s could not be published", l.id)
	}
	select {
	case o.acks <- p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take marks the event as in flight, unless it is already or needs no publication.
func (o *Outbox) take(sequence uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.inFlight[sequence]; ok {
		return false
	}
	for _, s := range o.segments {
		if _, ok := s.pending[sequence]; ok {
			o.inFlight[sequence] = struct{}{}
			return true
		}
	}
	return false
}

func (o *Outbox) release(sequence uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.inFlight, sequence)
}

// Flush waits until the stream has acknowledged every event, or ctx ends; then it syncs the rest. It errors when events
// remain, which the next start will publish.
func (o *Outbox) Flush(ctx context.Context) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for o.Pending() > 0 {
		select {
		case <-ctx.Done():
			if err := o.sync(); err != nil {
				return fmt.Errorf("flush outbox: %w", err)
			}
			return fmt.Errorf("flush outbox: %d events wait for the stream and are kept: %w", o.Pending(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
	return nil
}

// sync makes every event appended so far durable on this machine's disk.
func (o *Outbox) sync() error {
	o.syncing.Lock()
	defer o.syncing.Unlock()
	open, created := o.unsynced()
	var problems []error
	for _, f := range open {
		problems = append(problems, f.sync())
	}
	if created {
		problems = append(problems, syncFolder(o.config.Dir))
	}
	err := errors.Join(problems...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.dirty, o.created = true, o.created || created
		return err
	}
	for _, f := range open {
		if f.sealed {
			f.segment.file = nil
		}
	}
	return nil
}

// openFile is a segment's file as it was when a sync began.
type openFile struct {
	segment *segment
	file    *os.File
	sealed  bool
}

// sync closes a sealed file, too; one that an earlier attempt has closed was synced by it.
func (f openFile) sync() error {
	err := f.file.Sync()
	if err == nil && f.sealed {
		err = f.file.Close()
	}
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// unsynced lists the files to sync, and tells whether the folder has a new one.
func (o *Outbox) unsynced() (open []openFile, created bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := len(o.segments) - 1; i >= 0 && o.segments[i].file != nil; i-- {
		if s := o.segments[i]; o.dirty || s.sealed {
			open = append(open, openFile{s, s.file, s.sealed})
		}
	}
	created = o.created
	o.dirty, o.created = false, false
	return open, created
}

// Close syncs and closes the open segments and gives the folder free. Run must have ended; later events are refused.
func (o *Outbox) Close() error {
	o.mu.Lock()
	o.closed = true
	if n := len(o.segments); n > 0 {
		o.segments[n-1].sealed = true
	}
	o.mu.Unlock()
	// Unlocked by hand: a child process that was just being started has the lock, too, until it runs.
	return errors.Join(o.sync(), o.unkept.file.Close(), syscall.Flock(int(o.lock.Fd()), syscall.LOCK_UN), o.lock.Close())
}
