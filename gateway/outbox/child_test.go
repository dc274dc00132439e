package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// The test binary plays a gateway's process that is killed, or whose disk is full, when childRole is set.
const (
	childRole = "TOLLGATE_OUTBOX_TEST_ROLE"
	childDir  = "TOLLGATE_OUTBOX_TEST_DIR"
	childNATS = "TOLLGATE_OUTBOX_TEST_NATS"

	childMounted = "TOLLGATE_OUTBOX_TEST_MOUNTED" // set when the folder is a small disk of its own

	roleOpen   = "open"   // opens the outbox and says what came of it
	roleRecord = "record" // records events until it is killed, and says which
	roleFull   = "full"   // meets a full disk while there is a stream, and dies
	roleAlone  = "alone"  // meets a full disk while there is no stream, and gets room again
)

func startChild(t *testing.T, role, dir, natsURL string, env ...string) *stack.Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	env = append(env, childRole+"="+role, childDir+"="+dir, childNATS+"="+natsURL)
	return stack.StartProgram(t, self, role, nil, env)
}

func runChild(role string) int {
	err := childMain(role)
	fmt.Printf("%s: %v\n", role, err)
	if err != nil {
		return 1
	}
	return 0
}

func childMain(role string) (err error) {
	nc, err := dial(os.Getenv(childNATS))
	if err != nil {
		return err
	}
	defer nc.Close()
	config := testConfig(os.Getenv(childDir))
	switch role {
	case roleFull:
		config.SegmentBytes, config.AckTimeout = 1<<20, patience // an acknowledgement is all that its events have
	case roleAlone:
		config.SegmentBytes = 1 << 20
	case roleMoments: // which does not run: no acknowledgement comes
		config.AckTimeout = time.Millisecond
	}
	o, err := Open(config, nc, slog.New(slog.NewTextHandler(io.Discard, nil)), prometheus.NewRegistry())
	if err != nil || role == roleOpen {
		return err
	}
	if role == roleMoments {
		return childMoments(o, config)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-done, o.Close())
	}()
	switch role {
	case roleFull:
		return childFull(o)
	case roleAlone:
		return childAlone(o)
	}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				e := reserved(200)
				if err := o.Record(ctx, e); err != nil {
					fmt.Printf("error %v\n", err)
					return
				}
				fmt.Printf("recorded %d %s\n", e.Sequence, e.ID)
			}
		})
	}
	workers.Wait()
	return nil
}

// recordedBy reads what a child said it had recorded. The last line may be torn.
func recordedBy(t *testing.T, text string, ids map[uint64]string) {
	t.Helper()
	whole := text[:strings.LastIndexByte(text, '\n')+1]
	for line := range strings.Lines(whole) {
		var sequence uint64
		var id string
		_, err := fmt.Sscanf(line, "recorded %d %s\n", &sequence, &id)
		require.NoError(t, err, line)
		require.Empty(t, ids[sequence], "sequence %d was recorded twice", sequence)
		ids[sequence] = id
	}
}

// Whatever Record returned for is delivered, however often the process is killed, and no number is missing or given twice.
func TestKilled(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	dir := t.TempDir()
	ids := map[uint64]string{}
	for round := range 6 {
		url := w.nats.ClientURL()
		if round%3 == 2 { // a life without the stream: all depends on the folder
			url = "nats://" + stack.FreeAddr(t)
		}
		p := startChild(t, roleRecord, dir, url)
		stack.Eventually(t, func() error {
			if n := strings.Count(p.Log(), "recorded "); n < 30 {
				return fmt.Errorf("%d recorded so far:\n%s", n, p.Log())
			}
			return nil
		})
		p.Kill()
		recordedBy(t, p.Log(), ids)
	}
	o := start(t, testConfig(dir), w.nc)
	o.flush()
	o.mu.Lock()
	total := o.sequence
	o.mu.Unlock()
	require.GreaterOrEqual(t, total, uint64(len(ids)))
	require.GreaterOrEqual(t, len(ids), 6*30)
	w.requireAll(total, ids)
}

// limitFiles makes files unable to grow beyond size, as a full disk does.
func limitFiles(size uint64) error {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	limit.Cur = min(size, limit.Max)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

const room = 20_000 // bytes of a segment on the full disk

func say(o *Outbox, n int) error {
	for range n {
		e := reserved(1000)
		if err := o.Record(context.Background(), e); err != nil {
			return err
		}
		fmt.Printf("recorded %d %s\n", e.Sequence, e.ID)
	}
	return nil
}

// childFull records and appends more than the disk takes, and dies without closing.
func childFull(o *Outbox) error {
	if err := limitFiles(room); err != nil {
		return err
	}
	if err := say(o, 30); err != nil {
		return err
	}
	e := reserved(1000)
	if err := o.Append(e); err != nil {
		return err
	}
	fmt.Printf("recorded %d %s\n", e.Sequence, e.ID)
	o.mu.Lock() // Run goes on
	unkept, kept := o.unkept.sequence, o.segments[0].last
	o.mu.Unlock()
	if unkept != 0 || kept > 20 {
		return fmt.Errorf("the disk was not full: kept up to %d", kept)
	}
	os.Exit(3)
	return nil
}

// childAlone records until the disk is full, is refused, and goes on without a gap when there is room again.
func childAlone(o *Outbox) error {
	if err := limitFiles(room); err != nil {
		return err
	}
	full := 0
	for range 30 {
		if err := say(o, 1); errors.Is(err, syscall.EFBIG) {
			full++
		} else if err != nil {
			return err
		}
	}
	if full < 10 {
		return fmt.Errorf("the disk was full only %d times", full)
	}
	if err := o.Append(reserved(1000)); !errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("append to the full disk: %w", err)
	}
	if err := limitFiles(1 << 40); err != nil {
		return err
	}
	return say(o, 5)
}

// With a full disk the stream's acknowledgement is enough, and its number is never given to another event.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	p := startChild(t, roleFull, config.Dir, w.nats.ClientURL())
	require.Equal(t, 3, p.Wait(patience), p.Log())
	ids := map[uint64]string{}
	recordedBy(t, p.Log(), ids)
	require.Len(t, ids, 31)
	o := start(t, config, w.nc)
	require.NotContains(t, o.logs.String(), "damaged")
	require.NotContains(t, o.logs.String(), "torn")
	for sequence, id := range mustRecord(t, o, 3) {
		require.Greater(t, sequence, uint64(31))
		ids[sequence] = id
	}
	o.flush()
	w.requireAll(34, ids)
}

// Without stream and disk an event is refused; what follows when there is room again is readable and has no gap.
func TestDiskFullAndStreamAway(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	config := testConfig(t.TempDir())
	p := startChild(t, roleAlone, config.Dir, "nats://"+stack.FreeAddr(t))
	require.Zero(t, p.Wait(patience), p.Log())
	ids := map[uint64]string{}
	text := strings.TrimSuffix(p.Log(), "alone: <nil>\n")
	recordedBy(t, text, ids)
	o := start(t, config, w.nc)
	require.NotContains(t, o.logs.String(), "damaged")
	require.NotContains(t, o.logs.String(), "torn")
	o.flush()
	w.requireAll(uint64(len(ids)), ids)
}
