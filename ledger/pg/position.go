package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Position is how far a database is known to hold the stream, and which database it is.
type Position struct {
	Database string    // of a restored copy and after a failover it is another; of the same files it is the same
	Mark     int64     // rises with every note; 0 before the first
	Stream   time.Time // when the stream was made; zero before the first note
	Sequence uint64    // of that stream, up to which this database holds everything that was published
	NotedAt  time.Time

	server string // this run of the server: what Accept lets in
}

// ErrNotAccepted is returned by every method of a guarded store but Position while the server is another one than Accept has let
// in, or was started anew since.
var ErrNotAccepted = errors.New("the database server is another one, or was restarted, and has not been compared with what was settled")

// acceptance marks the contexts of what may run on a server that was not accepted.
type acceptance struct{}

// serverKey is where a connection keeps which run of which server it goes to.
const serverKey = "tollgate.server"

// A connection never outlives the server's run, so it is asked once.
func noteServer(ctx context.Context, conn *pgx.Conn) error {
	const query = `
SELECT pg_postmaster_start_time()::text || ' ' || (SELECT oid FROM pg_database WHERE datname = current_database())`
	var server string
	if err := conn.QueryRow(ctx, query).Scan(&server); err != nil {
		return fmt.Errorf("ask which server this is: %w", err)
	}
	conn.PgConn().CustomData()[serverKey] = server
	return nil
}

// admit keeps statements away from a server that was not accepted.
func (s *Store) admit(ctx context.Context, conn *pgx.Conn) (bool, error) {
	if ctx.Value(acceptance{}) != nil {
		return true, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.staleLocked(serverOf(conn)) {
		return true, ErrNotAccepted
	}
	return true, nil
}

// serverOf is which run of which server the connection goes to.
func serverOf(conn *pgx.Conn) string {
	server, _ := conn.PgConn().CustomData()[serverKey].(string)
	return server
}

// staleLocked reports whether the server was not accepted, or another one was since.
func (s *Store) staleLocked(server string) bool { return s.guarded && server != s.accepted }

// Guard has every method but Position and NotePosition return ErrNotAccepted until Accept has let the server in.
func (s *Store) Guard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guarded = true
}

// Accept lets statements run on the server that the position was read from, until it is another one or is started anew.
func (s *Store) Accept(p Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted != p.server {
		s.accepted, s.accounts, s.families = p.server, map[string]int64{}, nil // ids and versions may be others there
	}
}

// Position reads how far the database holds the stream, also of a server that was not accepted.
func (s *Store) Position(ctx context.Context) (Position, error) {
	// The timeline is the one that is written to now: a replica's rises when it is promoted.
	const query = `
SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
    || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()),
    mark, stream, sequence, noted_at
FROM ledger_position`
	var p Position
	err := s.unguarded(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var stream *time.Time
		if err := conn.QueryRow(ctx, query).Scan(&p.Database, &p.Mark, &stream, &p.Sequence, &p.NotedAt); err != nil {
			return err
		}
		p.Stream = fromNull(stream)
		p.server = serverOf(conn)
		return nil
	})
	if err != nil {
		return p, fmt.Errorf("read the ledger's position: %w", err)
	}
	return p, nil
}

// NotePosition keeps the position in the database that it was read from, unless a mark as high is there already. Everything up
// to its sequence must have been committed there before.
func (s *Store) NotePosition(ctx context.Context, p Position) error {
	const query = `UPDATE ledger_position SET mark = $1, stream = $2, sequence = $3, noted_at = now() WHERE mark < $1`
	err := s.unguarded(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if serverOf(conn) != p.server {
			return ErrNotAccepted
		}
		_, err := conn.Exec(ctx, query, p.Mark, orNull(p.Stream), p.Sequence)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the ledger's position: %w", err)
	}
	return nil
}

func (s *Store) unguarded(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	conn, err := s.pool.Acquire(context.WithValue(ctx, acceptance{}, true))
	if err != nil {
		return err
	}
	defer conn.Release()
	return do(ctx, conn.Conn())
}
