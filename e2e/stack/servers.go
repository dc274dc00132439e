package stack

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"tollgate/internal/dev/services"
)

const templateDatabase = "tollgate_template"

// Postgres returns the URL of a fresh database with the schema of Options.Migrate, on the server that the process shares. The
// database goes away with the test.
func Postgres(t testing.TB) (url string) {
	t.Helper()
	server, err := sharedPostgres()
	if err != nil {
		t.Fatalf("postgres: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	name := fmt.Sprintf("test_%d", nextDatabase())
	quoted := pgx.Identifier{name}.Sanitize()
	if err := execSQL(ctx, server, "CREATE DATABASE "+quoted+" TEMPLATE "+templateDatabase); err != nil {
		t.Fatalf("postgres: create database: %v", err)
	}
	cleanup(t, "database "+name, func(ctx context.Context) error {
		return execSQL(ctx, server, "DROP DATABASE "+quoted+" WITH (FORCE)")
	})
	return server.URL(name)
}

var nextDatabase = counter()

// counter returns a function that counts from 1; it is safe for concurrent use.
func counter() func() int {
	var mu sync.Mutex
	n := 0
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		n++
		return n
	}
}

var sharedPostgres = sync.OnceValues(func() (*services.Postgres, error) {
	dir, err := sharedDir("postgres")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	server, err := services.StartPostgres(ctx, services.PostgresConfig{DataDir: dir})
	if err != nil {
		return nil, err
	}
	onExit(server.Stop)
	return server, prepareTemplate(ctx, server)
})

// prepareTemplate makes the database that those of the tests are copied from. Nobody may connect to it afterwards: a copy waits
// for every session of its template.
func prepareTemplate(ctx context.Context, server *services.Postgres) error {
	if err := server.CreateDatabase(ctx, templateDatabase); err != nil {
		return err
	}
	if migrate := shared.opts.Migrate; migrate != nil {
		if err := migrate(ctx, server.URL(templateDatabase)); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	return execSQL(ctx, server, "ALTER DATABASE "+templateDatabase+" ALLOW_CONNECTIONS false")
}

func execSQL(ctx context.Context, server *services.Postgres, sql string) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// NewPostgres starts a server for this test alone, which it may kill, pause and restart, and returns it with the URL of a
// database that has the schema of Options.Migrate.
func NewPostgres(t testing.TB) (server *services.Postgres, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	server, err := services.StartPostgres(ctx, services.PostgresConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatalf("postgres: %v", err)
	}
	cleanup(t, "postgres", server.Stop)
	const name = "tollgate"
	if err := server.CreateDatabase(ctx, name); err != nil {
		t.Fatalf("postgres: %v", err)
	}
	if migrate := shared.opts.Migrate; migrate != nil {
		if err := migrate(ctx, server.URL(name)); err != nil {
			t.Fatalf("postgres: migrate: %v", err)
		}
	}
	return server, server.URL(name)
}

// redisDatabases is how many tests of one process may use the shared Redis, counting each call of Redis.
const redisDatabases = 4096

var nextRedisDatabase = counter()

// Redis returns the URL of an empty numbered database on the redis-server that the process shares; scripts and SLOWLOG are
// shared, keys are not. It is emptied when the test ends.
func Redis(t testing.TB) (url string) {
	t.Helper()
	server, err := sharedRedis()
	if err != nil {
		t.Fatalf("redis: %v", err)
	}
	n := nextRedisDatabase()
	if n >= redisDatabases {
		t.Fatalf("redis: all %d databases are used up: let tests start their own with NewRedis", redisDatabases)
	}
	url = server.URL(n)
	cleanup(t, "redis database", func(ctx context.Context) error {
		opts, err := redis.ParseURL(url)
		if err != nil {
			return err
		}
		client := redis.NewClient(opts)
		return errors.Join(client.FlushDB(ctx).Err(), client.Close())
	})
	return url
}

var sharedRedis = sync.OnceValues(func() (*services.Redis, error) {
	dir, err := sharedDir("redis")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	server, err := startRedis(ctx, services.RedisConfig{DataDir: dir, Databases: redisDatabases})
	if err == nil {
		onExit(server.Stop)
	}
	return server, err
})

// startRedis refuses the substitute: scripts are only tested on the real server.
func startRedis(ctx context.Context, cfg services.RedisConfig) (*services.Redis, error) {
	server, err := services.StartRedis(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if server.InProcess {
		return nil, errors.Join(errors.New("redis-server is not installed, and tests need it"), server.Stop(ctx))
	}
	return server, nil
}

// NewRedis starts a redis-server for this test alone, which it may kill, pause and restart. Its data survives that, in an
// append-only file.
func NewRedis(t testing.TB) *services.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	server, err := startRedis(ctx, services.RedisConfig{DataDir: t.TempDir(), AOF: true})
	if err != nil {
		t.Fatalf("redis: %v", err)
	}
	cleanup(t, "redis", server.Stop)
	return server
}

// NATS starts a server with JetStream for this test alone, inside this process, which it may stop and restart.
func NATS(t testing.TB) *services.NATS {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	server, err := services.StartNATS(ctx, services.NATSConfig{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatalf("nats: %v", err)
	}
	cleanup(t, "nats", server.Stop)
	return server
}
