// Package child runs processes that end when their parent does, logs them to a file and measures them.
//
// On Linux the kernel sends a child its death signal when the parent dies, however it dies. On other systems only an orderly
// Stop ends a child, and Pause and Kill reach the process itself but not its own children.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Credential is the user and group a child runs as.
type Credential struct {
	UID, GID uint32
}

// Config says what to run.
type Config struct {
	Path string
	Args []string // without the program's name
	Env  []string // nil: the environment of this process
	Dir  string   // "": the working directory of this process

	// LogPath is the file that the child's standard output and error are appended to.
	LogPath string

	// RunAs, if set, is another user to run as; only root may set it.
	RunAs *Credential
	// ReachAll lets a child with RunAs open files behind folders that its user may not enter (Linux only). The program itself
	// must lie where the user may go: the capability takes effect with its start, and access(2) ignores it even then.
	ReachAll bool
	// DeathSignal is sent when this process dies; 0 means SIGKILL.
	DeathSignal syscall.Signal
}

// Process is a running or ended child. Its methods are safe for concurrent use.
type Process struct {
	cmd      *exec.Cmd
	name     string
	log      string
	logStart int64
	done     chan struct{}
	err      error // of Wait; may be read once done is closed
}

// Start runs a child in a process group of its own, so that a terminal's Ctrl-C reaches the parent alone, which then ends its
// children in order. The caller must see to it that the child ends: Stop or Kill.
func Start(cfg Config) (*Process, error) {
	logFile, err := os.OpenFile(cfg.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", cfg.Path, err)
	}
	info, err := logFile.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open log of %s: %w", cfg.Path, err), logFile.Close())
	}
	if cfg.DeathSignal == 0 {
		cfg.DeathSignal = syscall.SIGKILL
	}

	cmd := exec.Command(cfg.Path, cfg.Args...)
	cmd.Env, cmd.Dir = cfg.Env, cfg.Dir
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = attributes(cfg)
	p := &Process{cmd: cmd, name: cfg.Path, log: cfg.LogPath, logStart: info.Size(), done: make(chan struct{})}

	started := make(chan error, 1)
	go p.run(started)
	err = <-started
	// The child has its own descriptor by now.
	if closeErr := logFile.Close(); closeErr != nil && err == nil {
		err = errors.Join(closeErr, p.Kill())
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Path, err)
	}
	return p, nil
}

// run starts the child and waits for it. The kernel's parent death signal follows the thread that started the child, not the
// process, so this goroutine keeps its thread for as long as the child lives.
func (p *Process) run(started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		p.err = err
		return
	}
	p.err = p.cmd.Wait()
}

// PID is the child's process id; it stays the same after the child ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err tells how the child ended: nil for exit status 0 or while it runs, else an *exec.ExitError.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// ExitCode is the child's exit status, or -1 while it runs and when a signal ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		if p.cmd.ProcessState == nil {
			return -1
		}
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Signal sends a signal; to a child that has ended it does nothing.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to %s (%d): %w", sig, p.name, p.PID(), err)
	}
	return nil
}

// Stop ends the child with the first signal that makes it end within grace, then with SIGKILL. When ctx ends, the signals that
// remain follow at once. It returns when the child is gone; the exit status does not count as an error. Idempotent.
func (p *Process) Stop(ctx context.Context, grace time.Duration, signals ...syscall.Signal) error {
	for _, sig := range signals {
		if p.ended() {
			return nil
		}
		// A paused child takes no notice of any other signal.
		if err := errors.Join(p.Signal(sig), p.Resume()); err != nil {
			return err
		}
		timer := time.NewTimer(grace)
		select {
		case <-p.done:
			timer.Stop()
			return nil
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return p.Kill()
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Kill ends the child and its own children with SIGKILL, and returns when the child is gone. Idempotent.
func (p *Process) Kill() error {
	if p.ended() {
		return nil
	}
	// A stopped parent neither forks nor reaps, so the list of its children stays true until they are dead.
	err := p.Signal(syscall.SIGSTOP)
	for _, pid := range descendants(p.PID()) {
		err = errors.Join(err, kill(pid, syscall.SIGKILL))
	}
	err = errors.Join(err, p.Signal(syscall.SIGKILL))
	<-p.done
	return err
}

// Pause stops the child and its own children with SIGSTOP, as a machine that hangs would.
func (p *Process) Pause() error { return p.signalAll(syscall.SIGSTOP) }

// Resume ends a Pause; without one it does nothing.
func (p *Process) Resume() error { return p.signalAll(syscall.SIGCONT) }

func (p *Process) signalAll(sig syscall.Signal) error {
	if p.ended() {
		return nil
	}
	err := p.Signal(sig)
	for _, pid := range descendants(p.PID()) {
		err = errors.Join(err, kill(pid, sig))
	}
	return err
}

func kill(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v to %d: %w", sig, pid, err)
	}
	return nil
}
