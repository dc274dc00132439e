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
	if err := execSQL(ctx, server, createDatabase(name)); err != nil {
		t.Fatalf("postgres: create database: %v", err)
	}
	cleanup(t, "database "+name, func(ctx context.Context) error {
		return execSQL(ctx, server, "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	})
	return server.URL(name)
}

// createDatabase copies the template's files: Postgres's own way, by its log, takes twice the processor time.
func createDatabase(name string) string {
	return "CREATE DATABASE " + pgx.Identifier{name}.Sanitize() + " TEMPLATE " + templateDatabase + " STRATEGY file_copy"
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
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	return startPostgres(ctx, "postgres")
})

// startPostgres starts a server that ends with the process, with its data in a shared folder of that name.
func startPostgres(ctx context.Context, folder string) (*services.Postgres, error) {
	dir, err := sharedDir(folder)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	server, err := services.StartPostgres(ctx, services.PostgresConfig{DataDir: dir, Port: port})
	if err != nil {
		return nil, err
	}
	onExit(server.Stop)
	return server, prepareTemplate(ctx, server)
}

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

// NewPostgres returns a server that is this test's alone, which it may kill, pause and restart, with the URL of a fresh database
// that has the schema of Options.Migrate. Servers go from test to test: to make one takes long.
func NewPostgres(t testing.TB) (server *services.Postgres, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	server, err := borrowPostgres(ctx)
	if err != nil {
		t.Fatalf("postgres: %v", err)
	}
	cleanup(t, "postgres", func(ctx context.Context) error { return returnPostgres(ctx, server) })
	const name = "tollgate"
	if err := execSQL(ctx, server, createDatabase(name)); err != nil {
		t.Fatalf("postgres: create database: %v", err)
	}
	return server, server.URL(name)
}

// idle are the servers of NewPostgres that no test has.
var idle struct {
	mu      sync.Mutex
	servers []*services.Postgres
}

var nextPostgres = counter()

func borrowPostgres(ctx context.Context) (*services.Postgres, error) {
	idle.mu.Lock()
	if n := len(idle.servers); n > 0 {
		server := idle.servers[n-1]
		idle.servers = idle.servers[:n-1]
		idle.mu.Unlock()
		return server, nil
	}
	idle.mu.Unlock()
	return startPostgres(ctx, fmt.Sprintf("postgres-%d", nextPostgres()))
}

// returnPostgres brings a server back to how it was before the test, whatever that did.
func returnPostgres(ctx context.Context, server *services.Postgres) error {
	select {
	case <-server.Done():
		if err := server.Restart(ctx); err != nil {
			return err
		}
	default:
		if err := server.Resume(); err != nil {
			return err
		}
	}
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database WHERE NOT datistemplate AND datname NOT IN ('postgres', $1)`, templateDatabase)
	if err != nil {
		return errors.Join(err, conn.Close(ctx))
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		_, dropped := conn.Exec(ctx, "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
		err = errors.Join(err, dropped)
	}
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	idle.mu.Lock()
	defer idle.mu.Unlock()
	idle.servers = append(idle.servers, server)
	return nil
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
		opts.DialTimeout, opts.ReadTimeout = stopLimit, stopLimit
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
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	server, err := startRedis(ctx, services.RedisConfig{DataDir: t.TempDir(), Port: port, AOF: true})
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
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	server, err := services.StartNATS(ctx, services.NATSConfig{StoreDir: t.TempDir(), Port: port})
	if err != nil {
		t.Fatalf("nats: %v", err)
	}
	cleanup(t, "nats", server.Stop)
	return server
}
