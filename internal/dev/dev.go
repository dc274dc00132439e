package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/internal/dev/services"
	"tollgate/internal/telemetry"
	"tollgate/ledger/pg"
)

// Config says where the system runs and what it starts with.
type Config struct {
	Data      string // folder of everything that is kept; made on first use
	Listen    string // address of the data plane
	Admin     string // address of the admin plane
	Policy    string // file; "" is the policy that was pushed last, else the built-in one
	Ephemeral bool   // keep nothing: Data is not used
	LogLevel  string
}

// system is what runs; the parts are stopped in the reverse order of their start.
type system struct {
	config  Config
	out     io.Writer
	dir     string
	log     *slog.Logger
	stops   []stop
	failure chan error // the first part that ended by itself

	data, admin net.Listener
	postgres    *services.Postgres
	redis       *services.Redis
	nats        *services.NATS
	nc          *nats.Conn
	store       *pg.Store
	policy      chosen
	databaseURL string
	simURL      string // "" without a simulator
	adminToken  string
	demoKey     string

	settlerMetrics prometheus.Gatherer
}

type stop struct {
	name string
	run  func(context.Context) error
}

// Run starts everything, prints one block when it is ready, and stops everything when ctx ends or a part fails. Nothing is
// left running; the data stays, unless it was asked to be ephemeral.
func Run(ctx context.Context, config Config, out io.Writer) (err error) {
	ctx, release := withGoRun(ctx, os.Getppid)
	defer release()
	s := &system{config: config, out: out, failure: make(chan error, 1)}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"claim addresses", s.claimAddresses},
		{"open data folder", s.openFolder},
		{"start NATS", s.startNATS},
		{"choose policy", s.choosePolicy},
		{"start provider simulator", s.startSim},
		{"read policy", s.readPolicy},
		{"start Postgres", s.startPostgres},
		{"start Redis", s.startRedis},
		{"start settler", s.startSettler},
		{"make demo key", s.makeDemoKey},
		{"make admin token", s.makeAdminToken},
		{"start gateway", s.startGateway},
	} {
		if err := step.run(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // asked to stop while starting
			}
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if err := s.announce(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nstopping …")
		return nil
	case err := <-s.failure:
		return err
	}
}

// claimAddresses takes the two known addresses before anything is started, so that a taken one is told at once.
func (s *system) claimAddresses(context.Context) error {
	var err error
	if s.data, err = claim(s.config.Listen, "--listen"); err != nil {
		return err
	}
	s.onStop("data plane address", func(context.Context) error { return ignoreClosed(s.data.Close()) })
	if s.admin, err = claim(s.config.Admin, "--admin"); err != nil {
		return err
	}
	s.onStop("admin plane address", func(context.Context) error { return ignoreClosed(s.admin.Close()) })
	return nil
}

func claim(address, flag string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("address %s cannot be used, choose another with %s: %w", address, flag, err)
	}
	return listener, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *system) openFolder(context.Context) error {
	dir := s.config.Data
	if s.config.Ephemeral {
		var err error
		if dir, err = os.MkdirTemp("", "tollgate-dev-"); err != nil {
			return err
		}
		s.onStop("remove data", func(context.Context) error { return os.RemoveAll(dir) })
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := s.lockFolder(dir); err != nil {
		return err
	}
	s.dir = dir
	// One that a killed run left would tell of addresses that nobody serves.
	if err := os.RemoveAll(s.envPath()); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "dev.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s.onStop("log", func(context.Context) error { return file.Close() })
	s.log, err = telemetry.NewLogger(file, telemetry.Config{Level: s.config.LogLevel})
	return err
}

// lockFolder keeps a second run away from the folder; the kernel releases the lock with the process.
func (s *system) lockFolder(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("%s is in use by another 'tollgate dev', choose another folder with --data: %w", dir, err), lock.Close())
	}
	s.onStop("lock", func(context.Context) error { return lock.Close() })
	return nil
}

func (s *system) onStop(name string, run func(context.Context) error) {
	s.stops = append(s.stops, stop{name, run})
}

// fail ends the run because a part ended by itself.
func (s *system) fail(err error) {
	select {
	case s.failure <- err:
	default:
	}
}

// stop runs every stop step, last in first out; a failing step does not stop the rest.
func (s *system) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), stopTimeout, errors.New("dev: parts did not stop in time"))
	defer cancel()
	var problems []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		if err := s.stops[i].run(ctx); err != nil {
			problems = append(problems, fmt.Errorf("stop %s: %w", s.stops[i].name, err))
		}
	}
	return errors.Join(problems...)
}
