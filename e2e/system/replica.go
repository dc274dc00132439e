package system

import (
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
)

// Replica is a copy of the system's Redis that gets nothing more of it since Cut.
type Replica struct {
	Cut time.Time

	system *System
	server *services.Redis
}

// Lag starts a replica, waits until it has everything, and cuts its link: what Redis writes from now on the replica lacks.
func (s *System) Lag() *Replica {
	s.t.Helper()
	ctx := s.t.Context()
	server := stack.NewRedis(s.t)
	link := stack.Proxy(s.t, s.Redis.Addr())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close()
	host, port, _ := strings.Cut(link.Addr, ":")
	require.NoError(s.t, client.ConfigSet(ctx, "repl-diskless-load", "swapdb").Err())
	require.NoError(s.t, s.RedisClient.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err())
	require.NoError(s.t, client.ReplicaOf(ctx, host, port).Err())
	s.Eventually(20*time.Second, "the replica is in step", func() error {
		info, err := client.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New(info)
		}
		return err
	})
	link.BlackHole(true)
	return &Replica{time.Now(), s, server}
}

// Promote makes the replica the Redis of all; the one before is gone with what only it had.
func (r *Replica) Promote() {
	s := r.system
	s.t.Helper()
	require.NoError(s.t, s.Redis.Kill())
	client := redis.NewClient(&redis.Options{Addr: r.server.Addr(), MaxRetries: -1})
	defer client.Close()
	require.NoError(s.t, client.ReplicaOf(s.t.Context(), "NO", "ONE").Err())
	s.FailOver(r.server)
}
