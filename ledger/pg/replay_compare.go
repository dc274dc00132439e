package pg

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// projection is a table that the events decide, and how to compare two of it.
type projection struct {
	table   string
	key     []string
	ignored []string // columns that tell how the row came about
	also    string   // further columns; %[1]s is the schema
	names   []string // of those
	where   string   // rows to compare; %[1]s is the schema
	columns []column // the others, as the database has them
}

type column struct{ Name, Type string }

// replayed are the projections, each of which the posting code writes.
var replayed = []projection{
	{table: "reservations", key: []string{"reservation_id", "day"}},
	{
		table: "transfers", key: []string{"event_id", "kind", "day"},
		ignored: []string{"serial", "recorded_at", "debit_account_id", "credit_account_id"},
		also: `, (SELECT name FROM %[1]s.accounts WHERE account_id = x.debit_account_id) AS debit,
    (SELECT name FROM %[1]s.accounts WHERE account_id = x.credit_account_id) AS credit`,
		names: []string{"debit", "credit"},
		where: `WHERE x.kind <> 'correct' AND NOT EXISTS (
    SELECT FROM %[1]s.transfers c WHERE c.kind = 'correct' AND c.day = x.day AND c.linked_transfer = x.event_id || '/' || x.kind)`,
	},
	{
		table: "budgets", key: []string{"app", "subject", "period", "window_start"}, ignored: []string{"version", "updated_at"},
		where: `WHERE (x.requests, x.tokens, x.nanousd) <> (0, 0, 0)`, // a charge that was taken back leaves an empty row
	},
	{table: "producers", key: []string{"producer"}, ignored: []string{"updated_at"}},
	{table: "policy_revisions", key: []string{"event_id"}},
	{table: "policy_limits", key: []string{"event_id", "limit_name", "unit", "name"}},
	{table: "refusals", key: []string{"event_id", "line"}},
	{table: "grants", key: []string{"grant_id"}},
}

// projections reads which columns the tables have.
func (r *replay) projections(ctx context.Context) ([]projection, error) {
	const query = `
SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = $1
ORDER BY ordinal_position`
	list := slices.Clone(replayed)
	for i := range list {
		p := &list[i]
		rows, err := r.tx.Query(ctx, query, p.table)
		if err != nil {
			return nil, fmt.Errorf("read columns of %s: %w", p.table, err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
		if err != nil {
			return nil, fmt.Errorf("read columns of %s: %w", p.table, err)
		}
		p.columns = slices.DeleteFunc(all, func(c column) bool {
			return slices.Contains(p.ignored, c.Name) || slices.Contains(p.key, c.Name)
		})
	}
	return list, nil
}

// rows is a query for what is compared. The names in it are constants, or come from the database's own catalogue.
func (p *projection) rows(schema string) string {
	list := slices.Clone(p.key)
	for _, c := range p.columns {
		name := pgx.Identifier{c.Name}.Sanitize()
		if c.Type == "json" { // which has no equality
			name += "::text AS " + name
		}
		list = append(list, name)
	}
	return fmt.Sprintf("SELECT %s", strings.Join(list, ", ")) + named(p.also, schema) +
		fmt.Sprintf(" FROM %s.%s x ", schema, p.table) + named(p.where, schema)
}

func named(text, schema string) string { return strings.ReplaceAll(text, "%[1]s", schema) }

// compare counts and names the rows that differ.
func (r *replay) compare(ctx context.Context, p projection) (Difference, error) {
	d := Difference{Table: p.table}
	live, rebuilt := p.rows("public"), p.rows(pgx.Identifier{r.options.Schema}.Sanitize())
	if _, err := r.tx.Exec(ctx, `ANALYZE `+p.table); err != nil {
		return d, err
	}
	if err := r.tx.QueryRow(ctx, `SELECT count(*) FROM (`+live+`) x`).Scan(&d.Rows); err != nil {
		return d, err
	}
	key, same, told := make([]string, len(p.key)), []string{"(a.here, b.here) IS DISTINCT FROM (true, true)"}, []string{"NULL"}
	for i, k := range p.key {
		key[i] = k + "::text"
	}
	compared := slices.Clone(p.names)
	for _, c := range p.columns {
		compared = append(compared, pgx.Identifier{c.Name}.Sanitize())
	}
	for _, name := range compared {
		differs := fmt.Sprintf(`a.%[1]s IS DISTINCT FROM b.%[1]s`, name)
		same = append(same, differs)
		told = append(told, fmt.Sprintf(`CASE WHEN %[2]s THEN '%[3]s is ' || coalesce(a.%[1]s::text, 'NULL') || ', should be ' || coalesce(b.%[1]s::text, 'NULL') END`,
			name, differs, strings.Trim(name, `"`)))
	}
	query := `
SELECT count(*) OVER (), concat_ws(' ', ` + strings.Join(key, ", ") + `) || ': ' || CASE WHEN b.here IS NULL THEN 'no event says so'
    WHEN a.here IS NULL THEN 'is missing' ELSE concat_ws('; ', ` + strings.Join(told, ", ") + `) END
FROM (SELECT *, true AS here FROM (` + live + `) x) a
FULL JOIN (SELECT *, true AS here FROM (` + rebuilt + `) x) b USING (` + strings.Join(p.key, ", ") + `)
WHERE ` + strings.Join(same, " OR ") + `
ORDER BY ` + strings.Join(p.key, ", ") + `
LIMIT $1`
	rows, err := r.tx.Query(ctx, query, max(r.options.Examples, 1))
	if err != nil {
		return d, err
	}
	var example string
	_, err = pgx.ForEachRow(rows, []any{&d.Differ, &example}, func() error {
		d.Examples = append(d.Examples, example)
		return nil
	})
	return d, err
}
