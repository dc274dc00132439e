package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"tollgate/internal/dev/services"
	"tollgate/internal/sim"
	"tollgate/ledger/pg"
	"tollgate/migrations"
)

// stopTimeout bounds the stopping of all parts together.
const stopTimeout = time.Minute

// background runs a part until the system stops: run gets a context that ends then, and has until its own stop step returns.
func (s *system) background(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := run(ctx)
		if ctx.Err() == nil {
			s.fail(fmt.Errorf("%s ended by itself: %w", name, errors.Join(err, errors.New("see dev.log"))))
		}
		done <- err
	}()
	s.onStop(name, func(stopping context.Context) error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-stopping.Done():
			return context.Cause(stopping)
		}
	})
}

// watch reports a service that ends while the system runs.
func (s *system) watch(name string, done <-chan struct{}) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-done:
			s.fail(fmt.Errorf("%s ended by itself", name))
		case <-stopped:
		}
	}()
	s.onStop("watch of "+name, func(context.Context) error {
		close(stopped)
		return nil
	})
}

func (s *system) startPostgres(ctx context.Context) error {
	var err error
	s.postgres, err = services.StartPostgres(ctx, services.PostgresConfig{
		DataDir: filepath.Join(s.dir, "postgres"), Fsync: !s.config.Ephemeral,
	})
	if err != nil {
		return err
	}
	s.onStop("Postgres", s.postgres.Stop)
	s.watch("Postgres", s.postgres.Done())
	if err := s.postgres.CreateDatabase(ctx, database); err != nil {
		return err
	}
	s.databaseURL = s.postgres.URL(database)
	if err := migrations.Up(ctx, s.databaseURL); err != nil {
		return err
	}
	s.store, err = pg.Open(ctx, s.databaseURL, 12)
	if err != nil {
		return err
	}
	s.onStop("database connections", func(context.Context) error {
		s.store.Close()
		return nil
	})
	return nil
}

const database = "tollgate"

func (s *system) startRedis(ctx context.Context) error {
	var err error
	s.redis, err = services.StartRedis(ctx, services.RedisConfig{DataDir: filepath.Join(s.dir, "redis"), AOF: true})
	if err != nil {
		return err
	}
	s.onStop("Redis", s.redis.Stop)
	s.watch("Redis", s.redis.Done())
	return nil
}

func (s *system) startNATS(ctx context.Context) error {
	var err error
	s.nats, err = services.StartNATS(ctx, services.NATSConfig{StoreDir: filepath.Join(s.dir, "nats")})
	if err != nil {
		return err
	}
	s.onStop("NATS", s.nats.Stop)
	s.nc, err = nats.Connect(s.nats.ClientURL(), nats.Name("tollgate-dev"), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	s.onStop("NATS connection", func(context.Context) error {
		s.nc.Close()
		return nil
	})
	return nil
}

// startSim adds the simulator where it is wanted; a policy reaches it through TOLLGATE_SIM_URL and TOLLGATE_SIM_KEY.
func (s *system) startSim(context.Context) error {
	if !s.wantsSim() {
		return nil
	}
	listener, err := claim("127.0.0.1:0", "another try")
	if err != nil {
		return err
	}
	config := sim.DefaultConfig()
	config.Log = s.log
	s.simURL = "http://" + listener.Addr().String()
	server := sim.New(config)
	s.background("provider simulator", func(ctx context.Context) error { return server.Run(ctx, listener) })
	return errors.Join(os.Setenv("TOLLGATE_SIM_URL", s.simURL), os.Setenv("TOLLGATE_SIM_KEY", simKey))
}

// simKey is any text: the simulator takes every key.
const simKey = "sim-dev"
