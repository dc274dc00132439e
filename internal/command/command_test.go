package command_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/command"
)

// Words that make no command end with 2 and a pointer to help; nothing is printed to standard output.
func TestWordsThatMakeNoCommand(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"serve":                            `unknown command "serve"`,
		"--verbose":                        "unknown flag: --verbose",
		"dev extra":                        `unknown command "extra"`,
		"dev --listen":                     "flag needs an argument: --listen",
		"dev --ephemeral=perhaps":          "invalid argument",
		"gateway --port 1":                 "unknown flag: --port",
		"settler now":                      `unknown command "now"`,
		"migrate down":                     `unknown command "down"`,
		"policy check":                     "accepts 1 arg(s), received 0",
		"policy check a b":                 "accepts 1 arg(s), received 2",
		"policy push":                      "accepts 1 arg(s), received 0",
		"policy show all":                  `unknown command "all"`,
		"policy rollback":                  "accepts 1 arg(s), received 0",
		"app create":                       "accepts 1 arg(s), received 0",
		"app disable":                      "accepts 1 arg(s), received 0",
		"key create":                       `required flag(s) "app" not set`,
		"key create checkout --app a":      `unknown command "checkout"`,
		"key revoke":                       "accepts 1 arg(s), received 0",
		"ledger check":                     `unknown command "check"`,
		"health --admin 127.0.0.1:1":       "unknown flag: --admin",
		"doctor --fix":                     "unknown flag: --fix",
		"provider-sim --listen a --port b": "unknown flag: --port",
	} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, 2, command.Run(t.Context(), strings.Fields(words), &stdout, &stderr))
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), "tollgate: "+want)
			require.Contains(t, stderr.String(), "Run 'tollgate --help' for what there is.\n")
		})
	}
}

// Help goes to standard output with exit code 0, also for a group without a command.
func TestHelp(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"": "doctor", "--help": "provider-sim", "key": "revoke", "policy --help": "rollback", "dev --help": "--ephemeral",
	} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Zero(t, command.Run(t.Context(), strings.Fields(words), &stdout, &stderr))
			require.Empty(t, stderr.String())
			require.Contains(t, stdout.String(), want)
		})
	}
}

// What cannot be used is told by the variable's name, all of it at once, and ends with 1.
func TestEnvironmentErrorsNameTheVariable(t *testing.T) {
	t.Parallel()
	const database = "DATABASE_URL=postgres://nobody@127.0.0.1:1/x"
	secret := write(t, "secret", "postgres://nobody@127.0.0.1:1/x")
	for name, row := range map[string]struct {
		args []string
		env  []string
		want []string
	}{
		"no database": {[]string{"migrate", "up"}, nil, []string{"DATABASE_URL (or DATABASE_URL_FILE): must name the Postgres database"}},
		"settler without database": {
			[]string{"settler"},
			[]string{"TOLLGATE_SETTLER_WORKERS=0", "TOLLGATE_SETTLER_LINGER=-1s"},
			[]string{"DATABASE_URL", "TOLLGATE_SETTLER_WORKERS: must be above zero, not 0", "TOLLGATE_SETTLER_LINGER: must not be negative"},
		},
		"no duration":  {[]string{"gateway"}, []string{"TOLLGATE_LIMITER_TIMEOUT=50"}, []string{"TOLLGATE_LIMITER_TIMEOUT: ", "missing unit"}},
		"no number":    {[]string{"settler"}, []string{database, "TOLLGATE_SETTLER_BATCH=many"}, []string{"TOLLGATE_SETTLER_BATCH: "}},
		"two mistakes": {[]string{"gateway"}, []string{"TOLLGATE_MAX_BODY_BYTES=1k", "TOLLGATE_OUTBOX_SYNC=x"}, []string{"TOLLGATE_MAX_BODY_BYTES: ", "TOLLGATE_OUTBOX_SYNC: "}},
		"too small":    {[]string{"gateway"}, []string{"TOLLGATE_MAX_BODY_BYTES=1", "TOLLGATE_PUBLISH_TIMEOUT=0s"}, []string{"TOLLGATE_MAX_BODY_BYTES: must be at least 1024", "TOLLGATE_PUBLISH_TIMEOUT: must be above zero"}},
		"log level":    {[]string{"provider-sim"}, []string{"TOLLGATE_LOG_LEVEL=loud"}, []string{"TOLLGATE_LOG_LEVEL: "}},
		"sim":          {[]string{"provider-sim"}, []string{"TOLLGATE_SIM_CHUNKS=0"}, []string{"TOLLGATE_SIM_CHUNKS: 0 is not between"}},
		"redis":        {[]string{"settler"}, []string{database, "REDIS_URL=http://127.0.0.1", "TOLLGATE_ADMIN=127.0.0.1:0"}, []string{"REDIS_URL: "}},
		"nats":         {[]string{"policy", "show"}, []string{"NATS_URL=nats://127.0.0.1:1"}, []string{"NATS_URL: "}},
		"both":         {[]string{"migrate", "up"}, []string{database, "DATABASE_URL_FILE=" + secret}, []string{"DATABASE_URL and DATABASE_URL_FILE are both set: keep one"}},
		"file missing": {[]string{"migrate", "up"}, []string{"DATABASE_URL_FILE=/nowhere/at/all"}, []string{"DATABASE_URL_FILE: open /nowhere/at/all"}},
		"admin":        {[]string{"health"}, []string{"TOLLGATE_ADMIN=8081"}, []string{"TOLLGATE_ADMIN: "}},
		"port taken":   {[]string{"provider-sim", "--listen", taken(t)}, nil, []string{"cannot listen on 127.0.0.1:", "choose another with --listen"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tollgate(t, row.env, row.args...)
			require.Equal(t, 1, r.code, r.stderr)
			require.Empty(t, r.stdout)
			for _, want := range row.want {
				require.Contains(t, r.stderr, want)
			}
		})
	}
}

// taken is an address that somebody listens on until the test ends.
func taken(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	path := write(t, "url", stack.Postgres(t)+"\n")
	r := mustRun(t, []string{"DATABASE_URL_FILE=" + path}, "migrate", "status")
	require.Contains(t, r.stdout, "00001_create_journal.sql")
	mustRun(t, []string{"DATABASE_URL_FILE=" + path, "NATS_URL_FILE="}, "app", "list")
}

// Several at once migrate a database once; status tells before and after.
func TestMigrateInParallel(t *testing.T) {
	t.Parallel()
	_, url := stack.NewPostgres(t)
	execute(t, url, "CREATE DATABASE empty")
	env := []string{"DATABASE_URL=" + strings.Replace(url, "/tollgate", "/empty", 1)}
	for _, line := range lines(mustRun(t, env, "migrate", "status").stdout) {
		require.Regexp(t, `^000\d\d 000\d\d_[a-z_]+\.sql -$`, line)
	}
	var group sync.WaitGroup
	results := make([]result, 4)
	for i := range results {
		group.Go(func() { results[i] = tollgate(t, env, "migrate", "up") })
	}
	group.Wait()
	after := mustRun(t, env, "migrate", "status").stdout
	files, err := filepath.Glob(filepath.Join("..", "..", "migrations", "*.sql"))
	require.NoError(t, err)
	require.Len(t, lines(after), len(files))
	for _, r := range results {
		require.Zero(t, r.code, r.stderr)
		require.Equal(t, after, r.stdout)
	}
	for _, line := range lines(after) {
		require.Regexp(t, `\.sql \d{4}-\d\d-\d\d \d\d:\d\d$`, line)
	}
}

func TestMigrateWithoutDatabase(t *testing.T) {
	t.Parallel()
	r := tollgate(t, []string{"DATABASE_URL=postgres://me:hush@" + stack.FreeAddr(t) + "/x"}, "migrate", "up")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "connection refused")
	require.NotContains(t, r.stderr, "hush")
}

func TestLedgerVerify(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	env := []string{"DATABASE_URL=" + url}
	sound := mustRun(t, env, "ledger", "verify")
	require.Empty(t, sound.stderr)
	told := lines(sound.stdout)
	for _, line := range told[:len(told)-1] {
		require.Regexp(t, `^(ok|-) (I\d+|chain) [a-z-]+ 0 .+`, line)
	}
	require.Equal(t, "0 rows in 0 blocks, 0 not sealed yet; head none", told[len(told)-1])
	require.Equal(t, 1, tollgate(t, env, "ledger", "verify", "--head", strings.Repeat("ab", 32)).code)
	require.Contains(t, tollgate(t, env, "ledger", "verify", "--head", "abc").stderr, "64 hexadecimal digits")

	execute(t, url, `INSERT INTO producers (producer, seen) VALUES ('gw-by-hand', '{[1,3),[5,6)}')`)
	broken := tollgate(t, env, "ledger", "verify")
	require.Equal(t, 1, broken.code)
	require.Len(t, lines(broken.stdout), len(lines(sound.stdout)), "the others are told as well")
	var bad []string
	for _, line := range lines(broken.stdout) {
		if strings.HasPrefix(line, "BROKEN") {
			bad = append(bad, line)
		}
	}
	require.Len(t, bad, 1)
	require.Regexp(t, `^BROKEN I8 no-gaps 2 sequences .*; first: gw-by-hand \[3,5\)$`, bad[0])
	require.Regexp(t, `^1 of \d+ checks are broken\n$`, broken.stderr)

	away := tollgate(t, []string{"DATABASE_URL=postgres://me:hush@" + stack.FreeAddr(t) + "/x"}, "ledger", "verify")
	require.Equal(t, 1, away.code)
	require.Empty(t, away.stdout)
	require.NotContains(t, away.stderr, "hush")
}

func TestLedgerRebuild(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	env := []string{"DATABASE_URL=" + url}
	same := mustRun(t, env, "ledger", "rebuild")
	require.Empty(t, same.stderr)
	require.Contains(t, same.stdout, "0 events in ")
	for _, line := range lines(same.stdout)[:7] {
		require.Regexp(t, `^ok [a-z_]+ \d rows 0 differ$`, line)
	}

	execute(t, url, `INSERT INTO policy_revisions VALUES ('by-hand', '1', now())`)
	differs := tollgate(t, env, "ledger", "rebuild", "--keep")
	require.Equal(t, 1, differs.code)
	require.Contains(t, differs.stdout, "kept in schema rebuild_")
	require.Equal(t, "policy_revisions by-hand: no event says so\n1 of 8 tables differ\n", differs.stderr)
}

func TestHealth(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("not ready: the key directory has not been read yet\n"))
		}
	}))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	_, port, _ := strings.Cut(address, ":")
	env := []string{"TOLLGATE_ADMIN=0.0.0.0:" + port}

	answered := func() (r result) {
		stack.Eventually(t, func() error {
			if r = tollgate(t, env, "health"); strings.Contains(r.stderr, "in time") || strings.Contains(r.stderr, "deadline exceeded") {
				return errors.New(r.stderr) // this process stood still for longer than health waits
			}
			return nil
		})
		return r
	}
	r := answered()
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "the key directory has not been read yet")
	ready.Store(true)
	r = answered()
	require.Zero(t, r.code, r.stderr)
	require.Empty(t, r.stdout)
	server.Close()
	require.Equal(t, 1, tollgate(t, env, "health").code)
}

// A file that is no database URL and whatever else goes wrong: the secret's text is not told.
func TestMainReadsTheEnvironmentOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "url"), []byte("postgres://u:hush@[bad"), 0o600))
	r := tollgate(t, []string{"DATABASE_URL_FILE=" + filepath.Join(dir, "url")}, "app", "list")
	require.Equal(t, 1, r.code)
	require.NotContains(t, r.stderr, "hush")
}

func TestLedgerStatementAndExport(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	env := []string{"DATABASE_URL=" + url}
	execute(t, url, `
WITH a AS (INSERT INTO accounts (name, kind) VALUES ('app:demo:spend', 'spend'), ('provider:x:payable', 'payable') RETURNING account_id, name)
INSERT INTO transfers (event_id, kind, day, debit_account_id, credit_account_id, amount_nanousd, occurred_at, utc_day)
SELECT 'x', 'settle', '2026-11-05', min(account_id) FILTER (WHERE name LIKE 'app%'), min(account_id) FILTER (WHERE name LIKE 'prov%'),
    1500000001, '2026-11-05T10:00:00Z', '2026-11-05' FROM a`)

	statement := []string{"ledger", "statement", "--app", "demo", "--month", "2026-11"}
	require.Equal(t, []string{
		"demo, 2026-11, dollars", "opening 0.000000000", "grants 0.000000000", "spend 1.500000001", "adjustments 0.000000000", "closing -1.500000001",
	}, lines(mustRun(t, env, statement...).stdout))
	require.JSONEq(t, `{"app": "demo", "month": "2026-11", "opening_usd": "0.000000000", "grants_usd": "0.000000000",
		"spend_usd": "1.500000001", "adjustments_usd": "0.000000000", "closing_usd": "-1.500000001"}`,
		mustRun(t, env, append(statement, "--json")...).stdout)
	require.Contains(t, mustRun(t, env, append(statement, "--csv")...).stdout, "\r\ndemo,2026-11,0.000000000,0.000000000,1.500000001,0.000000000,-1.500000001\r\n")
	require.Contains(t, tollgate(t, env, "ledger", "statement", "--app", "dmeo", "--month", "2026-11").stderr, `app "dmeo": the ledger has no account`)
	require.Contains(t, tollgate(t, env, "ledger", "statement", "--app", "demo", "--month", "11/2026").stderr, "--month: want YYYY-MM")

	export := []string{"ledger", "export", "--from", "2026-11-05", "--to", "2026-11-06"}
	require.Contains(t, mustRun(t, env, append(export, "--what", "transfers")...).stdout,
		"\r\nx/settle,settle,app:demo:spend,provider:x:payable,1.500000001,,x,,,,2026-11-05T10:00:00.000000Z,2026-11-05,")
	require.True(t, strings.HasPrefix(mustRun(t, env, export...).stdout, "request_id,occurred_at,settled_at,state,app,"))
	require.True(t, strings.HasPrefix(mustRun(t, env, append(export, "--format", "focus")...).stdout, "BilledCost,BillingAccountId,"))
	for _, wrong := range [][]string{
		{"--format", "xlsx"}, {"--what", "budgets"}, {"--format", "focus", "--what", "transfers"}, {"--to", "2026-11-05"}, {"--from", "yesterday"},
	} {
		require.Equal(t, 1, tollgate(t, env, append(export, wrong...)...).code, wrong)
	}
}
