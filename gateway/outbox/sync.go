package outbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// keep syncs appended events and removes confirmed segments.
func (o *Outbox) keep(ctx context.Context) error {
	ticker := time.NewTicker(o.config.SyncEvery)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		err := o.sync()
		if err != nil && !failing {
			o.log.Error("outbox cannot be synced, it takes no events until it can", "error", err)
		}
		if err == nil && failing {
			o.log.Info("outbox is synced again")
		}
		failing = err != nil
		o.removeConfirmed()
		o.metrics.oldest.Set(o.oldest().Seconds())
	}
}

// syncThrough makes the event and those before it durable on this machine's disk. One call at a time is at work; those that
// wait for it find their events synced by the next of them, which is for all that were appended when it began.
func (o *Outbox) syncThrough(sequence uint64) error {
	o.syncing.Lock()
	defer o.syncing.Unlock()
	o.mu.Lock()
	durable := o.durable
	o.mu.Unlock()
	if sequence <= durable {
		return nil
	}
	return o.syncInTurn()
}

// sync makes every event appended so far durable, and closes what is sealed.
func (o *Outbox) sync() error {
	o.syncing.Lock()
	defer o.syncing.Unlock()
	return o.syncInTurn()
}

// syncInTurn is for the holder of syncing.
func (o *Outbox) syncInTurn() error {
	work, err := o.toSync()
	problems := []error{err}
	for _, f := range work.files {
		problems = append(problems, o.syncFile(f))
	}
	if work.created {
		problems = append(problems, o.syncFolder())
	}
	err = errors.Join(problems...)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unsynced = err
	if err != nil {
		o.dirty, o.created = true, o.created || work.created
		return err
	}
	o.durable = work.through
	return nil
}

// syncWork is what one sync does.
type syncWork struct {
	files   []openFile
	created bool   // the folder has a new file
	through uint64 // the last event that it covers
}

// openFile is a segment's file as it was when a sync began.
type openFile struct {
	segment *segment
	file    *os.File
	sealed  bool
	size    int64
}

// toSync errs for files that it had to leave out.
func (o *Outbox) toSync() (syncWork, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	work := syncWork{created: o.created, through: o.sequence}
	var problems []error
	for i := len(o.segments) - 1; i >= 0 && o.segments[i].file != nil; i-- {
		s := o.segments[i]
		if !o.dirty && !s.sealed {
			continue
		}
		if err := s.rewrite(); err != nil {
			problems = append(problems, err)
			continue
		}
		work.files = append(work.files, openFile{s, s.file, s.sealed, s.size})
	}
	o.dirty, o.created = false, false
	return work, errors.Join(problems...)
}

// syncFile syncs one file, and closes it when it is sealed.
func (o *Outbox) syncFile(f openFile) error {
	err := o.fsync(f.file)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		f.segment.failed = true
		return err
	}
	f.segment.synced(f.size)
	if !f.sealed {
		return nil
	}
	f.segment.file, f.segment.tail = nil, nil
	return f.file.Close()
}

func (o *Outbox) syncFolder() error {
	folder, err := os.Open(o.config.Dir)
	if err != nil {
		return err
	}
	return errors.Join(o.fsync(folder), folder.Close())
}

// writeDurably makes a file whole or not at all, also when the machine fails meanwhile.
func writeDurably(path string, data []byte) error {
	temporary, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = temporary.Write(data)
	if err := errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
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
