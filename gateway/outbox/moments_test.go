package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// roleMoments meets a full disk at one moment after the other, and gets room again each time.
const roleMoments = "moments"

// fillable is the disk that a child fills: a mounted one, or the process's own limits.
type fillable struct {
	dir     string
	mounted bool
}

func (d fillable) filler(name string) string { return filepath.Join(d.dir, "filler-"+name) }

// fill leaves room for not one more block.
func (d fillable) fill() error {
	if !d.mounted {
		return limitFiles(0)
	}
	f, err := os.Create(d.filler("bytes"))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, zeros{})
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// fillNames leaves room for not one more file.
func (d fillable) fillNames() error {
	if !d.mounted {
		return limitDescriptors(0)
	}
	for i := 0; ; i++ {
		err := os.WriteFile(d.filler(fmt.Sprint(i)), nil, 0o600)
		if errors.Is(err, syscall.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (d fillable) makeRoom() error {
	if !d.mounted {
		return errors.Join(limitFiles(1<<40), limitDescriptors(1<<10))
	}
	fillers, err := filepath.Glob(d.filler("*"))
	for _, f := range fillers {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// limitDescriptors makes it impossible to open files, but for those that are open.
func limitDescriptors(n uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = min(n, limit.Max)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EFBIG) || errors.Is(err, syscall.EMFILE)
}

// childMoments has the disk full during an append, when a segment is made, when the outbox is opened again, and when a new one is.
// Each time events are refused without a trace, and taken again when there is room.
func childMoments(o *Outbox, config Config) error {
	d := fillable{config.Dir, os.Getenv(childMounted) != ""}
	reopen := func(in string) (*Outbox, error) {
		config.Dir = in
		return Open(config, o.js.Conn(), slog.New(slog.NewTextHandler(io.Discard, nil)), prometheus.NewRegistry())
	}
	if err := say(o, 20); err != nil {
		return err
	}
	for _, moment := range []struct {
		name string
		fill func() error
	}{
		{"append", d.fill},
		{"segment", func() error {
			o.mu.Lock()
			o.segments[len(o.segments)-1].sealed = true
			o.mu.Unlock()
			return d.fillNames()
		}},
	} {
		if err := errors.Join(moment.fill(), refuses(o), d.makeRoom(), say(o, 5)); err != nil {
			return fmt.Errorf("at %s: %w", moment.name, err)
		}
	}
	if err := errors.Join(d.fill(), o.Close()); err != nil {
		return fmt.Errorf("closed: %w", err)
	}
	again, err := reopen(d.dir)
	if err != nil {
		return fmt.Errorf("opened again: %w", err)
	}
	if err := errors.Join(refuses(again), again.Close()); err != nil {
		return fmt.Errorf("opened again: %w", err)
	}
	elsewhere := filepath.Join(d.dir, "new")
	if _, err = reopen(elsewhere); !isFull(err) {
		return fmt.Errorf("opened anew on a full disk: %w", err)
	}
	if err := d.makeRoom(); err != nil {
		return err
	}
	if other, err := reopen(elsewhere); err != nil || other.Close() != nil {
		return fmt.Errorf("opened anew: %w", err)
	}
	again, err = reopen(d.dir)
	if err != nil {
		return err
	}
	return errors.Join(say(again, 5), again.Close())
}

// refuses records until nothing fits any more, then requires that ten more are refused and leave no trace.
func refuses(o *Outbox) error {
	for refused := 0; refused < 10; {
		e := reserved(1000)
		err := o.Record(context.Background(), e)
		switch {
		case err == nil && refused == 0:
			fmt.Printf("recorded %d %s\n", e.Sequence, e.ID)
			continue
		case !errors.Is(err, ErrNotTaken) || !isFull(err):
			return fmt.Errorf("refusal %d of a full disk: %w", refused, err)
		}
		refused++
		if err := o.Append(reserved(1000)); !isFull(err) {
			return fmt.Errorf("append to a full disk: %w", err)
		}
	}
	return nil
}

// Whatever needs the disk when it is full, no event is lost, torn or left half done, and the numbering has no gap.
func TestDiskFullAtEachMoment(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	var env []string
	if mountSmallDisk(t, config.Dir) {
		env = append(env, childMounted+"=yes")
	}
	p := startChild(t, roleMoments, config.Dir, "nats://"+stack.FreeAddr(t), env...)
	require.Zero(t, p.Wait(patience), p.Log())
	ids := map[uint64]string{}
	recordedBy(t, strings.TrimSuffix(p.Log(), roleMoments+": <nil>\n"), ids)
	require.GreaterOrEqual(t, len(ids), 20+3*5)
	o := start(t, config, w.nc)
	require.NotContains(t, o.logs.String(), "damaged")
	require.NotContains(t, o.logs.String(), "torn")
	o.flush()
	w.requireAll(uint64(len(ids)), ids)
}
