package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"tollgate/e2e/stack"
	"tollgate/migrations"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

// schema lists every table, view, column, constraint, index, type and function of ours.
func schema(t *testing.T, url string) []string {
	t.Helper()
	const query = `
SELECT 'column ' || c.table_schema || '.' || c.table_name || '.' || c.column_name || ' ' || c.data_type || ' ' || c.is_nullable
FROM information_schema.columns c WHERE c.table_schema IN ('public', 'finance') AND c.table_name NOT LIKE 'goose%'
UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid <> 0 AND connamespace = 'public'::regnamespace AND conrelid::regclass::text NOT LIKE 'goose%'
UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename NOT LIKE 'goose%'
UNION ALL SELECT 'attribute ' || udt_name || '.' || attribute_name || ' ' || data_type FROM information_schema.attributes WHERE udt_schema = 'public'
UNION ALL SELECT 'function ' || oid::regprocedure FROM pg_proc WHERE pronamespace::regnamespace::text IN ('public', 'finance')
UNION ALL SELECT 'grant ' || grantee || ' ' || privilege_type || ' ' || table_schema || '.' || table_name
FROM information_schema.role_table_grants WHERE grantee IN ('finance', 'grafana', 'tollgate_app') AND table_name NOT LIKE 'goose%'
ORDER BY 1`
	rows, err := connect(t, url).Query(t.Context(), query)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return found
}

func TestUpDownUp(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), stack.Postgres(t)
	require.NoError(t, migrations.Up(ctx, url))
	first := schema(t, url)
	require.Greater(t, len(first), 300)

	states, err := migrations.Status(ctx, url)
	require.NoError(t, err)
	require.NotEmpty(t, states)
	for version := int64(len(states)) - 1; version >= 0; version-- {
		require.NoError(t, migrations.DownTo(ctx, url, version))
	}
	require.Empty(t, schema(t, url))
	states, err = migrations.Status(ctx, url)
	require.NoError(t, err)
	for _, s := range states {
		require.False(t, s.Applied, s.Name)
	}

	require.NoError(t, migrations.Up(ctx, url))
	require.Equal(t, first, schema(t, url))
}

func TestUpByFiveStartersAtOnce(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	group, ctx := errgroup.WithContext(t.Context())
	for range 5 {
		group.Go(func() error { return migrations.Up(ctx, url) })
	}
	require.NoError(t, group.Wait())
}

func TestUpInFiveDatabasesOfOneCluster(t *testing.T) {
	t.Parallel()
	group, ctx := errgroup.WithContext(t.Context())
	for range 5 {
		url := stack.Postgres(t)
		group.Go(func() error { return migrations.Up(ctx, url) })
	}
	require.NoError(t, group.Wait(), "the roles belong to all databases")
}

func TestJournalRefusesChange(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	require.NoError(t, migrations.Up(t.Context(), url))
	conn := connect(t, url)
	const event = `
INSERT INTO events (event_id, day, kind, app, producer, sequence, occurred_at, body_hash, body)
VALUES ('x', current_date, 'used', 'a', 'p', 0, now(), sha256(''), ''), ('y', '1999-01-01', 'used', 'a', 'p', 0, now(), sha256(''), '')`
	const transfer = `
INSERT INTO transfers (event_id, kind, day, debit_account_id, credit_account_id, amount_nanousd, occurred_at, utc_day)
VALUES ('x', 'settle', current_date, 1, 2, 3, now(), current_date), ('x', 'settle', '1999-01-01', 1, 2, 3, now(), current_date)`
	for _, sql := range []string{event, transfer} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	for _, sql := range []string{
		`UPDATE events SET body = 'x'`, `DELETE FROM events`, `TRUNCATE events`, `TRUNCATE events_default`,
		`UPDATE transfers SET amount_nanousd = 0`, `DELETE FROM transfers WHERE day = '1999-01-01'`, `TRUNCATE transfers`,
		`DO $$ BEGIN EXECUTE 'TRUNCATE transfers' || to_char(current_date, '_YYYY_MM'); END $$`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, sql)
		require.Contains(t, refused.Message, "append-only", sql)
	}
}

// TestNobodyChangesTheJournal tries every way to change a row of the journal, in every partition, also ones made later, as each
// role and as an owner who is no superuser.
func TestNobodyChangesTheJournal(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), stack.Postgres(t)
	require.NoError(t, migrations.Up(ctx, url))
	conn := connect(t, url)
	const fill = `
SELECT ensure_partitions('2031-05-01', '2031-05-02');
INSERT INTO events (event_id, day, kind, app, producer, sequence, occurred_at, body_hash, body)
SELECT 'x' || day, day, 'used', 'a', 'p', 0, now(), sha256(''), '' FROM unnest(ARRAY[current_date, '1999-01-01', '2031-05-01']) day;
INSERT INTO accounts (name, kind) VALUES ('a', 'spend'), ('b', 'payable');
INSERT INTO transfers (event_id, kind, day, debit_account_id, credit_account_id, amount_nanousd, occurred_at, utc_day)
SELECT event_id, 'settle', day, 1, 2, 3, now(), day FROM events;
INSERT INTO seals VALUES (1, 1, 9, 6, now(), sha256(''), sha256(''), '')`
	_, err := conn.Exec(ctx, fill)
	require.NoError(t, err)
	const journal = `
SELECT 'public.' || c.relname FROM pg_class c -- named in full: the role finance has a schema of its name in its path
WHERE c.oid IN (SELECT relid FROM pg_partition_tree('events') UNION ALL SELECT relid FROM pg_partition_tree('transfers')
    UNION ALL SELECT 'seals'::regclass UNION ALL SELECT 'accounts'::regclass)`
	rows, err := conn.Query(ctx, journal)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, tables, "public.transfers_2031_05")
	const counts = `SELECT (SELECT count(*) FROM events) || ' ' || (SELECT count(*) FROM transfers WHERE amount_nanousd = 3) || ' ' || (SELECT count(*) FROM seals)`

	for _, role := range []string{"tollgate_app", "finance", "grafana", "the owner"} {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		if role != "the owner" {
			_, err = tx.Exec(ctx, "SET LOCAL ROLE "+role)
		} else {
			_, err = tx.Exec(ctx, `CREATE ROLE journal_owner_test NOLOGIN; GRANT USAGE ON SCHEMA public TO journal_owner_test`)
			for _, table := range tables {
				require.NoError(t, err)
				_, err = tx.Exec(ctx, `ALTER TABLE `+table+` OWNER TO journal_owner_test`)
			}
			require.NoError(t, err)
			_, err = tx.Exec(ctx, `SET LOCAL ROLE journal_owner_test`)
		}
		require.NoError(t, err)
		for _, table := range tables {
			column := map[bool]string{true: "amount_nanousd = 0", false: "day = day"}[strings.HasPrefix(table, "public.transfers")]
			switch table {
			case "public.seals":
				column = "content = 'x'"
			case "public.accounts":
				column = "name = 'x'"
			}
			for _, sql := range []string{"UPDATE " + table + " SET " + column, "DELETE FROM " + table, "TRUNCATE " + table, "TRUNCATE " + table + " CASCADE"} {
				attempt, err := tx.Begin(ctx)
				require.NoError(t, err)
				tag, err := attempt.Exec(ctx, sql)
				if err == nil { // no row, no trigger
					require.Zero(t, tag.RowsAffected(), "%s: %s", role, sql)
					require.NotContains(t, sql, "TRUNCATE", role)
				} else {
					var refused *pgconn.PgError
					require.ErrorAs(t, err, &refused, sql)
					require.Equal(t, "42501", refused.Code, "%s: %s", role, sql)
				}
				require.NoError(t, attempt.Rollback(ctx))
			}
		}
		require.NoError(t, tx.Rollback(ctx))
	}
	var after string
	require.NoError(t, conn.QueryRow(ctx, counts).Scan(&after))
	require.Equal(t, "3 3 1", after)
}

func TestEveryViewAndColumnIsExplained(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	require.NoError(t, migrations.Up(t.Context(), url))
	rows, err := connect(t, url).Query(t.Context(), `
SELECT c.relname || coalesce('.' || a.attname, '')
FROM pg_class c
LEFT JOIN LATERAL (SELECT attname, attnum FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
    UNION ALL SELECT NULL, 0) a ON true
WHERE c.relnamespace = 'finance'::regnamespace AND c.relkind = 'v' AND coalesce(col_description(c.oid, nullif(a.attnum, 0)),
    CASE WHEN a.attnum = 0 THEN obj_description(c.oid) END) IS NULL`)
	require.NoError(t, err)
	bare, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, bare)
}
