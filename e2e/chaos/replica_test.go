package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
)

// replica is a copy of Redis that lags, to be promoted.
type replica struct {
	server *services.Redis
	link   *stack.Link
	cut    time.Time // since when it gets nothing
}

// lag starts a replica, waits until it has everything, and cuts its link: what Redis writes from now on the replica lacks.
func (r *run) lag() {
	master := r.Redis
	server := stack.NewRedis(r.t)
	r.replica = &replica{server: server, link: stack.Proxy(r.t, master.Addr())}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	defer client.Close()
	host, port, _ := strings.Cut(r.replica.link.Addr, ":")
	ctx := r.t.Context()
	r.do(client.ConfigSet(ctx, "repl-diskless-load", "swapdb").Err())
	r.do(r.RedisClient.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err())
	r.do(client.SlaveOf(ctx, host, port).Err())
	r.Eventually(20*time.Second, "the replica is in step", func() error {
		info, err := client.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = fmt.Errorf("%s", info)
		}
		return err
	})
	r.replica.link.BlackHole(true)
	r.replica.cut = time.Now()
}

// promote makes the replica the Redis of all; the one before is gone with what only it had.
func (r *run) promote() {
	old, to := r.Redis, r.replica.server
	r.do(old.Kill())
	client := redis.NewClient(&redis.Options{Addr: to.Addr(), MaxRetries: -1})
	defer client.Close()
	r.do(client.SlaveOf(context.WithoutCancel(r.t.Context()), "NO", "ONE").Err())
	r.FailOver(to)
	r.losses = append(r.losses, span{r.replica.cut, time.Now()})
}

// span is a stretch of time.
type span struct{ from, until time.Time }
