package command_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/keys"
)

// One life of an app and its keys, in Postgres and in the directory that gateways follow.
func TestAppsAndKeys(t *testing.T) {
	t.Parallel()
	database, queue := stack.Postgres(t), stack.NATS(t).ClientURL()
	env := []string{"DATABASE_URL=" + database, "NATS_URL=" + queue}

	require.Equal(t, "app checkout created\n", mustRun(t, env, "app", "create", "checkout", "--plan", "paid").stdout)
	created := mustRun(t, env, "key", "create", "--app", "checkout", "--user", "ada", "--plan", "free", "--name", "front door", "--expires", "30d")
	secret := strings.TrimSuffix(created.stdout, "\n")
	require.Regexp(t, `^tg-[0-9A-Za-z]{43}$`, secret, "standard output is the secret and nothing else")
	require.Regexp(t, `^key k_[0-9A-Za-z]{12} of app checkout created; the secret is shown once:\n$`, created.stderr)
	id := strings.Fields(created.stderr)[1]

	record := onlyRecord(t, queue, secret)
	require.Equal(t, keys.Record{KeyID: id, App: "checkout", User: "ada", Plan: "free", AppPlan: "paid", ExpiresAt: record.ExpiresAt}, record)
	requireSecretNowhere(t, database, queue, secret)
	listed := mustRun(t, env, "key", "list")
	require.NotContains(t, listed.stdout+listed.stderr, secret)
	require.Regexp(t, `^`+id+` checkout free ada front door \d{4}-\d\d-\d\d \d\d:\d\d \d{4}-\d\d-\d\d \d\d:\d\d on$`, lines(listed.stdout)[1])
	require.Len(t, lines(mustRun(t, env, "key", "list", "--app", "other").stdout), 1, "the heading only")

	require.Equal(t, "app checkout disabled\n", mustRun(t, env, "app", "disable", "checkout").stdout)
	require.True(t, onlyRecord(t, queue, secret).AppDisabled)
	require.Regexp(t, `^checkout paid .* off since `, lines(mustRun(t, env, "app", "list").stdout)[1])
	require.Equal(t, "app checkout enabled\n", mustRun(t, env, "app", "enable", "checkout").stdout)
	require.False(t, onlyRecord(t, queue, secret).AppDisabled)

	require.Equal(t, "key "+id+" revoked\n", mustRun(t, env, "key", "revoke", id).stdout)
	require.True(t, onlyRecord(t, queue, secret).Revoked, "a revoked key stays, so that it is refused by name")
	mustRun(t, env, "key", "revoke", id)
	require.Contains(t, mustRun(t, env, "key", "list").stdout, "off since")
}

func onlyRecord(t *testing.T, queue, secret string) keys.Record {
	t.Helper()
	entries := bucket(t, queue, keys.Bucket)
	require.Len(t, entries, 1)
	record, err := keys.Decode([]byte(entries[keys.Hash(secret)]))
	require.NoError(t, err)
	return record
}

// requireSecretNowhere looks for a secret in every row of the database and every entry of the directory.
func requireSecretNowhere(t *testing.T, database, queue, secret string) {
	t.Helper()
	tables := query[string](t, database, `SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables
WHERE table_schema IN ('public', 'finance') AND table_type = 'BASE TABLE'`)
	require.Contains(t, tables, "public.api_keys")
	for _, table := range tables {
		for _, row := range query[string](t, database, `SELECT t::text FROM `+table+` t`) {
			require.NotContains(t, row, secret, table)
		}
	}
	for name, value := range bucket(t, queue, keys.Bucket) {
		require.NotContains(t, name+value, secret)
	}
}

func TestKeyAndAppErrors(t *testing.T) {
	t.Parallel()
	database, queue := stack.Postgres(t), stack.NATS(t).ClientURL()
	env := []string{"DATABASE_URL=" + database, "NATS_URL=" + queue}
	mustRun(t, env, "app", "create", "checkout")
	for words, want := range map[string]string{
		"app create checkout":                                    `create app "checkout": app exists already`,
		"app create a/b":                                         "a/b",
		"app disable nobody":                                     `disable app "nobody": no such app`,
		"app enable nobody":                                      "no such app",
		"key create --app nobody --name x":                       `app "nobody": no such app; create it first: tollgate app create nobody`,
		"key create --app checkout --expires never":              `--expires: "never" is no duration`,
		"key create --app checkout --expires 2001-01-01":         "--expires: 2001-01-01 lies in the past",
		"key create --app checkout --expires -1h":                "--expires",
		"key create --app checkout --expires 0d":                 "--expires",
		"key revoke k_unknown":                                   `revoke key "k_unknown": no such key`,
		"rebuild --app=":                                         "--app: is empty",
		"ledger export --from 2026-11-01 --to 2026-12-01 --app=": "--app: is empty",
	} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			r := tollgate(t, env, strings.Fields(words)...)
			require.Equal(t, 1, r.code, r.stderr)
			require.Contains(t, r.stderr, want)
			require.Empty(t, r.stdout)
		})
	}
}

// Postgres is the truth: a change stands while NATS is away, and the next change brings it along.
func TestKeysWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	database := stack.Postgres(t)
	away := []string{"DATABASE_URL=" + database, "NATS_URL=nats://" + stack.FreeAddr(t)}
	app := mustRun(t, away, "app", "create", "checkout")
	require.Contains(t, app.stderr, "the change is stored; gateways learn of it when the settler next compares (now: NATS_URL: ")
	created := mustRun(t, away, "key", "create", "--app", "checkout")
	secret := strings.TrimSpace(created.stdout)
	require.Contains(t, created.stderr, "the change is stored")
	require.NotContains(t, created.stderr, secret)

	queue := stack.NATS(t).ClientURL()
	mustRun(t, []string{"DATABASE_URL=" + database, "NATS_URL=" + queue}, "app", "enable", "checkout")
	require.Equal(t, "checkout", onlyRecord(t, queue, secret).App)
}
