package stack_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(serverEnv); addr != "" {
		os.Exit(serve(addr))
	}
	stack.Main(m, stack.Options{Migrate: func(ctx context.Context, url string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE TABLE marks (n int)")
		return err
	}})
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // Some tests end the server first.
	return conn
}

func count(t *testing.T, conn *pgx.Conn) int {
	t.Helper()
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM marks").Scan(&n))
	return n
}

func TestPostgresGivesEachTestItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	first, second := connect(t, stack.Postgres(t)), connect(t, stack.Postgres(t))
	_, err := first.Exec(t.Context(), "INSERT INTO marks VALUES (1)")
	require.NoError(t, err)
	require.Equal(t, 1, count(t, first))
	require.Equal(t, 0, count(t, second))
}

func redisClient(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	// A command that was made twice would be counted twice.
	opts.DialTimeout, opts.ReadTimeout, opts.MaxRetries = enough, enough, -1
	client := redis.NewClient(opts)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestRedisGivesEachTestItsOwnKeys(t *testing.T) {
	t.Parallel()
	first, second := redisClient(t, stack.Redis(t)), redisClient(t, stack.Redis(t))
	require.NoError(t, first.Set(t.Context(), "k", 1, 0).Err())
	require.Equal(t, int64(1), first.DBSize(t.Context()).Val())
	require.Equal(t, int64(0), second.DBSize(t.Context()).Val())
}

func TestNATSKeepsStreamsOverRestart(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	conn, err := nats.Connect(server.ClientURL(), nats.Timeout(enough))
	require.NoError(t, err)
	js, err := conn.JetStream(nats.MaxWait(enough))
	require.NoError(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish("s", []byte("kept"))
	require.NoError(t, err)
	conn.Close()

	require.NoError(t, server.Restart(t.Context()))
	conn, err = nats.Connect(server.ClientURL(), nats.Timeout(enough))
	require.NoError(t, err)
	defer conn.Close()
	js, err = conn.JetStream(nats.MaxWait(enough))
	require.NoError(t, err)
	msg, err := js.GetMsg("S", 1)
	require.NoError(t, err)
	require.Equal(t, "kept", string(msg.Data))
}
