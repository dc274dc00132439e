package system

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
)

// Replica is a copy of the system's Redis that has all of it until Cut, and gets nothing more of it some time later.
type Replica struct {
	Cut time.Time // zero before Lag

	system *System
	server *services.Redis
	link   *stack.Link
}

// Replicate starts a replica and waits until it has everything. The first one gives Redis another history, so that settlers take it
// for another Redis: see AwaitNoticed.
func (s *System) Replicate() *Replica {
	s.t.Helper()
	ctx := s.t.Context()
	server := stack.NewRedis(s.t)
	link := stack.Proxy(s.t, s.Redis.Addr())
	client := patient(server.Addr())
	defer client.Close()
	host, port, _ := strings.Cut(link.Addr, ":")
	require.NoError(s.t, client.ConfigSet(ctx, "repl-diskless-load", "swapdb").Err())
	require.NoError(s.t, s.RedisClient.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err())
	require.NoError(s.t, client.ReplicaOf(ctx, host, port).Err())
	s.Eventually(Patience, "the replica is in step", func() error {
		info, err := client.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New(info)
		}
		return err
	})
	return &Replica{system: s, server: server, link: link}
}

// patient is a client whose commands are made once and waited for.
func patient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, DialTimeout: Patience, ReadTimeout: Patience, MaxRetries: -1})
}

// Lag cuts the replica's link: what Redis writes from now on the replica lacks.
func (r *Replica) Lag() {
	s := r.system
	s.t.Helper()
	cut := time.Now()
	there := offset(s.t.Context(), s.RedisClient, "master_repl_offset")
	client := patient(r.server.Addr())
	defer client.Close()
	s.Eventually(time.Minute, "the replica has what was written", func() error {
		if here := offset(s.t.Context(), client, "slave_repl_offset"); there < 0 || here < there {
			return fmt.Errorf("%d of %d", here, there)
		}
		return nil
	})
	r.link.BlackHole(true)
	r.Cut = cut
}

// offset reads how far replication has come, -1 where that cannot be told.
func offset(ctx context.Context, client *redis.Client, name string) int64 {
	info, err := client.Info(ctx, "replication").Result()
	if err != nil {
		return -1
	}
	_, rest, _ := strings.Cut(info, name+":")
	figure, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(figure, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// AwaitNoticed waits until a settler knows which Redis answers, and has begun to rebuild it.
func (s *System) AwaitNoticed() {
	s.t.Helper()
	s.Eventually(Patience, "the Redis that answers is known", func() error {
		unnoticed, err := s.unnoticedRedis(s.t.Context())
		if err == nil && unnoticed > 0 {
			err = errors.New("marks name another")
		}
		return err
	})
}

// Promote makes the replica the Redis of all; the one before is gone with what only it had.
func (r *Replica) Promote() {
	s := r.system
	s.t.Helper()
	require.NoError(s.t, s.Redis.Kill())
	client := patient(r.server.Addr())
	defer client.Close()
	require.NoError(s.t, client.ReplicaOf(s.t.Context(), "NO", "ONE").Err())
	s.FailOver(r.server)
}
