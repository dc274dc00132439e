package pg

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tollgate/ledger/keys"
)

// Errors of the directory.
var (
	ErrAppExists  = errors.New("app exists already")       // by CreateApp
	ErrAppUnknown = errors.New("no such app")              // by CreateKey, DisableApp, OrderGrant
	ErrAppName    = errors.New("app name is not accepted") // by CreateApp: letters, digits, _ and -, at most 64
	ErrKeyExists  = errors.New("key exists already")       // by CreateKey
	ErrKeyUnknown = errors.New("no such key")              // by RevokeKey, OrderGrant
)

// The names of constraints that mean something to callers.
const (
	constraintAppKey  = "apps_pkey"
	constraintAppName = "apps_name_fits_a_subject"
	constraintKeyApp  = "api_keys_app_fkey"
	constraintKeyHash = "api_keys_hash_key"
	constraintKeyID   = "api_keys_pkey"
)

// App is one app of the directory.
type App struct {
	Name       string
	Plan       string // "" for the policy's
	CreatedAt  time.Time
	DisabledAt time.Time // zero while enabled
}

// Key is one API key; its secret is known to nobody but its holder.
type Key struct {
	ID        string
	App       string
	Hash      string // hexadecimal SHA-256 of the secret
	Plan      string // "" for the app's
	User      string // "" when the caller names the end user
	Name      string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero while valid
}

// CreateApp adds an app. It errs with ErrAppExists or ErrAppName.
func (s *Store) CreateApp(ctx context.Context, name, plan string) error {
	const query = `INSERT INTO apps (app, plan) VALUES ($1, $2)`
	if _, err := s.pool.Exec(ctx, query, clean(name), clean(plan)); err != nil {
		return fmt.Errorf("create app %q: %w", name, directoryError(err))
	}
	return nil
}

// DisableApp refuses all keys of the app from now on, or with disabled false accepts them again. Idempotent. It errs with
// ErrAppUnknown.
func (s *Store) DisableApp(ctx context.Context, name string, disabled bool) error {
	const query = `UPDATE apps SET disabled_at = CASE WHEN $2 THEN coalesce(disabled_at, now()) END WHERE app = $1`
	tag, err := s.pool.Exec(ctx, query, clean(name), disabled)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrAppUnknown
	}
	if err != nil {
		return fmt.Errorf("disable app %q: %w", name, err)
	}
	return nil
}

// ListApps lists the directory's apps by name.
func (s *Store) ListApps(ctx context.Context) ([]App, error) {
	const query = `SELECT app, plan, created_at, disabled_at FROM apps ORDER BY app`
	rows, err := s.pool.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("list apps: %w", err)
	}
	apps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a App, err error) {
		var disabled *time.Time
		err = row.Scan(&a.Name, &a.Plan, &a.CreatedAt, &disabled)
		a.DisabledAt = fromNull(disabled)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("list apps: %w", err)
	}
	return apps, nil
}

// CreateKey adds a key. CreatedAt and RevokedAt are ignored. It errs with ErrAppUnknown or ErrKeyExists.
func (s *Store) CreateKey(ctx context.Context, k Key) error {
	const query = `
INSERT INTO api_keys (key_id, app, hash, plan, end_user, name, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	hash, err := hex.DecodeString(k.Hash)
	if err != nil {
		return fmt.Errorf("create key %s: hash: %w", k.ID, err)
	}
	_, err = s.pool.Exec(ctx, query, clean(k.ID), clean(k.App), hash, clean(k.Plan), clean(k.User), clean(k.Name), orNull(k.ExpiresAt))
	if err != nil {
		return fmt.Errorf("create key %s: %w", k.ID, directoryError(err))
	}
	return nil
}

// RevokeKey refuses the key from now on; what it consumed stays. Idempotent. It errs with ErrKeyUnknown.
func (s *Store) RevokeKey(ctx context.Context, id string) error {
	const query = `UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE key_id = $1`
	tag, err := s.pool.Exec(ctx, query, clean(id))
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrKeyUnknown
	}
	if err != nil {
		return fmt.Errorf("revoke key %q: %w", id, err)
	}
	return nil
}

// ListKeys lists the keys of one app, or all for "", the newest last.
func (s *Store) ListKeys(ctx context.Context, app string) ([]Key, error) {
	const query = `
SELECT key_id, app, hash, plan, end_user, name, created_at, expires_at, revoked_at
FROM api_keys WHERE $1 = '' OR app = $1 ORDER BY created_at, key_id`
	rows, err := s.pool.Query(ctx, query, clean(app))
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Key, err error) {
		var hash []byte
		var expires, revoked *time.Time
		err = row.Scan(&k.ID, &k.App, &hash, &k.Plan, &k.User, &k.Name, &k.CreatedAt, &expires, &revoked)
		k.Hash, k.ExpiresAt, k.RevokedAt = hex.EncodeToString(hash), fromNull(expires), fromNull(revoked)
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	return list, nil
}

// Directory is what every gateway must know: all keys by the hash of their secret, revoked ones too.
func (s *Store) Directory(ctx context.Context) (map[string]keys.Record, error) {
	const query = `
SELECT encode(k.hash, 'hex'), k.key_id, k.app, k.end_user, k.plan, a.plan, k.expires_at, k.revoked_at IS NOT NULL, a.disabled_at IS NOT NULL
FROM api_keys k JOIN apps a ON a.app = k.app`
	rows, err := s.pool.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	directory := map[string]keys.Record{}
	var hash string
	var r keys.Record
	var expires *time.Time
	_, err = pgx.ForEachRow(rows, []any{&hash, &r.KeyID, &r.App, &r.User, &r.Plan, &r.AppPlan, &expires, &r.Revoked, &r.AppDisabled}, func() error {
		r.ExpiresAt = fromNull(expires)
		directory[hash] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	return directory, nil
}

// directoryError names the constraint that was broken in the words of the domain.
func directoryError(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	switch e.ConstraintName {
	case constraintAppKey:
		return ErrAppExists
	case constraintAppName:
		return ErrAppName
	case constraintKeyApp:
		return ErrAppUnknown
	case constraintKeyHash, constraintKeyID:
		return ErrKeyExists
	default:
		return err
	}
}
