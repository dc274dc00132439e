package stack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tollgate/internal/dev/services/child"
)

const (
	raceEnv = "TOLLGATE_TEST_RACE"
	// readyLimit is how long a process may take until it is ready.
	readyLimit = 2 * time.Minute
	// termLimit is how long a process may take to end after SIGTERM.
	termLimit = 2 * time.Minute
	pollEvery = 20 * time.Millisecond
	tailLines = 60
)

// Binary builds the tollgate binary once per test process and returns its path; with TOLLGATE_TEST_RACE=1 it has the race
// detector in it.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := builtBinary()
	if err != nil {
		t.Fatalf("build tollgate: %v", err)
	}
	return path
}

var builtBinary = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir, err := sharedDir("bin")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "tollgate")
	args := []string{"build", "-buildvcs=false", "-o", path}
	if os.Getenv(raceEnv) == "1" {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, ".")...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// moduleRoot is the folder of go.mod at or above the working directory, which in a test is its package's.
func moduleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod above %s", start)
		}
	}
}

// Process is a program that a test runs. Methods that cannot do their work fail the test, so they are for the test's goroutine,
// except Kill, Pause, Resume, Terminate, PID, Log and Done, which any may call.
type Process struct {
	Name string

	t    testing.TB
	proc *child.Process
}

// Start runs the tollgate binary with args. Its environment is that of the test without any TOLLGATE_ variable and service URL,
// plus env ("NAME=value"). When the test ends the process is killed, and the end of its log is shown if the test failed.
func Start(t testing.TB, name string, args, env []string) *Process {
	t.Helper()
	return StartProgram(t, Binary(t), name, args, env)
}

// StartProgram is Start for another program, such as the test binary itself.
func StartProgram(t testing.TB, path, name string, args, env []string) *Process {
	t.Helper()
	proc, err := child.Start(child.Config{
		Path: path, Args: args, Env: append(cleanEnv(), env...), Dir: t.TempDir(),
		LogPath: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	p := &Process{Name: name, t: t, proc: proc}
	t.Cleanup(p.finish)
	return p
}

func cleanEnv() []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case strings.HasPrefix(name, "TOLLGATE_"), name == "DATABASE_URL", name == "REDIS_URL", name == "NATS_URL":
		default:
			env = append(env, entry)
		}
	}
	return env
}

func (p *Process) finish() {
	if err := p.proc.Kill(); err != nil {
		p.t.Errorf("%s: %v", p.Name, err)
	}
	if strings.Contains(p.Log(), "WARNING: DATA RACE") {
		p.t.Errorf("%s: data race", p.Name)
	}
	if p.t.Failed() {
		p.t.Logf("%s (exit code %d) ended its log with:\n%s", p.Name, p.proc.ExitCode(), p.proc.LogTail(tailLines))
	}
}

// WaitReady waits until a GET of url answers 200, for at most two minutes.
func (p *Process) WaitReady(url string) {
	p.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext}}
	p.waitFor("ready at "+url, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return nil
	})
}

// WaitLog waits until the process has logged text, for at most two minutes.
func (p *Process) WaitLog(text string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("logging %q", text), func(context.Context) error {
		if !strings.Contains(p.Log(), text) {
			return fmt.Errorf("not logged yet")
		}
		return nil
	})
}

func (p *Process) waitFor(what string, probe func(context.Context) error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), readyLimit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-p.proc.Done():
			// It may have done what was waited for just before it ended.
			if probe(ctx) != nil {
				p.t.Fatalf("%s ended (exit code %d) before %s", p.Name, p.proc.ExitCode(), what)
			}
			return
		case <-ctx.Done():
			p.t.Fatalf("%s is not %s after %v: %v", p.Name, what, readyLimit, err)
		}
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.proc.PID() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.proc.Done() }

// Log is all that the process has written to standard output and error.
func (p *Process) Log() string {
	text, err := p.proc.Log()
	if err != nil {
		p.t.Errorf("%s: %v", p.Name, err)
	}
	return text
}

// Kill ends the process with SIGKILL and waits until it is gone. Idempotent.
func (p *Process) Kill() {
	if err := p.proc.Kill(); err != nil {
		p.t.Errorf("%s: %v", p.Name, err)
	}
}

// Term asks the process to end with SIGTERM, waits for at most two minutes and returns its exit code.
func (p *Process) Term() (exitCode int) {
	p.t.Helper()
	if err := p.proc.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatalf("%s: %v", p.Name, err)
	}
	return p.Wait(termLimit)
}

// Terminate asks the process to end with SIGTERM and does not wait. Any goroutine may call it.
func (p *Process) Terminate() {
	if err := p.proc.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("%s: %v", p.Name, err)
	}
}

// Wait waits until the process has ended, for at most limit, and returns its exit code.
func (p *Process) Wait(limit time.Duration) (exitCode int) {
	p.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.proc.Done():
	case <-timer.C:
		p.t.Fatalf("%s still runs after %v", p.Name, limit)
	}
	return p.proc.ExitCode()
}

// Pause stops the process with SIGSTOP.
func (p *Process) Pause() {
	if err := p.proc.Pause(); err != nil {
		p.t.Errorf("%s: %v", p.Name, err)
	}
}

// Resume ends a Pause.
func (p *Process) Resume() {
	if err := p.proc.Resume(); err != nil {
		p.t.Errorf("%s: %v", p.Name, err)
	}
}

// CPU is the processor time used so far, user and system, to 10 ms.
func (p *Process) CPU() time.Duration {
	p.t.Helper()
	used, err := p.proc.CPU()
	if err != nil {
		p.t.Fatal(err)
	}
	return used
}

// RSS is the resident memory in bytes.
func (p *Process) RSS() int64 {
	p.t.Helper()
	size, err := p.proc.RSS()
	if err != nil {
		p.t.Fatal(err)
	}
	return size
}
