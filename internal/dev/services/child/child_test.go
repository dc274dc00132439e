package child_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services/child"
)

// patience bounds every wait of a test.
const patience = stack.Patience

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, script string) *child.Process {
	t.Helper()
	p, err := child.Start(child.Config{Path: "/bin/sh", Args: []string{"-c", script}, LogPath: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	return p
}

// awaitLog returns what p wrote once that holds text.
func awaitLog(t *testing.T, p *child.Process, text string) string {
	t.Helper()
	var log string
	require.Eventually(t, func() bool {
		var err error
		log, err = p.Log()
		return err == nil && strings.Contains(log, text)
	}, patience, 10*time.Millisecond)
	return log
}

func gone(pid int) func() bool {
	return func() bool {
		// A zombie whose new parent has not reaped it yet is gone too.
		out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
		return err != nil || strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
	}
}

func TestEndIsReported(t *testing.T) {
	t.Parallel()
	p := start(t, "echo out; echo err >&2; exit 3")
	<-p.Done()
	require.Equal(t, 3, p.ExitCode())
	var exit *exec.ExitError
	require.ErrorAs(t, p.Err(), &exit)
	require.Equal(t, "out\nerr", p.LogTail(10))
	require.Equal(t, "err", p.LogTail(1))
	require.NoError(t, p.Signal(syscall.SIGTERM), "a signal to an ended child does nothing")
	require.NoError(t, p.Stop(t.Context(), time.Second, syscall.SIGTERM))
}

func TestLogOfASecondChildIsItsOwn(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	for _, word := range []string{"first", "second"} {
		p, err := child.Start(child.Config{Path: "/bin/echo", Args: []string{word}, LogPath: log})
		require.NoError(t, err)
		<-p.Done()
		require.Equal(t, word, p.LogTail(10))
	}
}

func TestStartOfAMissingProgram(t *testing.T) {
	t.Parallel()
	_, err := child.Start(child.Config{Path: "/nowhere/program", LogPath: filepath.Join(t.TempDir(), "log")})
	require.ErrorContains(t, err, "/nowhere/program")
}

func TestStopGoesOnToTheNextSignal(t *testing.T) {
	t.Parallel()
	p := start(t, `trap '' TERM; trap 'exit 7' INT; echo ready; while :; do sleep 0.02; done`)
	awaitLog(t, p, "ready")
	require.NoError(t, p.Stop(t.Context(), 300*time.Millisecond, syscall.SIGTERM, syscall.SIGINT))
	require.Equal(t, 7, p.ExitCode())
}

func TestStopEndsWithSIGKILL(t *testing.T) {
	t.Parallel()
	p := start(t, `trap '' TERM INT; echo ready; while :; do sleep 0.02; done`)
	awaitLog(t, p, "ready")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time"))
	begin := time.Now()
	require.NoError(t, p.Stop(ctx, time.Hour, syscall.SIGTERM, syscall.SIGINT))
	require.Less(t, time.Since(begin), time.Minute, "an ended context leaves no grace")
	require.Equal(t, -1, p.ExitCode())
}

func TestStopOfAPausedChild(t *testing.T) {
	t.Parallel()
	p := start(t, `trap 'exit 5' TERM; echo ready; while :; do sleep 0.02; done`)
	awaitLog(t, p, "ready")
	require.NoError(t, p.Pause())
	require.NoError(t, p.Stop(t.Context(), time.Minute, syscall.SIGTERM))
	require.Equal(t, 5, p.ExitCode())
}

func TestKillReachesGrandchildren(t *testing.T) {
	t.Parallel()
	// setsid takes the grandchild out of the process group, as Postgres does with its sessions.
	p := start(t, `setsid sh -c 'echo pid $$; exec sleep 1000' & wait`)
	_, after, _ := strings.Cut(awaitLog(t, p, "pid "), "pid ")
	require.Eventually(t, func() bool {
		log, err := p.Log()
		_, after, _ = strings.Cut(log, "pid ")
		return err == nil && strings.HasSuffix(after, "\n")
	}, patience, 10*time.Millisecond)
	pid, err := strconv.Atoi(strings.TrimSpace(after))
	require.NoError(t, err)
	require.False(t, gone(pid)())
	require.NoError(t, p.Kill())
	require.Eventually(t, gone(pid), patience, 10*time.Millisecond)
}

func TestCPUAndRSS(t *testing.T) {
	t.Parallel()
	p := start(t, `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo ready; sleep 1000`)
	awaitLog(t, p, "ready")
	used, err := p.CPU()
	require.NoError(t, err)
	require.Positive(t, used)
	require.Less(t, used, time.Minute)
	size, err := p.RSS()
	require.NoError(t, err)
	require.Greater(t, size, int64(100<<10))
	require.Less(t, size, int64(100<<20))

	require.NoError(t, p.Kill())
	after, err := p.CPU()
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, used-20*time.Millisecond, "the figure outlives the process")
	_, err = p.RSS()
	require.Error(t, err)
}
