package settler_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
	"tollgate/lua"
	"tollgate/migrations"
)

func TestSettlesAndWritesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	stop := w.settle()
	used, released, open := newReservation(time.Hour), newReservation(time.Hour), newReservation(time.Hour)
	w.reserve(used)
	w.reserve(released)
	w.publish(w.event(event.KindReserved, used), w.event(event.KindReserved, released), w.event(event.KindUsed, used), w.event(event.KindReleased, released))
	w.publish(w.event(event.KindReserved, open)) // Redis does not know it: it must learn of it
	w.awaitRedis(500, 1000)
	w.awaitState(used.ID, "settled")
	w.awaitState(released.ID, "released")
	w.awaitState(open.ID, "pending")

	w.publish(w.event(event.KindUsed, open))
	w.awaitRedis(1000, 0)
	w.requireVerified("")
	require.Equal(t, event.Confirmation{Through: w.sequence, Settled: true}, w.confirmation())
	w.eventually(func() error {
		if n := w.metric("tollgate_events_total"); n != 6 {
			return fmt.Errorf("counted %v events", n)
		}
		return nil
	})
	require.Positive(t, w.metric("tollgate_redis_seconds"))
	problems, err := testutil.GatherAndLint(w.metrics)
	require.NoError(t, err)
	require.Empty(t, problems)
	stop()
	w.awaitSettled() // nothing was given back: the server only has yet to look at what was acknowledged
}

// confirmation is what a settler says that it holds, once it can tell what was lost. It does not answer where Postgres takes long.
func (w *world) confirmation() (c event.Confirmation) {
	w.Helper()
	w.eventually(func() error {
		reply, err := w.nc.Request(event.ConfirmSubject, []byte("gw-1"), 5*time.Second)
		if err != nil {
			return err
		}
		c, err = event.DecodeConfirmation(reply.Data)
		require.NoError(w, err)
		if !c.Settled {
			return fmt.Errorf("settlers are behind: %+v", c)
		}
		return nil
	})
	return c
}

func (w *world) consumer() *jetstream.ConsumerInfo {
	w.Helper()
	consumer, err := w.js.Consumer(context.Background(), event.Stream, "settler")
	require.NoError(w, err)
	return consumer.CachedInfo()
}

func TestParksWhatCannotBeSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settleWith(testConfig())
	good := newReservation(time.Hour)
	poison := w.event(event.KindReserved, newReservation(time.Hour))
	poison.Sequence = 1 << 63 // valid JSON, and more than a column can hold
	w.sequence--
	w.send("ledger.used.checkout", "garbage", []byte("{"))
	w.send("ledger.used.checkout", "latin1", []byte("{\"v\":1,\"id\":\"\xe4\"}"))
	w.publish(w.event(event.KindReserved, good), poison, w.event(event.KindUsed, good))
	w.awaitState(good.ID, "settled")
	w.eventually(func() error {
		n, err := w.scan(`SELECT count(*)::text FROM parked_events`)
		if err == nil && n != "3" {
			err = fmt.Errorf("%s parked", n)
		}
		return err
	})
	w.requireVerified("I8 nothing-parked")
}

// A settler of the version before cannot read all that a newer gateway writes, and parks it. Who can read it settles it.
func TestSettlesWhatAnotherCouldNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	parkUnread := func(seq uint64, body []byte) {
		require.NoError(t, w.store.Park(t.Context(), seq, "ledger.used.checkout", "invalid event: of a later version", body, nil))
	}
	r, other := newReservation(time.Hour), newReservation(time.Hour)
	reserved := w.event(event.KindReserved, r)
	used, err := w.event(event.KindUsed, r).Encode()
	require.NoError(t, err)
	large := w.event(event.KindReserved, newReservation(time.Hour))
	large.Sequence = 1 << 63 // can be read and never be settled
	w.sequence--
	unsettled, err := large.Encode()
	require.NoError(t, err)
	stop := w.settle()
	w.reserve(r)
	stop()
	parkUnread(1, []byte("garbage"))
	parkUnread(2, unsettled)
	parkUnread(3, append(bytes.Clone(unsettled), 0xe4))
	parkUnread(4, used)
	parkUnread(5, used) // it was delivered twice
	later := newReservation(time.Hour)
	laterReserved, err := w.event(event.KindReserved, later).Encode()
	require.NoError(t, err)

	w.settle()
	w.publish(reserved, w.event(event.KindReserved, other), w.event(event.KindUsed, other))
	w.awaitState(r.ID, "settled")
	w.awaitRedis(1000, 0)
	parkUnread(6, laterReserved)
	w.awaitState(later.ID, "pending")
	w.eventually(func() error {
		if n := w.metric("tollgate_events_total"); n != 6 {
			return fmt.Errorf("%v events are counted: three of the stream, three that were parked, one of these twice", n)
		}
		return nil
	})
	w.requireVerified("I8 nothing-parked")
	checks, err := w.store.Verify(t.Context())
	require.NoError(t, err)
	for _, c := range checks {
		if c.Name == "I8 nothing-parked" {
			require.EqualValues(t, 3, c.Figure, "those that nobody can settle")
		}
	}
}

func TestPostgresAway(t *testing.T) {
	t.Parallel()
	server, url := stack.NewPostgres(t)
	require.NoError(t, migrations.Up(t.Context(), url))
	w := newWorld(t, parts{databaseURL: url})
	w.settle()
	before, during := newReservation(time.Hour), newReservation(time.Hour)
	w.reserve(before)
	w.reserve(during)
	w.publish(w.event(event.KindReserved, before), w.event(event.KindReserved, during))
	w.awaitState(before.ID, "pending")
	require.NoError(t, server.Kill())
	w.publish(w.event(event.KindUsed, before), w.event(event.KindUsed, during))
	require.NoError(t, server.Restart(t.Context()))
	w.awaitState(before.ID, "settled")
	w.awaitState(during.ID, "settled")
	w.awaitRedis(1000, 0)
	w.requireVerified("")
}

func TestRedisAway(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("settler restarted %t", restarted), func(t *testing.T) {
			t.Parallel()
			server := stack.NewRedis(t)
			w := newWorld(t, parts{redisURL: server.URL(0), redisTimeout: time.Second})
			stop := w.settle()
			r, late := newReservation(time.Hour), newReservation(time.Hour)
			w.reserve(r)
			w.publish(w.event(event.KindReserved, r))
			w.awaitState(r.ID, "pending")
			require.NoError(t, server.Pause())
			w.publish(w.event(event.KindUsed, r), w.event(event.KindReserved, late))
			w.awaitState(r.ID, "settled") // without Redis
			w.awaitState(late.ID, "pending")
			if restarted {
				stop()
			}
			require.NoError(t, server.Resume())
			if restarted {
				w.settle()
			}
			w.awaitRedis(500, 1000)
			w.eventually(func() error {
				if n := w.metric("tollgate_ledger_drift"); n != 0 {
					return fmt.Errorf("drift %v", n)
				}
				return nil
			})
		})
	}
}

func TestRedisEmptied(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	stop := w.settle()
	used, open := newReservation(time.Hour), newReservation(time.Hour)
	w.reserve(used)
	w.reserve(open)
	w.publish(w.event(event.KindReserved, used), w.event(event.KindUsed, used), w.event(event.KindReserved, open))
	w.awaitRedis(500, 1000)
	require.NoError(t, w.redis.FlushDB(t.Context()).Err())
	w.awaitRedis(500, 1000)
	stop()

	// And with nobody watching: the marks are gone, a request is refused, and it is the request that has them rebuilt.
	require.NoError(t, w.redis.FlushDB(t.Context()).Err())
	_, _, err := w.amounts()
	require.ErrorContains(t, err, fmt.Sprintf("status %d", lua.StatusRebuild))
	config := testConfig()
	config.RebuildEvery = time.Hour
	w.settleWith(config)
	w.askRebuild(lua.SharedSlot, app)
	w.awaitRedis(500, 1000)
}

func TestExpiresWhatNeverEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	recorded, unknown := newReservation(300*time.Millisecond), newReservation(300*time.Millisecond)
	w.reserve(recorded)
	w.reserve(unknown) // its gateway died before it recorded anything
	e := w.event(event.KindReserved, recorded)
	w.publish(e)
	w.awaitState(recorded.ID, "expired")
	w.awaitRedis(1000, 0)
	_, ok := w.parked()
	require.False(t, ok)

	w.publish(w.event(event.KindUsed, recorded)) // late, and right
	w.awaitState(recorded.ID, "settled")
	w.awaitRedis(500, 0)
	w.requireVerified("")
}

func (w *world) parked() (string, bool) {
	w.Helper()
	reason, err := w.scan(`SELECT coalesce((SELECT reason FROM parked_events LIMIT 1), '')`)
	require.NoError(w, err)
	return reason, reason != ""
}

// TestTwoSettlersExpireOnce: settlers that sweep at once must not publish contents that differ.
func TestTwoSettlersExpireOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	w.settle()
	var last event.Reservation
	for range 20 {
		last = newReservation(100 * time.Millisecond)
		w.publish(w.event(event.KindReserved, last))
	}
	w.awaitState(last.ID, "expired")
	w.awaitRedis(20_000, 0)
	reason, parked := w.parked()
	require.False(t, parked, reason)
	w.requireVerified("")
}

func TestStreamAndConsumerLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	first, second, third := newReservation(time.Hour), newReservation(time.Hour), newReservation(time.Hour)
	w.publish(w.event(event.KindReserved, first), w.event(event.KindUsed, first))
	w.awaitState(first.ID, "settled")
	require.NoError(t, w.js.DeleteConsumer(t.Context(), event.Stream, "settler"))
	w.publish(w.event(event.KindReserved, second), w.event(event.KindUsed, second))
	w.awaitState(second.ID, "settled")
	w.awaitSettled()
	require.NoError(t, w.js.DeleteStream(t.Context(), event.Stream))
	w.publish(w.event(event.KindReserved, third), w.event(event.KindUsed, third))
	w.awaitState(third.ID, "settled")
	require.NoError(t, w.nats.Restart(t.Context()))
	fourth := newReservation(time.Hour)
	w.publish(w.event(event.KindReserved, fourth), w.event(event.KindUsed, fourth))
	w.awaitState(fourth.ID, "settled")
	w.awaitRedis(2000, 0)
	w.requireVerified("")
}

// A consumer that remembers a position which the stream no longer reaches would pass over everything up to there.
func TestConsumerBeyondTheStreamsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	for range 5 {
		r := newReservation(time.Hour)
		w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
		w.awaitState(r.ID, "settled")
	}
	require.NoError(t, w.nats.Shutdown(t.Context()))
	store := filepath.Join(w.storeDir, "jetstream", "$G", "streams", event.Stream, "msgs")
	files, err := os.ReadDir(store)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	require.NoError(t, os.RemoveAll(store))
	require.NoError(t, w.nats.Restart(t.Context()))
	r := newReservation(time.Hour)
	w.publish(w.event(event.KindReserved, r), w.event(event.KindUsed, r))
	w.awaitState(r.ID, "settled")
	w.requireVerified("")
}

func TestReportsGapsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	r := newReservation(time.Hour)
	w.publish(w.event(event.KindReserved, r))
	w.awaitState(r.ID, "pending") // workers settle side by side: the last one first would be a longer gap
	w.sequence += 2               // two events are lost
	w.publish(w.event(event.KindUsed, r))
	w.eventually(func() error {
		if n := w.metric("tollgate_sequence_gaps_total"); n != 2 {
			return fmt.Errorf("%v gaps", n)
		}
		return nil
	})
	gaps, err := w.store.Gaps(t.Context())
	require.NoError(t, err)
	require.Equal(t, []pg.Gap{{Producer: "gw-1", From: 2, Until: 4}}, gaps)
	require.Equal(t, event.Confirmation{Through: 4, Missing: []event.Span{{From: 2, Until: 4}}, Settled: true}, w.confirmation())
}

// What arrives of a gap makes it smaller and is no reason to report the rest of it again.
func TestGapFilledInPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	var late []*event.Event
	for i := range 7 {
		r := newReservation(time.Hour)
		e := w.event(event.KindReserved, r)
		if i > 0 && i < 6 {
			late = append(late, e)
			continue
		}
		w.publish(e)
		w.awaitState(r.ID, "pending")
	}
	missing := func(total, left float64) func() error {
		return func() error {
			if t, l := w.metric("tollgate_sequence_gaps_total"), w.metric("tollgate_missing_events"); t != total || l != left {
				return fmt.Errorf("%v events were missing and %v are, want %v and %v", t, l, total, left)
			}
			return nil
		}
	}
	w.eventually(missing(5, 5))
	w.publish(late[2])
	w.eventually(missing(5, 4))
	w.publish(late[0], late[1], late[3], late[4])
	w.eventually(missing(5, 0))
}

func TestDirectoryFollowsPostgres(t *testing.T) {
	t.Parallel()
	w := newWorld(t, parts{})
	w.settle()
	ctx, hash := t.Context(), keys.Hash("tg-secret")
	require.NoError(t, w.store.CreateKey(ctx, pg.Key{ID: "k_1", App: app, Hash: hash}))
	w.awaitKey(hash, keys.Record{KeyID: "k_1", App: app, AppPlan: "paid"})
	require.NoError(t, w.store.RevokeKey(ctx, "k_1"))
	w.awaitKey(hash, keys.Record{KeyID: "k_1", App: app, AppPlan: "paid", Revoked: true})
	require.NoError(t, w.js.DeleteKeyValue(ctx, keys.Bucket))
	w.awaitKey(hash, keys.Record{KeyID: "k_1", App: app, AppPlan: "paid", Revoked: true})
}

func (w *world) awaitKey(hash string, want keys.Record) {
	w.Helper()
	w.eventually(func() error {
		bucket, err := w.js.KeyValue(context.Background(), keys.Bucket)
		if err != nil {
			return err
		}
		entry, err := bucket.Get(context.Background(), hash)
		if err != nil {
			return err
		}
		got, err := keys.Decode(entry.Value())
		if err == nil && got != want {
			err = fmt.Errorf("key is %+v", got)
		}
		return err
	})
}

func TestConfigNamesEveryProblem(t *testing.T) {
	t.Parallel()
	require.NoError(t, testConfig().Validate())
	config := testConfig()
	config.Batch, config.AckWait, config.Linger = 0, 0, -1
	err := config.Validate()
	for _, name := range []string{"TOLLGATE_SETTLER_BATCH", "TOLLGATE_SETTLER_ACK_WAIT", "TOLLGATE_SETTLER_LINGER"} {
		require.ErrorContains(t, err, name)
	}
}
