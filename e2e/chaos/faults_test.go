package chaos

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/e2e/system"
	"tollgate/ledger/event"
)

// fault is something that happens to a component and ends. begin and end run on the test's goroutine and wait for nobody who may
// be hurt as well.
type fault struct {
	name    string
	on      string // the component; none has two faults at a time
	instant bool   // nothing lasts, and there is no end
	begin   func(r *run, whom int)
	end     func(r *run, whom int)
}

// Components.
const (
	onGateway, onSettler, onRedis, onNATS, onPostgres, onLinks = "gateway", "settler", "redis", "nats", "postgres", "links"
)

func gateway(r *run, whom int) *system.Part { return r.Gateways[whom%len(r.Gateways)] }
func settler(r *run, whom int) *system.Part { return r.Settlers[whom%len(r.Settlers)] }

type choice func(r *run, whom int) *system.Part

func killed(name, on string, of choice) fault {
	return fault{
		name: name, on: on,
		begin: func(r *run, whom int) { of(r, whom).Kill() },
		end:   func(r *run, whom int) { of(r, whom).Launch() },
	}
}

func paused(name, on string, of choice) fault {
	return fault{
		name: name, on: on,
		begin: func(r *run, whom int) { of(r, whom).Pause() },
		end:   func(r *run, whom int) { of(r, whom).Resume() },
	}
}

// stopped is a restart by a supervisor that kills what does not end in time.
func stopped(name, on string, of choice) fault {
	return fault{
		name: name, on: on,
		begin: func(r *run, whom int) { of(r, whom).Terminate() },
		end: func(r *run, whom int) {
			of(r, whom).Kill()
			of(r, whom).Launch()
		},
	}
}

// linked hurts the ways of all gateways and settlers to one server.
func linked(name, link string, begin, end func(l *stack.Link)) fault {
	each := func(do func(l *stack.Link)) func(r *run, whom int) {
		return func(r *run, _ int) {
			for _, p := range append(append([]*system.Part{}, r.Gateways...), r.Settlers...) {
				if l := p.Links[link]; l != nil {
					do(l)
				}
			}
		}
	}
	f := fault{name: name, on: onLinks, begin: each(begin), instant: end == nil}
	if end != nil {
		f.end = each(end)
	}
	return f
}

// isolated cuts one gateway off one server, silently.
func isolated(name, link string) fault {
	return fault{
		name: name, on: onLinks,
		begin: func(r *run, whom int) { gateway(r, whom).Links[link].BlackHole(true) },
		end:   func(r *run, whom int) { gateway(r, whom).Links[link].BlackHole(false) },
	}
}

func asked(name, on string, do func(ctx context.Context, r *run) error) fault {
	return fault{name: name, on: on, instant: true, begin: func(r *run, _ int) {
		ctx, cancel := context.WithTimeout(r.t.Context(), system.Patience)
		defer cancel()
		err := do(ctx, r)
		if isGone(err) {
			r.t.Logf("%s: %v", name, err)
			return
		}
		require.NoError(r.t, err, name)
	}}
}

// isGone tells that another fault has taken what this one was to hurt, and the settlers have not yet made it anew.
func isGone(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, jetstream.ErrConsumerDoesNotExist)
}

func (r *run) do(err error) { r.t.Helper(); require.NoError(r.t, err) }

func drop(l *stack.Link)  { l.Drop() }
func slow(l *stack.Link)  { l.SetLatency(30 * time.Millisecond) }
func quick(l *stack.Link) { l.SetLatency(0) }

var faults = []fault{
	killed("gateway killed", onGateway, gateway),
	paused("gateway paused", onGateway, gateway),
	stopped("gateway restarted", onGateway, gateway),
	killed("settler killed", onSettler, settler),
	paused("settler paused", onSettler, settler),
	stopped("settler restarted", onSettler, settler),
	{
		name: "gateway's disk full", on: onGateway,
		begin: func(r *run, whom int) { gateway(r, whom).LimitFiles(1) },
		end:   func(r *run, whom int) { gateway(r, whom).NoFileLimit() },
	},
	{
		name: "redis killed", on: onRedis,
		begin: func(r *run, _ int) { r.do(r.Redis.Kill()) },
		end:   func(r *run, _ int) { r.do(r.Redis.Restart(r.t.Context())) },
	},
	{
		name: "redis paused", on: onRedis,
		begin: func(r *run, _ int) { r.do(r.Redis.Pause()) },
		end:   func(r *run, _ int) { r.do(r.Redis.Resume()) },
	},
	asked("redis emptied", onRedis, func(ctx context.Context, r *run) error { return r.RedisClient.FlushAll(ctx).Err() }),
	asked("redis scripts flushed", onRedis, func(ctx context.Context, r *run) error { return r.RedisClient.ScriptFlush(ctx).Err() }),
	asked("redis keys of an app deleted", onRedis, deleteKeys("{app:"+system.App+"}:*", 0)),
	asked("redis counter deleted", onRedis, deleteKeys("{app:"+system.App+"}:*:budget:*", 1)),
	{
		name: "redis replica promoted", on: onRedis,
		begin: func(r *run, _ int) { r.lag() },
		end:   func(r *run, _ int) { r.promote() },
	},
	{
		name: "nats stopped", on: onNATS,
		begin: func(r *run, _ int) { r.do(r.NATS.Shutdown(r.t.Context())) },
		end:   func(r *run, _ int) { r.do(r.NATS.Restart(r.t.Context())) },
	},
	{
		name: "nats emptied", on: onNATS,
		begin: func(r *run, _ int) { r.do(r.NATS.Empty(r.t.Context())) },
		end: func(r *run, _ int) {
			r.do(r.NATS.Restart(r.t.Context()))
			r.owed = true // the policy is gone, too: who runs Tollgate pushes it again
		},
	},
	asked("stream purged", onNATS, func(ctx context.Context, r *run) error {
		stream, err := r.JetStream.Stream(ctx, event.Stream)
		if err != nil {
			return err
		}
		return stream.Purge(ctx)
	}),
	asked("stream deleted", onNATS, func(ctx context.Context, r *run) error { return r.JetStream.DeleteStream(ctx, event.Stream) }),
	asked("delivered again", onNATS, deliverAgain),
	asked("delivered stale", onNATS, deliverStale),
	asked("events taken and given back", onNATS, giveBack),
	{name: "delivered over and over", on: onNATS, begin: ackWithin(20 * time.Millisecond), end: ackWithin(ackWait)},
	{
		name: "postgres killed", on: onPostgres,
		begin: func(r *run, _ int) { r.do(r.Postgres.Kill()) },
		end:   func(r *run, _ int) { r.do(r.Postgres.Restart(r.t.Context())) },
	},
	{
		name: "postgres paused", on: onPostgres,
		begin: func(r *run, _ int) { r.do(r.Postgres.Pause()) },
		end:   func(r *run, _ int) { r.do(r.Postgres.Resume()) },
	},
	{
		name: "postgres restored from a copy", on: onPostgres,
		begin: func(r *run, _ int) { r.copyLedger() },
		end:   func(r *run, _ int) { r.restoreLedger() },
	},
	linked("provider connections dropped", system.LinkSim, drop, nil),
	linked("redis connections dropped", system.LinkRedis, drop, nil),
	linked("nats connections dropped", system.LinkNATS, drop, nil),
	linked("postgres connections dropped", system.LinkPostgres, drop, nil),
	linked("redis slow", system.LinkRedis, slow, quick),
	linked("nats slow", system.LinkNATS, slow, quick),
	linked("postgres slow", system.LinkPostgres, slow, quick),
	isolated("a gateway's way to redis black", system.LinkRedis),
	isolated("a gateway's way to nats black", system.LinkNATS),
	{
		// What a settler has committed is long in coming to Redis, while the others see it in Postgres.
		name: "a settler's way to redis slow", on: onLinks,
		begin: func(r *run, whom int) { settler(r, whom).Links[system.LinkRedis].SetLatency(150 * time.Millisecond) },
		end:   func(r *run, whom int) { quick(settler(r, whom).Links[system.LinkRedis]) },
	},
}

// deleteKeys deletes keys by pattern, at most so many; 0 is all.
func deleteKeys(pattern string, most int) func(ctx context.Context, r *run) error {
	return func(ctx context.Context, r *run) error {
		keys, err := r.RedisClient.Keys(ctx, pattern).Result()
		if err != nil || len(keys) == 0 {
			return err
		}
		if most > 0 {
			keys = keys[:min(most, len(keys))]
		}
		return r.RedisClient.Del(ctx, keys...).Err()
	}
}
