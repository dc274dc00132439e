// Package migrations holds the database schema as goose migrations, embedded in the binary, and applies them.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// State is one migration and whether the database has it.
type State struct {
	Version   int64
	Name      string
	Applied   bool
	AppliedAt time.Time // zero while not applied
}

// Up applies every migration that the database lacks. Several processes may call it at once: one migrates, the others wait
// for it and find nothing to do.
func Up(ctx context.Context, databaseURL string) error {
	return with(databaseURL, func(p *goose.Provider) error {
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate up: %w", err)
		}
		return nil
	})
}

// DownTo takes back every migration above version, newest first; 0 takes back all.
func DownTo(ctx context.Context, databaseURL string, version int64) error {
	return with(databaseURL, func(p *goose.Provider) error {
		if _, err := p.DownTo(ctx, version); err != nil {
			return fmt.Errorf("migrate down to %d: %w", version, err)
		}
		return nil
	})
}

// Status lists the embedded migrations, oldest first, and whether each is applied. It changes nothing but goose's own
// version table, which it creates in a fresh database.
func Status(ctx context.Context, databaseURL string) ([]State, error) {
	var states []State
	err := with(databaseURL, func(p *goose.Provider) error {
		list, err := p.Status(ctx)
		if err != nil {
			return fmt.Errorf("migration status: %w", err)
		}
		for _, m := range list {
			states = append(states, State{
				Version: m.Source.Version, Name: m.Source.Path,
				Applied: m.State == goose.StateApplied, AppliedAt: m.AppliedAt.UTC(),
			})
		}
		return nil
	})
	return states, err
}

func with(databaseURL string, work func(*goose.Provider) error) (err error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return fmt.Errorf("database URL: %w", err)
	}
	db := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := newProvider(db)
	if err != nil {
		return err
	}
	return work(provider)
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	// One attempt a second, for five minutes in all: as long as a slow migration elsewhere may take.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, fmt.Errorf("migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return provider, nil
}
