package services_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/internal/dev/services"
)

func startRedis(t *testing.T, cfg services.RedisConfig) *services.Redis {
	t.Helper()
	r, err := services.StartRedis(t.Context(), cfg)
	require.NoError(t, err)
	stopAtEnd(t, r.PID, r.Stop)
	return r
}

func redisClient(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	opts.ContextTimeoutEnabled, opts.ReadTimeout, opts.WriteTimeout, opts.DialTimeout = true, 2*time.Minute, 2*time.Minute, 2*time.Minute
	client := redis.NewClient(opts)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestRedisSettings(t *testing.T) {
	t.Parallel()
	r := startRedis(t, services.RedisConfig{DataDir: t.TempDir(), Databases: 40})
	require.False(t, r.InProcess)
	client := redisClient(t, r.URL(39))
	for setting, want := range map[string]string{
		"maxmemory-policy": "noeviction", "bind": "127.0.0.1", "save": "", "appendonly": "no", "protected-mode": "yes",
	} {
		got, err := client.ConfigGet(t.Context(), setting).Result()
		require.NoError(t, err)
		require.Equal(t, want, got[setting], setting)
	}
}

func TestRedisFaults(t *testing.T) {
	t.Parallel()
	for name, aof := range map[string]bool{"with AOF": true, "without AOF": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t, services.RedisConfig{DataDir: t.TempDir(), AOF: aof})
			url, first := r.URL(0), r.PID()
			client := redisClient(t, url)
			require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())

			require.NoError(t, r.Pause())
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, client.Get(ctx, "k").Err(), context.DeadlineExceeded)
			require.NoError(t, r.Resume())
			require.Equal(t, "v", client.Get(t.Context(), "k").Val())

			require.NoError(t, r.Kill())
			<-r.Done()
			require.Error(t, client.Ping(t.Context()).Err())
			require.NoError(t, r.Restart(t.Context()))
			require.Equal(t, url, r.URL(0))
			require.NotEqual(t, first, r.PID())
			// A write survives the death of the process as soon as the server has answered.
			want := int64(0)
			if aof {
				want = 1
			}
			require.Equal(t, want, redisClient(t, url).Exists(t.Context(), "k").Val())
		})
	}
}

func TestRedisStopWhilePaused(t *testing.T) {
	t.Parallel()
	r := startRedis(t, services.RedisConfig{DataDir: t.TempDir()})
	require.NoError(t, r.Pause())
	require.NoError(t, r.Stop(t.Context()))
	require.True(t, ended(r.PID()))
	require.Error(t, r.Restart(t.Context()), "Stop is for good")
}

func TestRedisInProcess(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	port := takePort(t)
	_, err := services.StartRedis(t.Context(), services.RedisConfig{DataDir: t.TempDir(), Port: port})
	var taken *services.PortTakenError
	require.ErrorAs(t, err, &taken)

	r := startRedis(t, services.RedisConfig{DataDir: t.TempDir()})
	require.True(t, r.InProcess)
	require.Zero(t, r.PID())
	client := redisClient(t, r.URL(0))
	require.NoError(t, client.Set(t.Context(), "stays", 1, 0).Err())
	require.NoError(t, client.Set(t.Context(), "goes", 1, 100*time.Millisecond).Err())
	require.Eventually(t, func() bool { return client.Exists(t.Context(), "goes").Val() == 0 }, 2*time.Minute, 10*time.Millisecond,
		"keys expire by the clock")
	require.Equal(t, int64(1), client.Exists(t.Context(), "stays").Val())

	require.ErrorIs(t, r.Kill(), services.ErrInProcess)
	require.ErrorIs(t, r.Pause(), services.ErrInProcess)
	require.NoError(t, r.Restart(t.Context()))
	require.Equal(t, int64(1), redisClient(t, r.URL(0)).Exists(t.Context(), "stays").Val())
	require.NoError(t, r.Stop(t.Context()))
	<-r.Done()
}
