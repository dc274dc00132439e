// Package stack gives tests real servers: Postgres, Redis, NATS, the tollgate binary, and a TCP proxy that breaks connections.
//
// A package that uses it calls Main from its TestMain. Postgres and the shared Redis start once per test process, when a test
// first asks; each test gets a database of its own in them. What a test starts for itself ends with the test, and everything
// ends with the process, also when it is killed (on Linux). A service that is missing fails the test.
package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	// startLimit bounds the start of any one server.
	startLimit = 2 * time.Minute
	stopLimit  = 2 * time.Minute
)

// Options of Main.
type Options struct {
	// Migrate brings an empty database to the schema that Postgres hands to tests; nil leaves it empty.
	Migrate func(ctx context.Context, databaseURL string) error
	// Leaks are passed to the check for goroutines left at the end.
	Leaks []goleak.Option
}

// shared is what the tests of this process have in common. Test processes have one TestMain, so it is a variable.
var shared struct {
	mu   sync.Mutex
	opts Options
	dir  string // "" before Main
	stop []func(context.Context) error
}

// Main runs the tests, ends what they shared, fails if a goroutine is left, and exits the process.
//
//	func TestMain(m *testing.M) { stack.Main(m, stack.Options{Migrate: migrations.Up}) }
func Main(m *testing.M, opts Options) {
	os.Exit(run(m, opts))
}

func run(m *testing.M, opts Options) int {
	sweep()
	dir, owner, err := newDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		return 1
	}
	shared.mu.Lock()
	shared.opts, shared.dir = opts, dir
	shared.mu.Unlock()

	code := m.Run()

	if err := errors.Join(stopShared(), owner.Close(), os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := findLeaks(opts.Leaks); err != nil {
			fmt.Fprintln(os.Stderr, "stack: goroutines left after the tests:", err)
			code = 1
		}
	}
	return code
}

// findLeaks gives goroutines that are about to end longer for it than the second that goleak does.
func findLeaks(known []goleak.Option) error {
	for deadline := time.Now().Add(20 * time.Second); ; {
		err := goleak.Find(known...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func stopShared() error {
	shared.mu.Lock()
	stops := shared.stop
	shared.stop = nil
	shared.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	var err error
	for i := len(stops) - 1; i >= 0; i-- {
		err = errors.Join(err, stops[i](ctx))
	}
	return err
}

// onExit has Main call stop when the tests are over.
func onExit(stop func(context.Context) error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.stop = append(shared.stop, stop)
}

// sharedDir is the process's directory for name, which it makes.
func sharedDir(name string) (string, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.dir == "" {
		return "", errors.New("TestMain must call stack.Main")
	}
	dir := filepath.Join(shared.dir, name)
	return dir, os.MkdirAll(dir, 0o755)
}

// dirPattern names the directories of all test processes; ownerFile in each is locked while its process lives.
const (
	dirPattern = "tollgate-test-*"
	ownerFile  = "owner"
)

func newDir() (string, *os.File, error) {
	dir, err := os.MkdirTemp("", dirPattern)
	if err != nil {
		return "", nil, err
	}
	// Root's Postgres runs as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", nil, err
	}
	owner, err := os.Create(filepath.Join(dir, ownerFile))
	if err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(owner.Fd()), syscall.LOCK_EX); err != nil {
		return "", nil, errors.Join(err, owner.Close())
	}
	return dir, owner, nil
}

// sweep removes what test processes that were killed left behind. It is best effort: what cannot be removed, another user's for
// example, does no harm.
func sweep() {
	owners, err := filepath.Glob(filepath.Join(os.TempDir(), dirPattern, ownerFile))
	if err != nil {
		return
	}
	for _, path := range owners {
		// A young one may not have its lock yet.
		info, err := os.Stat(path)
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		owner, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(owner.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = owner.Close()
	}
}

// cleanup stops a server that belongs to one test when the test ends.
func cleanup(t testing.TB, what string, stop func(context.Context) error) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		if err := stop(ctx); err != nil {
			t.Errorf("stop %s: %v", what, err)
		}
	})
}
