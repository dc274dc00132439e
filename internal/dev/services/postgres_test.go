package services_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"tollgate/internal/dev/services"
	"tollgate/internal/dev/services/child"
)

func startPostgres(t *testing.T, cfg services.PostgresConfig) *services.Postgres {
	t.Helper()
	p, err := services.StartPostgres(t.Context(), cfg)
	require.NoError(t, err)
	stopAtEnd(t, p.PID, p.Stop)
	return p
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // Some tests end the server first.
	return conn
}

func query[T any](t *testing.T, url, sql string) T {
	t.Helper()
	var value T
	require.NoError(t, connect(t, url).QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func TestPostgresSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startPostgres(t, services.PostgresConfig{DataDir: dir, Fsync: true})
	for setting, want := range map[string]string{
		"server_encoding": "UTF8", "lc_collate": "C", "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
		"fsync": "on", "synchronous_commit": "on", "TimeZone": "UTC", "password_encryption": "scram-sha-256",
	} {
		require.Equal(t, want, query[string](t, p.URL("postgres"), "SELECT current_setting('"+setting+"')"), setting)
	}

	info, err := os.Stat(filepath.Join(dir, "password"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	left, err := filepath.Glob(filepath.Join(dir, ".initdb-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the copy of the password for initdb is gone")

	cfg, err := pgx.ParseConfig(p.URL("postgres"))
	require.NoError(t, err)
	cfg.Password = "wrong"
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	require.ErrorContains(t, err, "password authentication failed")
}

func TestPostgresWithoutFsync(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, services.PostgresConfig{DataDir: t.TempDir()})
	require.Equal(t, "off", query[string](t, p.URL("postgres"), "SHOW fsync"))
	require.Equal(t, "on", query[string](t, p.URL("postgres"), "SHOW synchronous_commit"), "a kill must not lose commits")
}

func TestPostgresKeepsDatabases(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: dir})
	require.NoError(t, err)
	require.NoError(t, p.CreateDatabase(t.Context(), `odd "name"`))
	require.NoError(t, p.CreateDatabase(t.Context(), "tollgate"))
	require.NoError(t, p.CreateDatabase(t.Context(), "tollgate"), "idempotent")
	_, err = connect(t, p.URL("tollgate")).Exec(t.Context(), "CREATE TABLE kept AS SELECT 42 AS n")
	require.NoError(t, err)

	require.NoError(t, p.Stop(t.Context()), "with a session open")
	require.True(t, ended(p.PID()))
	require.Error(t, p.Restart(t.Context()), "Stop is for good")

	p = startPostgres(t, services.PostgresConfig{DataDir: dir})
	require.Equal(t, 42, query[int](t, p.URL("tollgate"), "SELECT n FROM kept"))
}

func TestPostgresSurvivesKillAndPause(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, services.PostgresConfig{DataDir: t.TempDir()})
	url := p.URL("postgres")
	conn := connect(t, url)
	_, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 42 AS n")
	require.NoError(t, err)

	require.NoError(t, p.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = conn.Exec(ctx, "SELECT 1")
	require.ErrorIs(t, err, context.DeadlineExceeded, "a session that exists is paused too")
	require.NoError(t, p.Resume())
	require.Equal(t, 42, query[int](t, url, "SELECT n FROM kept"))

	require.NoError(t, p.Kill())
	<-p.Done()
	_, err = pgx.Connect(t.Context(), url)
	require.Error(t, err)
	require.NoError(t, p.Restart(t.Context()))
	require.Equal(t, url, p.URL("postgres"), "same port, same password")
	require.Equal(t, 42, query[int](t, url, "SELECT n FROM kept"))
}

func TestPostgresBehindAClosedFolder(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(openDir(t), "closed")
	require.NoError(t, os.Mkdir(closed, 0o700))
	dir := filepath.Join(closed, "repository", ".tollgate", "postgres")
	p := startPostgres(t, services.PostgresConfig{DataDir: dir})
	require.Equal(t, 1, query[int](t, p.URL("postgres"), "SELECT 1"))
	if os.Geteuid() == 0 {
		info, err := os.Stat(filepath.Join(dir, "data"))
		require.NoError(t, err)
		require.NotZero(t, info.Sys().(*syscall.Stat_t).Uid, "the cluster belongs to an ordinary user")
	}
	require.NoError(t, p.Restart(t.Context()))
}

func TestPostgresInAReachableFolderHasNoCapability(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, services.PostgresConfig{DataDir: filepath.Join(openDir(t), "postgres")})
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/status")
	require.NoError(t, err)
	require.Contains(t, string(status), "\nCapEff:\t0000000000000000\n")
}

func TestPostgresLockFileWhoseProcessIsAnother(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openDir(t), "postgres")
	p, err := services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: dir})
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	require.NoError(t, p.Stop(t.Context()))

	// A process of the same user, whose id Postgres would take for a running server.
	owner, err := os.Stat(filepath.Join(dir, "data"))
	require.NoError(t, err)
	stat := owner.Sys().(*syscall.Stat_t)
	cfg := child.Config{Path: "/bin/sleep", Args: []string{"1000"}, LogPath: filepath.Join(t.TempDir(), "log")}
	if os.Geteuid() == 0 {
		cfg.RunAs = &child.Credential{UID: stat.Uid, GID: stat.Gid}
		cfg.Dir = "/"
	}
	other, err := child.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Kill()) })
	lock := filepath.Join(dir, "data", "postmaster.pid")
	text, err := os.ReadFile(lock)
	require.NoError(t, err, "a killed server leaves its lock file")
	_, rest, _ := strings.Cut(string(text), "\n")
	require.NoError(t, os.WriteFile(lock, []byte(strconv.Itoa(other.PID())+"\n"+rest), 0o600))

	startPostgres(t, services.PostgresConfig{DataDir: dir})
	require.False(t, ended(other.PID()))
}

func TestPostgresRefusesDataOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9\n"), 0o600))
	_, err := services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: dir, CacheDir: t.TempDir()})
	var version *services.VersionError
	require.ErrorAs(t, err, &version)
	require.Equal(t, "9", version.Data)
	require.NotEmpty(t, version.Found)
	require.ErrorContains(t, err, dir)
}

func TestPostgresLeavesForeignFilesAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "data", "thesis.txt")
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("years of work"), 0o600))
	_, err := services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: dir})
	require.ErrorContains(t, err, "holds no database cluster")
	require.FileExists(t, file)
}

func TestPostgresThatGivesUpShowsItsLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: dir})
	require.NoError(t, err)
	require.NoError(t, p.Stop(t.Context()))
	conf := filepath.Join(dir, "data", "postgresql.auto.conf")
	require.NoError(t, os.WriteFile(conf, []byte("no_such_setting = 1\n"), 0o644))
	_, err = services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: dir})
	var start *services.StartError
	require.ErrorAs(t, err, &start)
	require.Contains(t, start.Log, "no_such_setting")

	require.NoError(t, os.WriteFile(conf, nil, 0o644))
	startPostgres(t, services.PostgresConfig{DataDir: dir})
}

func TestPostgresStartIsCancelled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 400 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		p, err := services.StartPostgres(ctx, services.PostgresConfig{DataDir: dir})
		cancel()
		if err == nil {
			require.NoError(t, p.Stop(t.Context()))
			continue
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var none *services.NoPostgresError
		require.NotErrorAs(t, err, &none, "a start that is cut short must not turn to a download")
	}
	startPostgres(t, services.PostgresConfig{DataDir: dir})
}
