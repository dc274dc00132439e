package services

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/internal/dev/services/child"
)

const (
	postgresUser = "postgres"
	// A start may have to replay the log of a server that was killed.
	postgresStartLimit = 2 * time.Minute
	postgresStopGrace  = 10 * time.Second
	// orphanLimit is how long a server that lost its parent may take to end.
	orphanLimit = 10 * time.Second
)

// PostgresConfig says where and how to run Postgres.
type PostgresConfig struct {
	// DataDir holds the cluster, its password and its log; made on first use.
	DataDir string
	// Port on 127.0.0.1; 0 means any free one.
	Port int
	// PortFlag names the setting that Port comes from, for PortTakenError.
	PortFlag string
	// Fsync makes commits survive a power failure. Without it they survive only the death of processes.
	Fsync bool
	// CacheDir is where downloaded binaries are kept; "" means the user's cache folder, or one below /var/cache for root.
	CacheDir string
}

// Postgres is a running Postgres server. Stop must be called. Its methods are for one goroutine at a time, except URL, Done and
// PID, which any may call.
type Postgres struct {
	cfg      PostgresConfig
	cluster  string // the directory that Postgres calls PGDATA
	password string
	binaries string
	runAs    *child.Credential
	reachAll bool
	lock     *dirLock

	mu   sync.Mutex
	port int
	proc *child.Process
}

// StartPostgres starts Postgres on the data of cfg.DataDir, which it creates on first use, and waits until it answers. Errors
// include *PortTakenError, *StartError, *VersionError, *NoPostgresError and ErrDirInUse.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	dir, lock, err := openDir(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	cfg.DataDir = dir
	p := &Postgres{cfg: cfg, cluster: filepath.Join(dir, "data"), lock: lock, port: cfg.Port}
	// A taken port is worth knowing before a cluster is made.
	if _, err := claimPort(cfg.Port, cfg.PortFlag); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	if err := p.launch(ctx); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return p, nil
}

// launch starts the server on the cluster that prepare left.
func (p *Postgres) launch(ctx context.Context) error {
	stale, err := clearStaleLock(ctx, p.cluster)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(orphanLimit)
	for {
		port, err := onPort(p.port, p.cfg.PortFlag, func(port int) error { return p.run(ctx, port) })
		if err == nil {
			p.mu.Lock()
			p.port = port
			p.mu.Unlock()
			return nil
		}
		// Sessions of a server that was killed hold its shared memory until they notice; until then a new server refuses.
		var taken *PortTakenError
		if !stale || errors.As(err, &taken) || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(10 * pollEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (p *Postgres) run(ctx context.Context, port int) error {
	args := []string{"-D", p.cluster, "-p", fmt.Sprint(port)}
	for _, setting := range p.settings() {
		args = append(args, "-c", setting)
	}
	proc, err := p.spawn(filepath.Join(p.binaries, "postgres"), args, "postgres.log", syscall.SIGQUIT)
	if err != nil {
		return err
	}
	target := p.address(port, "postgres")
	err = awaitReady(ctx, "postgres", proc, postgresStartLimit, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, target)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.proc = proc
	p.mu.Unlock()
	return nil
}

// settings fit a machine that also runs everything else: little memory, no replication, no Unix socket.
func (p *Postgres) settings() []string {
	set := []string{
		"listen_addresses=" + loopback,
		"unix_socket_directories=",
		"max_connections=200",
		"shared_buffers=64MB",
		"wal_level=minimal",
		"max_wal_senders=0",
		"max_wal_size=1GB",
		"jit=off",
		// Parallel queries need shared memory that small containers lack.
		"max_parallel_workers_per_gather=0",
		"timezone=UTC",
		"log_timezone=UTC",
		"logging_collector=off",
	}
	if !p.cfg.Fsync {
		// Commits still wait for the operating system to have them: a server that is killed must not lose any.
		set = append(set, "fsync=off", "full_page_writes=off")
	}
	return set
}

// spawn runs one of the Postgres programs as the user who owns the cluster.
func (p *Postgres) spawn(path string, args []string, log string, death syscall.Signal) (*child.Process, error) {
	return child.Start(child.Config{
		Path: path, Args: args, Env: postgresEnv(), Dir: "/",
		LogPath: filepath.Join(p.cfg.DataDir, log), DeathSignal: death,
		RunAs: p.runAs, ReachAll: p.reachAll,
	})
}

func (p *Postgres) address(port int, db string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(postgresUser, p.password), Host: address(port),
		Path: "/" + db, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// URL is the address of a database, with the superuser's password. The database postgres always exists.
func (p *Postgres) URL(db string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address(p.port, db)
}

// CreateDatabase makes a database if it does not exist.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if isDuplicateDatabase(err) {
		err = nil
	}
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func (p *Postgres) process() *child.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc
}

// PID is the server's process id.
func (p *Postgres) PID() int { return p.process().PID() }

// Done is closed when the server of the last start has ended, by Stop or by itself.
func (p *Postgres) Done() <-chan struct{} { return p.process().Done() }

// LogTail returns the last lines of the server's log.
func (p *Postgres) LogTail() string { return p.process().LogTail(logLines) }

// Stop ends the server: sessions are cut off and their transactions rolled back; a server that hangs, or has not ended when ctx
// does, is ended without a checkpoint. The data stays. Idempotent.
func (p *Postgres) Stop(ctx context.Context) error {
	err := p.process().Stop(ctx, postgresStopGrace, syscall.SIGINT, syscall.SIGQUIT)
	if err = errors.Join(err, p.lock.release()); err != nil {
		return fmt.Errorf("stop postgres: %w", err)
	}
	return nil
}

// Kill ends the server and its sessions with SIGKILL; Restart starts it again.
func (p *Postgres) Kill() error { return p.process().Kill() }

// Pause stops the server and its sessions with SIGSTOP (Linux only: elsewhere open sessions go on).
func (p *Postgres) Pause() error { return p.process().Pause() }

// Resume ends a Pause.
func (p *Postgres) Resume() error { return p.process().Resume() }

// Restart stops the server if it runs and starts it on the same port and data. After Stop it is an error.
func (p *Postgres) Restart(ctx context.Context) error {
	if err := p.lock.held(); err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	if err := p.process().Stop(ctx, postgresStopGrace, syscall.SIGINT, syscall.SIGQUIT); err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	return p.launch(ctx)
}
