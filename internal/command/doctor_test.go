package command_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
)

// Everything in place: a line each, exit code 0, and nothing changed that doctor only looked at.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	database, queue, redis := stack.Postgres(t), stack.NATS(t).ClientURL(), stack.NewRedis(t)
	env := []string{"DATABASE_URL=" + database, "NATS_URL=" + queue, "REDIS_URL=" + redis.URL(0), house, "HOUSE_KEY=x", "TOLLGATE_ADMIN=127.0.0.1:0"}
	mustRun(t, env, "policy", "push", write(t, "policy.yaml", soundPolicy))
	settler := stack.Start(t, "settler", []string{"settler"}, env)
	settler.WaitLog("settler is settling")

	r := tollgate(t, env, "doctor")
	for range 5 {
		if !strings.Contains(r.stdout, "time") || r.code == 0 {
			break
		}
		r = tollgate(t, env, "doctor") // a server stood still for longer than doctor waits
	}
	require.Zero(t, r.code, r.stdout)
	require.Empty(t, r.stderr)
	for _, want := range []string{
		"ok configuration every variable can be read", "ok postgres version ", "ok postgres clock within ", "ok migrations all ",
		"ok redis version ", "ok redis clock within ", "ok redis mode master", "ok redis eviction noeviction", "ok redis disk appendonly",
		"ok nats version ", "ok stream TOLLGATE_LEDGER, ", "ok consumer settler, ", "ok policy pushed as revision 1 ",
	} {
		require.Contains(t, strings.Join(lines(r.stdout), "\n"), want)
	}
	require.NotContains(t, r.stdout, "PROBLEM")
	require.Equal(t, 0, settler.Term())
}

// Nothing in place: every line says what to do.
func TestDoctorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	_, url := stack.NewPostgres(t)
	execute(t, url, "CREATE DATABASE empty")
	queue := stack.NATS(t)
	redis, err := services.StartRedis(t.Context(), services.RedisConfig{DataDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, redis.Stop(context.Background())) })
	setEviction(t, redis.URL(0))
	env := []string{
		"DATABASE_URL=" + strings.Replace(url, "/tollgate", "/empty", 1), "NATS_URL=" + queue.ClientURL(), "REDIS_URL=" + redis.URL(0),
		"TOLLGATE_MAX_BODY_BYTES=1",
	}
	r := tollgate(t, env, "doctor")
	require.Equal(t, 1, r.code)
	require.Equal(t, "5 things to do\n", r.stderr)
	for _, want := range []string{
		"PROBLEM configuration TOLLGATE_MAX_BODY_BYTES: must be at least 1024",
		"PROBLEM migrations none is applied: run 'tollgate migrate up'",
		`PROBLEM redis eviction maxmemory-policy is "allkeys-lru": `,
		"warning redis disk appendonly is off",
		"PROBLEM stream TOLLGATE_LEDGER does not exist: start a settler",
		"PROBLEM policy none: run 'tollgate policy push FILE'",
	} {
		require.Contains(t, strings.Join(lines(r.stdout), "\n"), want)
	}
	require.Empty(t, query[string](t, strings.Replace(url, "/tollgate", "/empty", 1), `SELECT tablename FROM pg_tables WHERE schemaname = 'public'`),
		"doctor only looks")
}

func TestDoctorWithoutAnything(t *testing.T) {
	t.Parallel()
	env := []string{
		"DATABASE_URL=postgres://me:hush@" + stack.FreeAddr(t) + "/x", "NATS_URL=nats://me:hush@" + stack.FreeAddr(t),
		"REDIS_URL=redis://:hush@" + stack.FreeAddr(t), "TOLLGATE_POLICY=" + write(t, "policy.yaml", soundPolicy),
	}
	stack.Binary(t) // may have to be built first
	start := time.Now()
	r := tollgate(t, env, "doctor")
	require.Equal(t, 1, r.code)
	require.Less(t, time.Since(start), patience/2)
	require.Equal(t, "3 things to do\n", r.stderr)
	for _, want := range []string{"PROBLEM postgres DATABASE_URL: ", "PROBLEM redis REDIS_URL: ", "PROBLEM nats NATS_URL: "} {
		require.Contains(t, strings.Join(lines(r.stdout), "\n"), want)
	}
	require.NotContains(t, r.stdout+r.stderr, "hush")

	r = tollgate(t, []string{"TOLLGATE_LIMITER_TIMEOUT=soon"}, "doctor")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "TOLLGATE_LIMITER_TIMEOUT: ")
}
