package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store is the ledger in one Postgres database. Safe for concurrent use; the caller closes it.
type Store struct {
	pool *pgxpool.Pool
	turn chan struct{} // full while a session has the turn, see Session.awaitTurn

	mu       sync.Mutex
	guarded  bool             // see Guard
	accepted string           // the server that statements may run on, see Accept
	accounts map[string]int64 // account ids by name; accounts are never renamed or removed
	families *families        // as last read; nil before that
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// defaultConns is enough for one settler: its workers, and those parts of it that use a second connection while they hold one.
const defaultConns = 12

// Open connects to databaseURL with at most maxConns connections (0: 12, or what the URL says if that is more). It does not
// wait for the server: the first statement does.
func Open(ctx context.Context, databaseURL string, maxConns int32) (*Store, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.MaxConns = max(config.MaxConns, defaultConns)
	if maxConns > 0 {
		config.MaxConns = maxConns
	}
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	config.ConnConfig.RuntimeParams["application_name"] = "tollgate"
	s := &Store{accounts: map[string]int64{}, turn: make(chan struct{}, 1)}
	config.AfterConnect, config.PrepareConn = noteServer, s.admit
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return s, nil
}

// Close ends all connections; it waits for those in use.
func (s *Store) Close() { s.pool.Close() }

// Ping asks the server for an answer.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	return nil
}

// EnsurePartitions makes the monthly partitions for rows from a week before now to 45 days after. Idempotent.
func (s *Store) EnsurePartitions(ctx context.Context, now time.Time) error {
	const query = `SELECT ensure_partitions($1::date, $2::date)`
	now = now.UTC()
	if _, err := s.pool.Exec(ctx, query, now.AddDate(0, 0, -7), now.AddDate(0, 0, 45)); err != nil {
		return fmt.Errorf("ensure partitions: %w", err)
	}
	return nil
}

// MissingPartitions counts the monthly partitions of the journal that are not there for now or for ten days later. Rows of such
// a month go to the default partitions, where nothing is lost and the month stays.
func (s *Store) MissingPartitions(ctx context.Context, now time.Time) (int64, error) {
	const query = `
SELECT count(DISTINCT base || to_char(day, '_YYYY_MM'))
FROM unnest(ARRAY['events', 'transfers', 'reservations']) AS base, unnest($1::date[]) AS day
WHERE to_regclass(base || to_char(day, '_YYYY_MM')) IS NULL`
	now = now.UTC()
	var n int64
	if err := s.pool.QueryRow(ctx, query, []time.Time{now, now.AddDate(0, 0, 10)}).Scan(&n); err != nil {
		return 0, fmt.Errorf("count missing partitions: %w", err)
	}
	return n, nil
}

// Permanent reports whether an error of Post lies in the batch's data, so that repeating it cannot help: a value that a
// column cannot hold, or a broken constraint. Everything else may be retried.
func Permanent(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (strings.HasPrefix(e.Code, "22") || strings.HasPrefix(e.Code, "23")) && !raced(err)
}

// raced reports whether a transaction was rolled back for the sake of another: a deadlock, or an event that another
// settler inserted after this one had looked for it.
func raced(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == "40001" || e.Code == "40P01" || e.Code == "23505" && strings.HasPrefix(e.TableName, "events")
}

// clean makes text that came from outside storable: Postgres takes neither invalid UTF-8 nor NUL.
func clean(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 { // almost every text, and in half the time
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// epoch starts the window of a budget that never resets.
var epoch = time.Unix(0, 0).UTC()

// orEpoch is t, or the epoch for the zero time.
func orEpoch(t time.Time) time.Time {
	if t.IsZero() {
		return epoch
	}
	return t.UTC()
}

// orNull is t, or NULL for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// fromNull is the inverse of orNull.
func fromNull(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
