package settler_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
	"tollgate/ledger/event"
)

// appKeys matches what Redis has of the app alone.
const appKeys = "{app:" + app + "}:*"

func (w *world) deleteKeys(pattern string) {
	w.Helper()
	keys, err := w.redis.Keys(w.Context(), pattern).Result()
	require.NoError(w, err)
	require.NotEmpty(w, keys)
	require.NoError(w, w.redis.Del(w.Context(), keys...).Err())
}

// What ends while its app has no mark is given back nowhere, and the shared counters hold it until they are rebuilt, too.
func TestAppLosesItsKeysWhileItHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	config := testConfig()
	config.RebuildEvery = time.Hour // the app is missed by a request of its own
	w.settleWith(config)
	r := newReservation(time.Minute)
	w.reserve(r)
	w.publish(w.event(event.KindReserved, r))
	w.awaitState(r.ID, "pending")
	w.deleteKeys(appKeys)
	w.publish(w.event(event.KindUsed, r))
	w.awaitState(r.ID, "settled")
	_, err := w.nc.Request(event.RebuildSubject, []byte(app), patience)
	require.NoError(t, err)
	w.awaitRedis(500, 0)
}

// A counter that is deleted under its app's mark reads as unused: the comparison with the ledger finds it, or the next ending of
// what it held does.
func TestCounterIsDeleted(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"{app:" + app + "}:*:budget:*", "{shared}:*:budget:*"} {
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, parts{})
			config := testConfig()
			config.CompareEvery = time.Millisecond
			stop := w.settleWith(config)
			used, open := newReservation(time.Minute), newReservation(time.Minute)
			w.reserve(used)
			w.reserve(open)
			w.publish(w.event(event.KindReserved, used), w.event(event.KindUsed, used), w.event(event.KindReserved, open))
			w.awaitState(open.ID, "pending")
			w.awaitRedis(500, 1000)
			w.deleteKeys(pattern)
			w.awaitRedis(500, 1000)
			require.EqualValues(t, 1, w.metric("tollgate_settler_counters_lost_total"))
			stop()

			config.CompareEvery = time.Hour
			w.settleWith(config)
			w.awaitRedis(500, 1000)
			other := newReservation(time.Minute)
			w.reserve(other)
			w.publish(w.event(event.KindReserved, other))
			w.awaitState(other.ID, "pending")
			w.deleteKeys(pattern)
			w.publish(w.event(event.KindUsed, open))
			w.awaitRedis(1000, 1000)
			require.Positive(t, w.metric("tollgate_settler_negative_held_total"))
			w.publish(w.event(event.KindUsed, other))
			w.awaitRedis(1500, 0)
		})
	}
}

// What the ledger knows as open and Redis does not is held there again, once.
func TestOpenReservationIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	config := testConfig()
	config.CompareEvery = time.Millisecond
	w.settleWith(config)
	r := newReservation(time.Minute)
	w.publish(w.event(event.KindReserved, r))
	w.awaitRedis(0, 1000)
	w.deleteKeys("{app:" + app + "}:*:reservation:" + r.ID)
	w.eventually(func() error {
		return w.redis.Get(t.Context(), "{app:"+app+"}:tg1:reservation:"+r.ID).Err()
	})
	w.awaitRedis(0, 1000)
}

// settledOnce is a world with a Redis of its own, where one request was settled, and a settler.
func settledOnce(t *testing.T) (*world, *services.Redis) {
	t.Helper()
	server := stack.NewRedis(t)
	w := newWorld(t, parts{redisURL: server.URL(0)})
	w.settle()
	r := newReservation(time.Minute)
	w.reserve(r)
	w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
	w.awaitRedis(500, 0)
	return w, server
}

// A Redis that was restarted may lack its last writes, although its marks stand.
func TestAnotherRedisIsNotBelieved(t *testing.T) {
	t.Parallel()
	w, server := settledOnce(t)
	before := w.generation()
	w.redis.HSet(t.Context(), "{app:"+app+"}:tg1:budget:total::app:"+app, "used_nanousd", "0") // stands for a write that was lost
	require.NoError(t, server.Kill())
	require.NoError(t, server.Restart(t.Context()))
	w.awaitRedis(500, 0)
	require.Greater(t, w.generation(), before)
}

// A rebuild that waits for a gateway does not keep the settler from noticing that Redis was restarted.
func TestAnotherRedisIsNoticedWhileARebuildWaits(t *testing.T) {
	t.Parallel()
	w, server := settledOnce(t)
	presence, err := w.js.KeyValue(t.Context(), event.PresenceBucket)
	require.NoError(t, err)
	_, err = presence.PutString(t.Context(), "gw-paused", "") // it answers no question, and a rebuild waits for it
	require.NoError(t, err)
	asked, err := w.nc.SubscribeSync(event.BarrierSubject("gw-paused"))
	require.NoError(t, err)
	require.NoError(t, w.nc.PublishRequest(event.RebuildSubject, w.nc.NewInbox(), []byte("unseen")))
	_, err = asked.NextMsg(patience)
	require.NoError(t, err)

	before := w.generation()
	require.NoError(t, server.Kill())
	require.NoError(t, server.Restart(t.Context()))
	w.eventually(func() error {
		if w.generation() != before {
			return nil
		}
		_, err := presence.PutString(t.Context(), "gw-paused", "") // present for as long as it takes
		return errors.Join(fmt.Errorf("the generation is still %s", before), err)
	})
	require.NoError(t, presence.Delete(t.Context(), "gw-paused"))
	w.awaitRedis(500, 0)
}

// An order to rebuild is obeyed also while every mark stands.
func TestRebuildByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	config := testConfig()
	config.RebuildEvery = time.Hour
	w.settleWith(config)
	r := newReservation(time.Minute)
	w.reserve(r)
	w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
	w.awaitRedis(500, 0)
	for _, name := range []string{"", app, "nobody"} {
		before := w.generation()
		reply, err := w.nc.Request(event.HandRebuildSubject, []byte(name), patience)
		require.NoError(t, err)
		var written event.Rebuilt
		require.NoError(t, json.Unmarshal(reply.Data, &written))
		if name == "nobody" {
			require.Contains(t, written.Error, `no app "nobody"`)
			continue
		}
		require.Equal(t, event.Rebuilt{Apps: 1, Counters: 2}, written)
		require.Greater(t, w.generation(), before)
		w.awaitRedis(500, 0)
	}

	// An app that has never been judged in Redis is rebuilt alone.
	unseen := newReservation(time.Minute)
	for _, kind := range []event.Kind{event.KindReserved, event.KindUsed} {
		e := w.event(kind, unseen)
		e.App = "unseen"
		w.publish(e)
	}
	before := w.generation()
	require.Eventually(t, func() bool {
		reply, err := w.nc.Request(event.HandRebuildSubject, []byte("unseen"), patience)
		require.NoError(t, err)
		var written event.Rebuilt
		require.NoError(t, json.Unmarshal(reply.Data, &written))
		return written == event.Rebuilt{Apps: 1, Counters: 1}
	}, patience, 50*time.Millisecond)
	require.Equal(t, before, w.generation())
}
