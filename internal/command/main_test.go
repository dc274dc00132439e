package command_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/migrations"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{Migrate: migrations.Up}) }

// patience bounds every command and every wait.
const patience = stack.Patience

// result is what a command left.
type result struct {
	code           int
	stdout, stderr string
}

// tollgate runs the binary with nothing but env in its environment.
func tollgate(t *testing.T, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, stack.Binary(t), args...)
	cmd.Env, cmd.Dir = env, t.TempDir()
	if env == nil {
		cmd.Env = []string{}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// mustRun is tollgate for a command that has to succeed.
func mustRun(t *testing.T, env []string, args ...string) result {
	t.Helper()
	r := tollgate(t, env, args...)
	require.Zero(t, r.code, "%s\n%s%s", args, r.stdout, r.stderr)
	return r
}

// lines are the non-empty lines of a text, their fields joined by one space.
func lines(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			found = append(found, strings.Join(fields, " "))
		}
	}
	return found
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func query[T any](t *testing.T, url, sql string) []T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	rows, err := conn.Query(t.Context(), sql)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return found
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, errors.Join(err, conn.Close(context.Background())))
}

// bucket is every entry of a KV bucket.
func bucket(t *testing.T, url, name string) map[string]string {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(patience))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), name)
	require.NoError(t, err)
	names, err := kv.Keys(t.Context())
	require.NoError(t, err)
	entries := map[string]string{}
	for _, key := range names {
		entry, err := kv.Get(t.Context(), key)
		require.NoError(t, err)
		entries[key] = string(entry.Value())
	}
	return entries
}

// setEviction makes a Redis one that evicts.
func setEviction(t *testing.T, url string) {
	t.Helper()
	options, err := redis.ParseURL(url)
	require.NoError(t, err)
	options.DialTimeout, options.ReadTimeout = patience, patience
	client := redis.NewClient(options)
	require.NoError(t, errors.Join(client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(), client.Close()))
}
