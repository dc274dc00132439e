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
	"tollgate/lua"
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
	w.askRebuild(lua.SharedSlot, app)
	r := newReservation(time.Hour)
	w.reserve(r)
	w.publish(w.event(event.KindReserved, r))
	w.awaitState(r.ID, "pending")
	w.deleteKeys(appKeys)
	w.publish(w.event(event.KindUsed, r))
	w.awaitState(r.ID, "settled")
	w.askRebuild(app)
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
			used, open := newReservation(time.Hour), newReservation(time.Hour)
			w.reserve(used)
			w.reserve(open)
			w.publish(w.event(event.KindReserved, used), w.event(event.KindUsed, used), w.event(event.KindReserved, open))
			w.awaitState(open.ID, "pending")
			w.awaitRedis(500, 1000)
			w.deleteKeys(pattern)
			w.awaitRedis(500, 1000)
			w.eventually(func() error { // the rebuild may be done before it is counted why
				if n := w.metric("tollgate_settler_counters_lost_total"); n != 1 {
					return fmt.Errorf("%v counters were lost", n)
				}
				return nil
			})
			stop()

			config.CompareEvery = time.Hour
			w.settleWith(config)
			w.awaitRedis(500, 1000)
			other := newReservation(time.Hour)
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
	r := newReservation(time.Hour)
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
	r := newReservation(time.Hour)
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
	w.eventually(func() error { // first: a Redis that was killed may lack the write just made
		if generation := w.generation(); generation <= before {
			return fmt.Errorf("the generation is still %s", before)
		}
		return nil
	})
	w.awaitRedis(500, 0)
}

// A rebuild that waits for a gateway does not keep the settler from noticing that Redis was restarted.
func TestAnotherRedisIsNoticedWhileARebuildWaits(t *testing.T) {
	t.Parallel()
	w, server := settledOnce(t)
	presence, err := w.js.KeyValue(t.Context(), event.PresenceBucket)
	require.NoError(t, err)
	asked, err := w.nc.SubscribeSync(event.BarrierSubject("gw-paused"))
	require.NoError(t, err)
	w.eventually(func() error { // it answers no question, and a rebuild waits for it while it is present
		_, err := presence.PutString(t.Context(), "gw-paused", "")
		require.NoError(t, err)
		require.NoError(t, w.nc.PublishRequest(event.RebuildSubject, w.nc.NewInbox(), []byte("unseen")))
		_, err = asked.NextMsg(time.Second)
		return err
	})

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
	stop := w.settle()
	r := newReservation(time.Hour)
	w.reserve(r)
	w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
	w.awaitRedis(500, 0)
	w.awaitSettled()
	stop()
	config := testConfig()
	config.RebuildEvery = time.Hour
	w.settleWith(config)
	w.askRebuild(lua.SharedSlot, app) // after the look at its start, there is no other
	byHand := func(name string) (written event.Rebuilt) {
		require.NoError(t, json.Unmarshal([]byte(w.ask(event.HandRebuildSubject, name)), &written))
		return written
	}
	for _, name := range []string{"", app, "nobody"} {
		before := w.generation()
		written := byHand(name)
		if name == "nobody" {
			require.Contains(t, written.Error, `no app "nobody"`)
			continue
		}
		require.Equal(t, event.Rebuilt{Apps: 1, Counters: 2}, written)
		require.Greater(t, w.generation(), before)
		w.awaitRedis(500, 0)
	}

	// An app that has never been judged in Redis is rebuilt alone.
	unseen := newReservation(time.Hour)
	for _, kind := range []event.Kind{event.KindReserved, event.KindUsed} {
		e := w.event(kind, unseen)
		e.App = "unseen"
		w.publish(e)
	}
	w.awaitState(unseen.ID, "settled") // while it is open, everything would be rebuilt
	before := w.generation()
	require.Equal(t, event.Rebuilt{Apps: 1, Counters: 1}, byHand("unseen"))
	require.Equal(t, before, w.generation())
}
