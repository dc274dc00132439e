package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"tollgate/internal/dev/services/child"
)

const (
	loopback = "127.0.0.1"
	// pollEvery is how often a starting service is asked whether it is ready.
	pollEvery = 20 * time.Millisecond
	// probeLimit bounds one such question.
	probeLimit = 2 * time.Second
	// logLines is how much of a service's log an error carries.
	logLines = 20
	// portTries is how often another free port is tried when the one picked is taken before the service binds it.
	portTries = 5
)

// PortTakenError is returned by a Start function when another process listens on the port that was asked for.
type PortTakenError struct {
	Addr string // host:port
	Flag string // how the user chooses another port; may be empty
}

func (e *PortTakenError) Error() string {
	if e.Flag == "" {
		return fmt.Sprintf("address %s is taken by another process", e.Addr)
	}
	return fmt.Sprintf("address %s is taken by another process; choose another with %s", e.Addr, e.Flag)
}

// StartError is returned by a Start function when the service itself gave up or was not ready in time.
type StartError struct {
	Service string
	Log     string // the last lines of the service's log
	Err     error
}

func (e *StartError) Error() string {
	text := fmt.Sprintf("start %s: %v", e.Service, e.Err)
	if e.Log != "" {
		text += "; its log ends with:\n" + e.Log
	}
	return text
}

func (e *StartError) Unwrap() error { return e.Err }

// ErrDirInUse is returned by a Start function whose data directory another service holds.
var ErrDirInUse = errors.New("directory is in use by another process")

// dirLock is the lock on a data directory; the kernel releases it when the process dies.
type dirLock struct{ file *os.File }

func lockDir(dir string) (*dirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrDirInUse
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return &dirLock{f}, nil
}

// release is idempotent. Closing alone would not do: a process that is just being started holds a copy of the file for a moment.
func (l *dirLock) release() error {
	if l.held() != nil {
		return nil
	}
	err := syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	if err = errors.Join(err, l.file.Close()); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// held returns an error once the lock has been released.
func (l *dirLock) held() error {
	if _, err := l.file.Stat(); err != nil {
		return fmt.Errorf("stopped for good: %w", err)
	}
	return nil
}

// openDir makes and locks a data directory and returns its absolute path.
func openDir(dir string) (string, *dirLock, error) {
	if dir == "" {
		return "", nil, errors.New("no data directory given")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockDir(dir)
	return dir, lock, err
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// claimPort returns a port that nobody listens on: the one asked for, or any for 0.
func claimPort(port int, flag string) (int, error) {
	l, err := net.Listen("tcp4", address(port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return 0, &PortTakenError{Addr: address(port), Flag: flag}
	}
	if err != nil {
		return 0, fmt.Errorf("listen on %s: %w", address(port), err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("listen on %s: %w", address(port), err)
	}
	return port, nil
}

// onPort starts a service on the port asked for, or on any for 0. Between the look for a free port and the service's own bind
// another process may take it: then another free one is tried, or the error says whose port it was.
func onPort(port int, flag string, start func(port int) error) (int, error) {
	for try := 1; ; try++ {
		p, err := claimPort(port, flag)
		if err != nil {
			return 0, err
		}
		err = start(p)
		if err == nil {
			return p, nil
		}
		_, free := claimPort(p, flag)
		var taken *PortTakenError
		if !errors.As(free, &taken) {
			return 0, err
		}
		if port != 0 {
			return 0, taken
		}
		if try == portTries {
			return 0, err
		}
	}
}

// awaitReady asks a starting child until probe succeeds, the child ends or the time is over. In the last two cases the child is
// gone when it returns, and the error carries its log.
func awaitReady(ctx context.Context, service string, p *child.Process, limit time.Duration, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not ready after %v", limit))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		// Bounded by itself: a stranger on the port may accept connections and never answer.
		probeCtx, probed := context.WithTimeout(ctx, probeLimit)
		probeErr := probe(probeCtx)
		probed()
		if probeErr == nil {
			return nil
		}
		select {
		case <-tick.C:
			continue
		case <-p.Done():
			ended := p.Err()
			if ended == nil {
				ended = errors.New("exit status 0")
			}
			return &StartError{Service: service, Log: p.LogTail(logLines), Err: fmt.Errorf("it ended: %w", ended)}
		case <-ctx.Done():
			log := p.LogTail(logLines)
			err := fmt.Errorf("%w (last answer: %v)", context.Cause(ctx), probeErr)
			return &StartError{Service: service, Log: log, Err: errors.Join(err, p.Kill())}
		}
	}
}
