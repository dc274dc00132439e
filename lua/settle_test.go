package lua

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

func (s *store) settle(opens []Open, endings ...Ending) SettleResult {
	s.t.Helper()
	r, err := s.Scripts.Settle(s.t.Context(), "a", nil, opens, endings)
	require.NoError(s.t, err)
	return r
}

func ending(c *ReserveCall, spent ledger.Tokens) Ending {
	e := Ending{ReservationID: c.ID, Counters: c.Counters, Held: c.Need, Spent: ledger.Amounts{Requests: 1, Tokens: spent}}
	for _, r := range c.Rates {
		e.Rates = append(e.Rates, r.Rate)
	}
	return e
}

func opened(c *ReserveCall) Open {
	return Open{ReservationID: c.ID, App: c.App, Held: c.Need, Counters: c.Counters, Deadline: time.Now().Add(c.TTL)}
}

func TestCorrectionKeepsALogAlive(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	c := fullCall("r")
	require.Equal(t, StatusAllowed, s.reserve(c).Status)
	require.EqualValues(t, 1, s.settle(nil, ending(c, 3)).Ended)
	s.requireTTLs()
	sumKey, log := rateKeys("a", &tokenLog)
	entries, err := s.redis.ZRange(t.Context(), log, 0, -1).Result()
	require.NoError(t, err)
	require.Equal(t, []string{"r:3"}, entries)
	sum, err := s.redis.Get(t.Context(), sumKey).Result()
	require.NoError(t, err)
	require.Equal(t, "3", sum)
}

func TestCorrectionAfterTheEntryLeftTheWindow(t *testing.T) {
	t.Parallel()
	for _, trimmed := range []bool{false, true} {
		s := newStore(t).open("a")
		rate := Rate{Rate: tokenLog, Amount: 100, Window: 20 * time.Millisecond}
		call := func(id string, need ledger.Tokens) *ReserveCall {
			return &ReserveCall{
				ID: id, App: "a", Generation: generation, TTL: time.Minute,
				Need: ledger.Amounts{Requests: 1, Tokens: need}, Rates: []Rate{rate},
			}
		}
		old := call("old", 60)
		d := s.reserve(old)
		require.Equal(t, StatusAllowed, d.Status)
		s.waitUntil(d.Now.Add(rate.Window))
		if trimmed {
			require.Equal(t, StatusAllowed, s.reserve(call("trims", 1)).Status)
		}
		require.EqualValues(t, 1, s.settle(nil, ending(old, 5000)).Ended)
		d = s.reserve(call("new", 50))
		require.Equal(t, StatusAllowed, d.Status, "what left the window is gone, whatever it turned out to be")
		require.LessOrEqual(t, d.Rates[0].Used, int64(1))
	}
}

// A bucket that has long drained still hears that more was spent than held, as long as the reservation may be open.
func TestCorrectionFindsAnIdleBucket(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	c := fullCall("r")
	c.TTL, c.Rates = time.Hour, []Rate{{Rate: tokenBucket, Amount: 1000, Window: time.Second, Burst: 1000}}
	require.Equal(t, StatusAllowed, s.reserve(c).Status)
	key, _ := rateKeys("a", &tokenBucket)
	ttl, err := s.redis.PTTL(t.Context(), key).Result()
	require.NoError(t, err)
	require.Greater(t, ttl, c.TTL-5*time.Minute)
	other := *c
	other.ID = "other"
	require.Equal(t, StatusAllowed, s.reserve(&other).Status)
	require.EqualValues(t, 1, s.settle(nil, ending(&other, 0)).Ended)
	ttl, err = s.redis.PTTL(t.Context(), key).Result()
	require.NoError(t, err)
	require.Greater(t, ttl, c.TTL-5*time.Minute, "one correction leaves the bucket for the next")
	require.EqualValues(t, 1, s.settle(nil, ending(c, 1_000_000)).Ended)
	d := s.reserve(func() *ReserveCall { next := *c; next.ID = "next"; return &next }())
	require.Equal(t, StatusRefused, d.Status)
	require.Greater(t, d.Rates[0].Used, int64(700_000))
	after, err := s.redis.PTTL(t.Context(), key).Result()
	require.NoError(t, err)
	require.Greater(t, after, 700*time.Second, "as long as the debt takes")
}

func TestNegativeHeldIsSetToZeroAndTold(t *testing.T) {
	t.Parallel()
	for _, amount := range []ledger.NanoUSD{5, 1 << 60} {
		s := newStore(t).open("a")
		c := fullCall("r")
		c.Budgets, c.Need.NanoUSD = nil, amount
		require.Equal(t, StatusAllowed, s.reserve(c).Status)
		key := counterKey("a", &appTotal)
		require.NoError(t, s.redis.HSet(t.Context(), key, "held_nanousd", int64(amount)-1).Err(), "a bug elsewhere")
		require.EqualValues(t, 1, s.settle(nil, ending(c, 0)).Negative)
		held, err := s.redis.HGet(t.Context(), key, "held_nanousd").Result()
		require.NoError(t, err)
		require.Equal(t, "0", held)
	}
}

func TestSettleOfManyGoesInChunks(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	var opens []Open
	var endings []Ending
	for i := range 3*settleChunk + 1 {
		c := fullCall(fmt.Sprint(i))
		c.Need.NanoUSD = 1<<53 + 1
		opens = append(opens, opened(c))
		endings = append(endings, ending(c, 10))
	}
	used := ledger.Amounts{Requests: 9}
	r, err := s.Scripts.Settle(t.Context(), "a", []ledger.CounterState{{Counter: appTotal, Used: used, Version: 1}}, opens, nil)
	require.NoError(t, err)
	require.Equal(t, SettleResult{Applied: true, Registered: 3*settleChunk + 1}, r)
	held, err := s.redis.HMGet(t.Context(), counterKey("a", &appTotal), "used_requests", "held_requests", "held_nanousd").Result()
	require.NoError(t, err)
	n := int64(3*settleChunk + 1)
	require.Equal(t, []any{"9", fmt.Sprint(n), fmt.Sprint(n * (1<<53 + 1))}, held)
	require.Equal(t, SettleResult{Applied: true, Ended: n}, s.settle(nil, endings...))
	require.Equal(t, SettleResult{Applied: true}, s.settle(nil, endings...))
	require.Empty(t, s.openReservations("a"))
	held, err = s.redis.HMGet(t.Context(), counterKey("a", &appTotal), "used_requests", "held_requests", "held_nanousd").Result()
	require.NoError(t, err)
	require.Equal(t, []any{"9", "0", "0"}, held)
	s.requireTTLs()
}

// An error half way must not leave a tombstone whose amounts are still held: what cannot be understood is found first.
func TestSettleOfAnUnreadableRecordWritesNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	good, bad := fullCall("good"), fullCall("bad")
	require.Equal(t, StatusAllowed, s.reserve(good).Status)
	require.NoError(t, s.redis.Set(t.Context(), reservationKey("a", "bad"), "gibberish", time.Minute).Err())
	before := s.dump()
	_, err := s.Scripts.Settle(t.Context(), "a", nil, nil, []Ending{ending(good, 1), ending(bad, 1)})
	require.ErrorContains(t, err, "is no reservation")
	require.Equal(t, before, s.dump())
}

func TestSettleDoesNothingWithoutAMark(t *testing.T) {
	t.Parallel()
	for _, slot := range []string{"a", SharedSlot} {
		s := newStore(t).open("a")
		c := fullCall("r")
		require.Equal(t, StatusAllowed, s.reserve(c).Status)
		require.NoError(t, s.redis.Del(t.Context(), markKey(slot)).Err())
		require.Equal(t, StatusRebuild, s.reserve(fullCall("other")).Status)
		before := s.dump()
		r, err := s.Scripts.Settle(t.Context(), "a", []ledger.CounterState{{Counter: appTotal, Version: 9}},
			[]Open{opened(fullCall("other"))}, []Ending{ending(c, 1)})
		require.NoError(t, err)
		require.Equal(t, SettleResult{}, r)
		require.Equal(t, before, s.dump())
	}
}

func TestReserveOfAnotherGenerationIsToldToRebuild(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	before := s.dump()
	c := fullCall("r")
	c.Generation = "g2"
	require.Equal(t, StatusRebuild, s.reserve(c).Status)
	require.NoError(t, s.Scripts.Rebuild(t.Context(), RebuildCall{Slot: "a", Generation: "g2"}))
	require.Equal(t, StatusRebuild, s.reserve(c).Status, "the shared slot is still of the first")
	require.NoError(t, s.Scripts.Rebuild(t.Context(), RebuildCall{Slot: SharedSlot, Generation: "g2"}))
	require.NotEqual(t, before, s.dump())
	require.Equal(t, StatusAllowed, s.reserve(c).Status)
}

func TestOverdueReservationsAreListedAndEnded(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	short, long := fullCall("short"), fullCall("long")
	short.TTL = time.Millisecond
	require.Equal(t, StatusAllowed, s.reserve(long).Status)
	d := s.reserve(short)
	require.Equal(t, StatusAllowed, d.Status)
	deadline := d.Now.Truncate(time.Millisecond).Add(short.TTL)

	found, err := s.Overdue(t.Context(), "a", deadline, 10)
	require.NoError(t, err)
	require.Empty(t, found, "a deadline is over after it, not at it")
	found, err = s.Overdue(t.Context(), "a", deadline.Add(time.Millisecond), 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "short", found[0].ReservationID)
	require.Equal(t, deadline, found[0].Deadline)
	for instant, want := range map[time.Time][]string{deadline: nil, deadline.Add(time.Millisecond): {"a"}} {
		apps, err := s.AppsOverdue(t.Context(), []string{"a", "without any"}, instant)
		require.NoError(t, err)
		require.Equal(t, want, apps)
	}

	for range 2 {
		require.NoError(t, s.EndOverdue(t.Context(), "a", found[0]))
		for _, counter := range []ledger.Counter{appTotal, planTotal} {
			held, err := s.redis.HMGet(t.Context(), counterKey("a", &counter), "held_requests", "held_tokens", "held_nanousd").Result()
			require.NoError(t, err)
			require.Equal(t, []any{"1", "10", "100"}, held, "what the other reservation holds")
		}
		s.requireTTLs()
	}
	require.Equal(t, StatusEnded, s.reserve(short).Status)
	require.Len(t, s.openReservations("a"), 1)
	limited, err := s.Overdue(t.Context(), "a", time.Now().Add(time.Hour), 1)
	require.NoError(t, err)
	require.Len(t, limited, 1)
}

// Its record is gone, which cannot happen within its life: the index must forget it all the same.
func TestAnOverdueReservationWithoutRecordIsForgotten(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("r")).Status)
	require.NoError(t, s.redis.Del(t.Context(), reservationKey("a", "r")).Err())
	found, err := s.Overdue(t.Context(), "a", time.Now().Add(time.Hour), 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, s.EndOverdue(t.Context(), "a", found[0]))
	require.Empty(t, s.openReservations("a"))
}

// More reservations and counters than one chunk takes.
func TestRebuildOfMany(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("forgotten")).Status)
	call := RebuildCall{Slot: "a", Generation: generation}
	const n = 2*rebuildChunk + 3
	for i := range n {
		own := appTotal
		own.Subject = fmt.Sprint("app:a#", i)
		c := fullCall(fmt.Sprint(i))
		c.Counters = []ledger.Counter{appTotal, own, planTotal}
		call.Open = append(call.Open, opened(c))
		call.Counters = append(call.Counters, ledger.CounterState{Counter: own, Used: ledger.Amounts{Tokens: 5}, Version: 3})
	}
	for range 2 {
		require.NoError(t, s.Scripts.Rebuild(t.Context(), call), "a second time changes nothing")
		require.Len(t, s.openReservations("a"), n)
		held, err := s.redis.HGetAll(t.Context(), counterKey("a", &appTotal)).Result()
		require.NoError(t, err)
		require.Equal(t, map[string]string{
			"version": "0", "used_requests": "0", "used_tokens": "0", "used_nanousd": "0",
			"held_requests": fmt.Sprint(n), "held_tokens": fmt.Sprint(10 * n), "held_nanousd": fmt.Sprint(100 * n),
		}, held)
		s.requireTTLs()
	}
	shared, err := s.redis.HGet(t.Context(), counterKey("a", &planTotal), "held_requests").Int64()
	require.NoError(t, err)
	require.EqualValues(t, 1, shared, "an app's rebuild leaves the shared counters alone")
}
