package chaos

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/e2e/system"
)

// The ledger's database, its copy, and what it is called once the copy has taken its place.
const (
	ledgerDatabase = "tollgate"
	copiedDatabase = "copied"
	lostDatabase   = "lost"
)

// copyLedger copies the database as it is now. Sessions are cut off: only a database without any can be copied.
func (r *run) copyLedger() {
	r.alone("CREATE DATABASE " + copiedDatabase + " TEMPLATE " + ledgerDatabase)
	r.administer("ALTER DATABASE " + ledgerDatabase + " ALLOW_CONNECTIONS true")
}

// restoreLedger puts the copy in the database's place: what was settled since is not there any more.
func (r *run) restoreLedger() {
	r.alone("ALTER DATABASE " + ledgerDatabase + " RENAME TO " + lostDatabase)
	r.administer("ALTER DATABASE " + copiedDatabase + " RENAME TO " + ledgerDatabase)
}

// alone executes a statement once nobody uses the ledger's database, and leaves it closed.
func (r *run) alone(statement string) {
	r.administer("ALTER DATABASE " + ledgerDatabase + " ALLOW_CONNECTIONS false")
	r.Eventually(system.Patience, statement, func() error {
		return r.tryAdminister(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+ledgerDatabase+`'`, statement)
	})
}

func (r *run) administer(statement string) { r.do(r.tryAdminister(statement)) }

func (r *run) tryAdminister(statements ...string) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.Postgres.URL("postgres"))
	if err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err = conn.Exec(ctx, statement); err != nil {
			break
		}
	}
	return errors.Join(err, conn.Close(ctx))
}
