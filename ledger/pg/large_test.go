package pg_test

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// enlarge posts one request of each of 20 apps and copies it, events, reservation, transfer and all, until there are as many
// events as asked for.
func enlarge(b *testing.B, url string, store *pg.Store, events int) {
	b.Helper()
	const apps = 20
	ctx := b.Context()
	for i := range apps {
		app := fmt.Sprintf("app%d", i)
		r := reservation(app, int64(i), start)
		mustPost(b, store, newEvent(event.KindReserved, app, r, uint64(2*i+1)), newEvent(event.KindUsed, app, r, uint64(2*i+2)))
	}
	conn, err := pgx.Connect(ctx, url)
	require.NoError(b, err)
	defer conn.Close(ctx)
	copies := max(events/(2*apps)-1, 1)
	// An id of a time of its own, a millisecond after the one before.
	id := `overlay(overlay(%s placing left(s.ms, 8) from 1) placing right(s.ms, 4) from 10)`
	series := fmt.Sprintf(`(SELECT n, (n::bigint * %d) AS at FROM generate_series(1, %d) n) g
CROSS JOIN LATERAL (SELECT lpad(to_hex((extract(epoch FROM timestamptz '%s') * 1000)::bigint + g.at), 12, '0') AS ms) s`,
		apps, copies, start.Format(time.RFC3339))
	body := `convert_to(replace(replace(convert_from(t.body, 'UTF8'), left(t.event_id, 36), ` + fmt.Sprintf(id, "left(t.event_id, 36)") + `),
    '"sequence":' || t.sequence || ',', '"sequence":' || (t.sequence + 40 * g.n) || ','), 'UTF8')`
	tables := []struct {
		name    string
		changed map[string]string
	}{
		{"events", map[string]string{"event_id": fmt.Sprintf(id, "t.event_id"), "sequence": "t.sequence + 40 * g.n", "body": body, "body_hash": "sha256(" + body + ")"}},
		{"transfers", map[string]string{"event_id": fmt.Sprintf(id, "t.event_id"), "reservation_id": fmt.Sprintf(id, "t.reservation_id")}},
		{"reservations", map[string]string{"reservation_id": fmt.Sprintf(id, "t.reservation_id")}},
	}
	for _, table := range tables {
		columns := lines(b, url, `SELECT column_name::text FROM information_schema.columns
			WHERE table_schema = 'public' AND table_name = '`+table.name+`' AND column_name <> 'serial' ORDER BY ordinal_position`)
		values := make([]string, len(columns))
		for i, column := range columns {
			values[i] = "t." + column
			if changed, ok := table.changed[column]; ok {
				values[i] = changed
			}
		}
		_, err := conn.Exec(ctx, fmt.Sprintf(`INSERT INTO %[1]s (%[2]s) SELECT %[3]s FROM %[4]s CROSS JOIN %[1]s t`,
			table.name, strings.Join(columns, ", "), strings.Join(values, ", "), series))
		require.NoError(b, err, table.name)
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(`
UPDATE budgets SET requests = requests * %[1]d, tokens = tokens * %[1]d, nanousd = nanousd * %[1]d;
UPDATE producers SET seen = int8multirange(int8range(1, 40 * %[1]d + 1))`, copies+1))
	require.NoError(b, err)
	for _, table := range []string{"events", "transfers", "reservations"} {
		_, err = conn.Exec(ctx, "VACUUM ANALYZE "+table)
		require.NoError(b, err)
	}
}

// peakMB is the most memory that this process has had resident.
func peakMB(b *testing.B) float64 {
	b.Helper()
	file, err := os.Open("/proc/self/status")
	require.NoError(b, err)
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		if fields := strings.Fields(scanner.Text()); fields[0] == "VmHWM:" {
			kilobytes, err := strconv.ParseFloat(fields[1], 64)
			require.NoError(b, err)
			return kilobytes / 1024
		}
	}
	b.Fatal("no VmHWM in /proc/self/status")
	return 0
}

// BenchmarkProof seals, verifies and rebuilds a ledger of TOLLGATE_BENCH_EVENTS events.
func BenchmarkProof(b *testing.B) {
	events := 4000
	if text := os.Getenv("TOLLGATE_BENCH_EVENTS"); text != "" {
		var err error
		events, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	url := stack.Postgres(b)
	store := openAt(b, url)
	enlarge(b, url, store, events)
	step := func(name string, work func()) {
		began := time.Now()
		work()
		b.ReportMetric(time.Since(began).Seconds(), name+"-s")
		b.ReportMetric(peakMB(b), name+"-peak-MB")
		b.Logf("%s of %d events: %s, at most %.0f MB", name, events, time.Since(began).Round(time.Millisecond), peakMB(b))
	}
	for b.Loop() {
		step("seal", func() {
			_, err := store.Seal(b.Context(), 1, 10_000)
			require.NoError(b, err)
		})
		step("chain", func() {
			chain, err := store.VerifyChain(b.Context(), nil)
			require.NoError(b, err)
			require.Empty(b, chain.Wrong)
			require.Zero(b, chain.Unsealed)
		})
		step("invariants", func() { requireVerified(b, store) })
		step("rebuild", func() { requireRebuilt(b, store) })
	}
}
