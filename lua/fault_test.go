package lua

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// For each way in which a real Redis serves nobody: Reserve and Probe both fail, and both errors say so. Once it is over,
// both succeed.
func TestOutage(t *testing.T) {
	t.Parallel()
	set := func(name, value string) func(*redis.Client) error {
		return func(c *redis.Client) error { return c.ConfigSet(context.Background(), name, value).Err() }
	}
	replicaOf := func(host, port string) func(*redis.Client) error {
		return func(c *redis.Client) error { return c.ReplicaOf(context.Background(), host, port).Err() }
	}
	for name, row := range map[string]struct {
		begin, end func(*redis.Client) error
		answer     string
	}{
		"full":           {set("maxmemory", "1"), set("maxmemory", "0"), "OOM"},
		"a replica":      {replicaOf("127.0.0.1", "1"), replicaOf("NO", "ONE"), "READONLY"},
		"too few copies": {set("min-replicas-to-write", "1"), set("min-replicas-to-write", "0"), "NOREPLICAS"},
		"a replica that lost its primary": {
			func(c *redis.Client) error {
				if err := set("replica-serve-stale-data", "no")(c); err != nil {
					return err
				}
				return replicaOf("127.0.0.1", "1")(c)
			},
			replicaOf("NO", "ONE"), "MASTERDOWN",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := connectStore(t, stack.NewRedis(t).URL(0)).open("a")
			require.NoError(t, s.Probe(t.Context()))
			require.NoError(t, row.begin(s.redis))
			_, err := s.Scripts.Reserve(t.Context(), fullCall("r"))
			require.True(t, redis.HasErrorPrefix(err, row.answer), err)
			require.True(t, Outage(err), err)
			require.False(t, Unknown(err), err)
			err = s.Probe(t.Context())
			require.True(t, redis.HasErrorPrefix(err, row.answer), err)
			require.True(t, Outage(err), err)
			require.NoError(t, row.end(s.redis))
			require.NoError(t, s.Probe(t.Context()))
			require.Equal(t, StatusAllowed, s.reserve(fullCall("r")).Status)
		})
	}
}

// Nobody answers, or nobody is there.
func TestOutageWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := stack.NewRedis(t)
	client, err := Connect(server.URL(0), Options{Timeout: 40 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	scripts := New(client)
	require.NoError(t, server.Pause())
	_, err = scripts.Reserve(t.Context(), fullCall("r"))
	require.True(t, Outage(err), err)
	require.True(t, Outage(scripts.Probe(t.Context())))
	require.NoError(t, server.Kill())
	_, err = scripts.Reserve(t.Context(), fullCall("r"))
	require.True(t, Outage(err), err)
	require.True(t, Outage(scripts.Probe(t.Context())))
}

// What is wrong with one call or its keys says nothing about Redis.
func TestNoOutage(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	require.False(t, Outage(nil))
	_, err := s.Scripts.Reserve(t.Context(), &ReserveCall{ID: "r", App: "a", TTL: -1, Rates: []Rate{{}}})
	require.ErrorIs(t, err, ErrCall)
	require.False(t, Outage(err), err)
	require.False(t, Outage(fmt.Errorf("reserve: %w", ErrReply)))

	require.Equal(t, StatusAllowed, s.reserve(fullCall("r")).Status)
	for _, key := range s.keys("*budget*") {
		require.NoError(t, s.redis.Del(t.Context(), key).Err())
		require.NoError(t, s.redis.LPush(t.Context(), key, "nonsense").Err())
	}
	_, err = s.Scripts.Reserve(t.Context(), fullCall("r2"))
	require.ErrorContains(t, err, "WRONGTYPE")
	require.False(t, Outage(err), err)
	require.NoError(t, s.Probe(t.Context()))
}

func TestProbeTouchesItsOwnKeyOnly(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("r")).Status)
	before := s.dump()
	for range 3 {
		require.NoError(t, s.Probe(t.Context()))
	}
	after := s.dump()
	require.Contains(t, after, "{shared}:"+version+":probe")
	delete(after, "{shared}:"+version+":probe")
	require.Equal(t, before, after)
	s.requireTTLs()
}

// A script that is not known is sent, once.
func TestProbeWithoutItsScript(t *testing.T) {
	t.Parallel()
	s := connectStore(t, stack.NewRedis(t).URL(0))
	require.NoError(t, s.Probe(t.Context()))
	require.NoError(t, s.redis.ScriptFlush(t.Context()).Err())
	require.NoError(t, s.redis.ConfigResetStat(t.Context()).Err())
	require.NoError(t, s.Probe(t.Context()))
	require.Equal(t, map[string]int64{"eval": 1, "evalsha": 0}, s.scriptCalls())
}
