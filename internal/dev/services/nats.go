package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// A start may have to read a long stream back from disk.
	natsStartLimit = time.Minute
	natsStopLimit  = 30 * time.Second
	// natsLogLines is how much of the log is kept in memory.
	natsLogLines = 100
)

// NATSConfig says where and how to run NATS.
type NATSConfig struct {
	// StoreDir holds the streams; made on first use.
	StoreDir string
	// Port on 127.0.0.1; 0 means any free one.
	Port int
	// PortFlag names the setting that Port comes from, for PortTakenError.
	PortFlag string
	// SyncInterval is how often streams are synced to disk; 0 means 1 s. (The server's own default is 2 min.)
	SyncInterval time.Duration
}

// NATS is a NATS server with JetStream that runs inside this process. Stop must be called. Its methods are for one goroutine at
// a time, except ClientURL and LogTail, which any may call.
type NATS struct {
	cfg  NATSConfig
	lock *dirLock
	log  *natsLog

	mu     sync.Mutex
	port   int
	server *server.Server
}

// StartNATS starts a server on the streams of cfg.StoreDir and waits until it accepts connections. Errors include
// *PortTakenError, *StartError and ErrDirInUse.
func StartNATS(ctx context.Context, cfg NATSConfig) (*NATS, error) {
	dir, lock, err := openDir(cfg.StoreDir)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	cfg.StoreDir = dir
	if cfg.SyncInterval == 0 {
		cfg.SyncInterval = time.Second
	}
	n := &NATS{cfg: cfg, lock: lock, port: cfg.Port, log: &natsLog{}}
	if err := n.launch(ctx); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return n, nil
}

func (n *NATS) launch(ctx context.Context) error {
	port, err := onPort(n.port, n.cfg.PortFlag, func(port int) error { return n.run(ctx, port) })
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.port = port
	n.mu.Unlock()
	return nil
}

func (n *NATS) run(ctx context.Context, port int) error {
	n.log.reset()
	s, err := server.NewServer(&server.Options{
		ServerName: "tollgate", Host: loopback, Port: port,
		JetStream: true, StoreDir: n.cfg.StoreDir, SyncInterval: n.cfg.SyncInterval,
		// The process that starts the server handles signals.
		NoSigs: true,
	})
	if err != nil {
		return &StartError{Service: "nats", Err: err}
	}
	s.SetLoggerV2(n.log, false, false, false)

	// Start returns once the streams are read and the port is bound, or after a fatal error, which is only logged.
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.Start()
	}()
	timer := time.NewTimer(natsStartLimit)
	defer timer.Stop()
	select {
	case <-started:
		if s.ReadyForConnections(time.Second) && s.JetStreamEnabled() {
			n.mu.Lock()
			n.server = s
			n.mu.Unlock()
			return nil
		}
		err = errors.New("it gave up")
	case <-timer.C:
		err = fmt.Errorf("not ready after %v", natsStartLimit)
	case <-ctx.Done():
		err = context.Cause(ctx)
		// A server that is shut down while it starts counts its goroutines and waits for them at once: a race of its own.
		select {
		case <-started:
		case <-timer.C:
		}
	}
	s.Shutdown()
	s.WaitForShutdown()
	<-started
	return &StartError{Service: "nats", Log: n.log.tail(logLines), Err: err}
}

func (n *NATS) current() *server.Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.server
}

// ClientURL is the address for clients.
func (n *NATS) ClientURL() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return "nats://" + address(n.port)
}

// LogTail returns the last lines of the server's log.
func (n *NATS) LogTail() string { return n.log.tail(logLines) }

// Stop cuts off all clients and ends the server; what its streams hold is on disk. Idempotent.
func (n *NATS) Stop(ctx context.Context) error {
	err := n.Shutdown(ctx)
	if err = errors.Join(err, n.lock.release()); err != nil {
		return fmt.Errorf("stop nats: %w", err)
	}
	return nil
}

// Shutdown ends the server as Stop does, but keeps its place, so that Restart can start it again: the way to test an outage.
func (n *NATS) Shutdown(ctx context.Context) error {
	s := n.current()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Shutdown()
		s.WaitForShutdown()
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, natsStopLimit, fmt.Errorf("nats still runs after %v", natsStopLimit))
	defer cancel()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Empty ends the server as Shutdown does and deletes all its streams, as the loss of its disk does.
func (n *NATS) Empty(ctx context.Context) error {
	if err := n.Shutdown(ctx); err != nil {
		return fmt.Errorf("empty nats: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(n.cfg.StoreDir, server.JetStreamStoreDir)); err != nil {
		return fmt.Errorf("empty nats: %w", err)
	}
	return nil
}

// Restart ends the server if it runs and starts it on the same port and streams. After Stop it is an error.
func (n *NATS) Restart(ctx context.Context) error {
	if err := n.lock.held(); err != nil {
		return fmt.Errorf("restart nats: %w", err)
	}
	if err := n.Shutdown(ctx); err != nil {
		return fmt.Errorf("restart nats: %w", err)
	}
	return n.launch(ctx)
}

// natsLog keeps the server's last log lines in memory. It is safe for concurrent use.
type natsLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *natsLog) add(level, format string, args ...any) {
	line := time.Now().UTC().Format(time.RFC3339) + " " + level + " " + fmt.Sprintf(format, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == natsLogLines {
		l.lines = append(l.lines[:0], l.lines[1:]...)
	}
	l.lines = append(l.lines, line)
}

func (l *natsLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = nil
}

func (l *natsLog) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines[max(0, len(l.lines)-n):], "\n")
}

// These methods make natsLog a server.Logger.

func (l *natsLog) Noticef(format string, args ...any) { l.add("info", format, args...) }
func (l *natsLog) Warnf(format string, args ...any)   { l.add("warn", format, args...) }
func (l *natsLog) Errorf(format string, args ...any)  { l.add("error", format, args...) }
func (l *natsLog) Fatalf(format string, args ...any)  { l.add("fatal", format, args...) }
func (l *natsLog) Debugf(string, ...any)              {}
func (l *natsLog) Tracef(string, ...any)              {}
