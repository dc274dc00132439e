package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/migrations"
)

// views are what people read.
const views = `finance.requests finance.spend_daily finance.open_reservations finance.accounts finance.transfers finance.trial_balance
finance.reconciliation_runs finance.reconciliation_breaks finance.refusals_hourly finance.budget_status finance.grants finance.adjustments`

// rights are all that the roles have, a right by the objects it is for. What every role of a server has by default (to connect,
// and to make temporary tables) is not ours.
var rights = map[string]map[string]string{
	"tollgate_app": {
		"SELECT": `events transfers reservations accounts seals budgets producers parked_events policy_revisions policy_limits refusals
apps api_keys reconciliation_runs reconciliation_breaks budget_families grants grant_orders ledger_position goose_db_version journal_serial ` + views,
		"INSERT": `events transfers reservations accounts seals budgets producers parked_events policy_revisions policy_limits refusals
apps api_keys reconciliation_runs reconciliation_breaks budget_families grants grant_orders`,
		"UPDATE":  `reservations budgets producers apps api_keys reconciliation_runs reconciliation_breaks budget_families ledger_position`,
		"USAGE":   `public finance journal_serial`,
		"EXECUTE": `ensure_partitions(date,date) finance.statement(text,date)`,
	},
	"finance": {"SELECT": views, "USAGE": `public finance`, "EXECUTE": `finance.statement(text,date)`},
	"grafana": {"SELECT": views, "USAGE": `public finance`, "EXECUTE": `finance.statement(text,date)`},
}

// TestRolesHaveTheirRightsAndNoOther compares the catalogue with the table: every table, partition (also ones made later), view,
// sequence, function and schema, every right.
func TestRolesHaveTheirRightsAndNoOther(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	const query = `
WITH ours AS (SELECT oid, nspname FROM pg_namespace WHERE nspname IN ('public', 'finance')),
named AS (
    SELECT c.oid, c.relkind, CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || c.relname AS name
    FROM pg_class c JOIN ours n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S')
)
SELECT kind, name FROM (
    SELECT p AS kind, name FROM named, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
    WHERE relkind <> 'S' AND (has_table_privilege($1, named.oid, p)
        OR p NOT IN ('DELETE', 'TRUNCATE', 'TRIGGER') AND has_any_column_privilege($1, named.oid, p))
    UNION ALL
    SELECT p, name FROM named, unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) p WHERE relkind = 'S' AND has_sequence_privilege($1, named.oid, p)
    UNION ALL
    SELECT 'EXECUTE', replace(f.oid::regprocedure::text, ' ', '') FROM pg_proc f JOIN ours n ON n.oid = f.pronamespace
    WHERE has_function_privilege($1, f.oid, 'EXECUTE')
    UNION ALL
    SELECT p, nspname FROM ours, unnest(ARRAY['USAGE', 'CREATE']) p WHERE has_schema_privilege($1, ours.oid, p)
    UNION ALL
    SELECT 'CREATE', 'database' WHERE has_database_privilege($1, current_database(), 'CREATE')
    UNION ALL
    SELECT 'MEMBER', r.rolname FROM pg_roles r WHERE r.rolname <> $1 AND pg_has_role($1, r.oid, 'MEMBER')
    UNION ALL
    SELECT 'OWNER', name FROM named JOIN pg_class c USING (oid) WHERE c.relowner = $1::regrole
    UNION ALL
    SELECT 'ATTRIBUTE', 'some' FROM pg_roles
    WHERE rolname = $1 AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls OR rolcanlogin)
) x`
	for role, listed := range rights {
		var want []string
		for kind, names := range listed {
			for _, name := range strings.Fields(names) {
				want = append(want, kind+" "+name)
			}
		}
		rows, err := conn.Query(t.Context(), query, role)
		require.NoError(t, err)
		has, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			var kind, name string
			err := row.Scan(&kind, &name)
			return kind + " " + name, err
		})
		require.NoError(t, err)
		slices.Sort(want)
		slices.Sort(has)
		require.Equal(t, want, has, role)
	}
}

// migrated is a connection to a database with every migration and a partition that was made after them.
func migrated(t *testing.T) *pgx.Conn {
	t.Helper()
	url := stack.Postgres(t)
	require.NoError(t, migrations.Up(t.Context(), url))
	conn := connect(t, url)
	_, err := conn.Exec(t.Context(), `SELECT ensure_partitions('2031-05-01', '2031-05-02')`)
	require.NoError(t, err)
	return conn
}

// TestRolesTriedForReal tries on every table, partition and view what the table of rights allows, and everything else.
func TestRolesTriedForReal(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	rows, err := conn.Query(t.Context(), `
SELECT CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || c.relname, quote_ident(a.attname), c.relkind = 'v'
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN LATERAL (SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND attidentity = '' AND attgenerated = ''
    ORDER BY attnum LIMIT 1) a ON true
WHERE n.nspname IN ('public', 'finance') AND c.relkind IN ('r', 'p', 'v')
ORDER BY 1`)
	require.NoError(t, err)
	type relation struct {
		Name, Column string
		View         bool
	}
	relations, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relation])
	require.NoError(t, err)
	require.Greater(t, len(relations), 40)
	for role, listed := range rights {
		allowed := func(kind, name string) bool { return slices.Contains(strings.Fields(listed[kind]), name) }
		_, err := conn.Exec(t.Context(), "SET ROLE "+role+"; SET search_path = public") // finance has a schema of its name
		require.NoError(t, err)
		for _, r := range relations {
			tries := []struct{ kind, sql string }{{"SELECT", "SELECT count(*) FROM " + r.Name}, {"DDL", "DROP TABLE " + r.Name}}
			if r.View {
				tries[1].sql = "DROP VIEW " + r.Name
			} else {
				tries = append(tries, []struct{ kind, sql string }{
					{"INSERT", "INSERT INTO " + r.Name + " DEFAULT VALUES"},
					{"UPDATE", "UPDATE " + r.Name + " SET " + r.Column + " = NULL"},
					{"DELETE", "DELETE FROM " + r.Name},
					{"TRUNCATE", "TRUNCATE " + r.Name},
					{"DDL", "ALTER TABLE " + r.Name + " ADD COLUMN mine integer"},
					{"DDL", "ALTER TABLE " + r.Name + " DISABLE TRIGGER ALL"},
				}...)
			}
			for _, try := range tries {
				requireRight(t, conn, role, try.sql, allowed(try.kind, r.Name))
			}
		}
		for sql, may := range map[string]bool{
			"SELECT ensure_partitions('2031-05-01', '2031-05-02')":      allowed("EXECUTE", "ensure_partitions(date,date)"),
			"SELECT * FROM finance.statement('checkout', '2026-11-01')": allowed("EXECUTE", "finance.statement(text,date)"),
			"SELECT nextval('journal_serial')":                          allowed("USAGE", "journal_serial"),
			"SELECT setval('journal_serial', 1)":                        false,
			"CREATE TABLE public.mine ()":                               false,
			"CREATE VIEW finance.mine AS SELECT 1":                      false,
			"CREATE SCHEMA mine":                                        false,
			"SET session_replication_role = replica":                    false,
		} {
			requireRight(t, conn, role, sql, may)
		}
		_, err = conn.Exec(t.Context(), "RESET ROLE")
		require.NoError(t, err)
	}
}

// requireRight tries a statement and takes it back. What fails for another reason than a missing right was allowed.
func requireRight(t *testing.T, conn *pgx.Conn, role, sql string, allowed bool) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), sql)
	var problem *pgconn.PgError
	refused := errors.As(err, &problem) && problem.Code == "42501"
	require.True(t, err == nil || problem != nil, "%s: %s: %v", role, sql, err)
	require.Equal(t, allowed, !refused, fmt.Sprintf("%s: %s: %v", role, sql, err))
	require.NoError(t, tx.Rollback(t.Context()))
}
