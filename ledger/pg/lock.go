package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// rebuildLock is the advisory lock between settlements, which share it, and a rebuild of Redis, which excludes them: from
// before a settlement's transaction until after its write-back, nobody reads budgets in order to overwrite Redis.
const rebuildLock = 0x746f6c6c // "toll"

// Session holds the advisory lock on a connection of its own. Not safe for concurrent use. The caller closes it, soon:
// see Post.
type Session struct {
	store   *Store
	conn    *pgxpool.Conn
	known   *families // what settlements count besides what events name
	hasTurn bool      // see awaitTurn
}

// Settling waits for rebuilds to end, then keeps them out until the session is closed. Settlements do not exclude each other
// until they come to the budgets.
func (s *Store) Settling(ctx context.Context) (*Session, error) {
	const query = `SELECT pg_advisory_lock_shared($1)`
	return s.session(ctx, query)
}

// Rebuilding waits for running settlements to end, then keeps new ones out until the session is closed.
func (s *Store) Rebuilding(ctx context.Context) (*Session, error) {
	const query = `SELECT pg_advisory_lock($1)`
	return s.session(ctx, query)
}

func (s *Store) session(ctx context.Context, query string) (*Session, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect for rebuild lock: %w", err)
	}
	if _, err := conn.Exec(ctx, query, rebuildLock); err != nil {
		conn.Release()
		return nil, fmt.Errorf("take rebuild lock: %w", err)
	}
	session := &Session{store: s, conn: conn}
	// A statement of its own, begun after the lock was granted: one that has waited sees what was there before.
	if session.known, err = s.knownFamilies(ctx, conn); err != nil {
		session.Close(ctx)
		return nil, err
	}
	return session, nil
}

// Held errs when the lock may have been lost, with the connection that holds it: others may have gone on meanwhile.
func (s *Session) Held(ctx context.Context) error {
	const query = `SELECT 1`
	if _, err := s.conn.Exec(ctx, query); err != nil {
		return fmt.Errorf("ask whether the rebuild lock is held: %w", err)
	}
	return nil
}

// awaitTurn waits until no other session of the store is between its budgets and its end: what the store's settlements say of a budget
// reaches Redis in the order of its versions. The batches wait for each other's budgets anyway, and do all else side by side.
func (s *Session) awaitTurn(ctx context.Context) error {
	select {
	case s.store.turn <- struct{}{}:
		s.hasTurn = true
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the batch before: %w", context.Cause(ctx))
	}
}

func (s *Session) giveTurn() {
	if s.hasTurn {
		s.hasTurn = false
		<-s.store.turn
	}
}

// Close gives the turn and the lock back, whatever became of ctx. When that cannot be said to the server, the connection is closed
// instead, which has the same effect.
func (s *Session) Close(ctx context.Context) {
	const query = `SELECT pg_advisory_unlock_all()`
	s.giveTurn()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if _, err := s.conn.Exec(ctx, query); err != nil {
		_ = s.conn.Conn().Close(ctx) // the server sees the end of the connection, now or at its keepalive
	}
	s.conn.Release()
}
