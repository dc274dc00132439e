package services

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"

	"tollgate/internal/dev/services/child"
)

const (
	// A start may have to read a long append-only file.
	redisStartLimit = time.Minute
	redisStopGrace  = 10 * time.Second
)

// ErrInProcess is returned where a fault is asked of a Redis that runs inside this process.
var ErrInProcess = errors.New("redis runs inside this process")

// RedisConfig says where and how to run Redis.
type RedisConfig struct {
	// DataDir holds the append-only file and the log; made on first use.
	DataDir string
	// Port on 127.0.0.1; 0 means any free one.
	Port int
	// PortFlag names the setting that Port comes from, for PortTakenError.
	PortFlag string
	// AOF keeps the data across restarts, in an append-only file synced every second.
	AOF bool
	// Databases is how many numbered databases there are; 0 means Redis' default of 16.
	Databases int
}

// Redis is a running Redis. Stop must be called. Its methods are for one goroutine at a time, except URL, Done and PID, which
// any may call.
type Redis struct {
	// InProcess tells that no redis-server was found and a substitute runs inside this process. It keeps nothing on disk, knows
	// no faults (Kill, Pause and Resume return ErrInProcess), and prints some numbers in Lua scripts differently.
	InProcess bool

	cfg  RedisConfig
	path string
	lock *dirLock
	mini *miniredis.Miniredis
	end  func() // closes the Done of an in-process Redis; idempotent
	done chan struct{}

	mu   sync.Mutex
	port int
	proc *child.Process
}

// StartRedis starts the redis-server found in PATH, or a substitute inside this process, and waits until it answers. Errors
// include *PortTakenError, *StartError and ErrDirInUse.
func StartRedis(ctx context.Context, cfg RedisConfig) (*Redis, error) {
	dir, lock, err := openDir(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	cfg.DataDir = dir
	r := &Redis{cfg: cfg, lock: lock, port: cfg.Port}
	if r.path, err = exec.LookPath("redis-server"); err != nil {
		err = r.startInProcess()
	} else {
		err = r.launch(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return r, nil
}

func (r *Redis) startInProcess() error {
	mini := miniredis.NewMiniRedis()
	// Without this, keys would never expire.
	mini.ClockTTL(true)
	port, err := onPort(r.port, r.cfg.PortFlag, func(port int) error { return mini.StartAddr(address(port)) })
	if err != nil {
		return err
	}
	done := make(chan struct{})
	r.InProcess, r.mini, r.port = true, mini, port
	r.done, r.end = done, sync.OnceFunc(func() { mini.Close(); close(done) })
	return nil
}

func (r *Redis) launch(ctx context.Context) error {
	port, err := onPort(r.port, r.cfg.PortFlag, func(port int) error { return r.run(ctx, port) })
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.port = port
	r.mu.Unlock()
	return nil
}

func (r *Redis) run(ctx context.Context, port int) error {
	aof := "no"
	if r.cfg.AOF {
		aof = "yes"
	}
	args := []string{
		"--port", strconv.Itoa(port), "--bind", loopback, "--protected-mode", "yes", "--daemonize", "no", "--logfile", "",
		"--dir", r.cfg.DataDir, "--save", "", "--appendonly", aof, "--appendfsync", "everysec",
		"--maxmemory-policy", "noeviction",
	}
	if r.cfg.Databases != 0 {
		args = append(args, "--databases", strconv.Itoa(r.cfg.Databases))
	}
	proc, err := child.Start(child.Config{
		Path: r.path, Args: args, Dir: r.cfg.DataDir, LogPath: filepath.Join(r.cfg.DataDir, "redis.log"),
	})
	if err != nil {
		return err
	}
	err = awaitReady(ctx, "redis", proc, redisStartLimit, func(ctx context.Context) error {
		return askRedis(ctx, address(port), proc.PID())
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.proc = proc
	r.mu.Unlock()
	return nil
}

// askRedis returns nil if the server at addr is ready and runs as process pid. Another server may have taken the port first.
func askRedis(ctx context.Context, addr string, pid int) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "PING\r\nINFO server\r\n"); err != nil {
		return err
	}
	lines := bufio.NewScanner(conn)
	for first := true; lines.Scan(); first = false {
		line := lines.Text()
		if first && line != "+PONG" {
			return fmt.Errorf("redis answered %q", line)
		}
		if got, found := strings.CutPrefix(line, "process_id:"); found {
			if got != strconv.Itoa(pid) {
				return fmt.Errorf("redis at %s is process %s, not %d", addr, got, pid)
			}
			return nil
		}
	}
	return errors.Join(lines.Err(), errors.New("redis did not tell its process id"))
}

func (r *Redis) process() *child.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc
}

// Addr is host:port.
func (r *Redis) Addr() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return address(r.port)
}

// URL is the address of a numbered database; 0 is the usual one.
func (r *Redis) URL(db int) string { return fmt.Sprintf("redis://%s/%d", r.Addr(), db) }

// PID is the server's process id, 0 for one inside this process.
func (r *Redis) PID() int {
	if r.InProcess {
		return 0
	}
	return r.process().PID()
}

// Done is closed when the server of the last start has ended, by Stop or by itself.
func (r *Redis) Done() <-chan struct{} {
	if r.InProcess {
		return r.done
	}
	return r.process().Done()
}

// LogTail returns the last lines of the server's log; one inside this process has none.
func (r *Redis) LogTail() string {
	if r.InProcess {
		return ""
	}
	return r.process().LogTail(logLines)
}

// Stop ends the server; one that hangs, or has not ended when ctx does, is killed. Idempotent.
func (r *Redis) Stop(ctx context.Context) error {
	var err error
	if r.InProcess {
		r.end()
	} else {
		err = r.process().Stop(ctx, redisStopGrace, syscall.SIGTERM)
	}
	if err = errors.Join(err, r.lock.release()); err != nil {
		return fmt.Errorf("stop redis: %w", err)
	}
	return nil
}

// Kill ends the server with SIGKILL; Restart starts it again.
func (r *Redis) Kill() error {
	return r.fault((*child.Process).Kill)
}

// Pause stops the server with SIGSTOP: it accepts connections and answers nothing.
func (r *Redis) Pause() error {
	return r.fault((*child.Process).Pause)
}

// Resume ends a Pause.
func (r *Redis) Resume() error {
	return r.fault((*child.Process).Resume)
}

func (r *Redis) fault(do func(*child.Process) error) error {
	if r.InProcess {
		return ErrInProcess
	}
	return do(r.process())
}

// Restart stops the server if it runs and starts it on the same port; without AOF it comes back empty. One inside this process
// only drops its connections. After Stop it is an error.
func (r *Redis) Restart(ctx context.Context) error {
	if err := r.lock.held(); err != nil {
		return fmt.Errorf("restart redis: %w", err)
	}
	if r.InProcess {
		r.mini.Close()
		if err := r.mini.Restart(); err != nil {
			return fmt.Errorf("restart redis: %w", err)
		}
		return nil
	}
	if err := r.process().Stop(ctx, redisStopGrace, syscall.SIGTERM); err != nil {
		return fmt.Errorf("restart redis: %w", err)
	}
	return r.launch(ctx)
}
