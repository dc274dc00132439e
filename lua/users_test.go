package lua

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
)

// manyUsers is how many users come once each; `tollgate bench users` has a million of them come through the whole admission.
const manyUsers = 20_000

// B10, U23, U31: every user who ever comes leaves keys of a kind, all with an end, and once the windows are over nothing is
// left of them. What is held for them is ended by the settlement.
func TestUsersWhoComeOnceLeaveNothing(t *testing.T) {
	t.Parallel()
	server := stack.NewRedis(t)
	client, err := Connect(server.URL(0), Options{Timeout: patience, PoolSize: 16})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	scripts := New(client)
	scripts.tombstoneTTL = 15 * time.Second
	mark := func() {
		for _, slot := range []string{SharedSlot, "shop"} {
			require.NoError(t, scripts.Rebuild(t.Context(), RebuildCall{Slot: slot, Generation: "1"}))
		}
	}
	mark()
	come(t, client, scripts, 0, 500) // scripts are loaded and buffers have their size
	require.NoError(t, client.FlushDB(t.Context()).Err())
	mark()
	memory := figure(t, client, "memory", "used_memory")

	held, peak := come(t, client, scripts, 500, 500+manyUsers)
	require.Greater(t, held, int64(manyUsers/10), "users have left traces, and some have gone where all take long to come")
	requireTTLs(t, client)
	took := requireGone(t, client, 2, memory+(peak-memory)/20)
	left := figure(t, client, "memory", "used_memory")
	t.Logf("%d users: %d keys, %d bytes a user at the peak; all gone after %s, %d bytes more than before",
		manyUsers, held, (peak-memory)/manyUsers, took.Round(time.Second), left-memory)
}

// come has users come once each, against every kind of rate, and settles what they used as a settler does. It returns the most keys
// and the most memory that Redis had meanwhile.
func come(t *testing.T, client *redis.Client, scripts *Scripts, from, to int) (keys, memory int64) {
	t.Helper()
	const each = 200
	done := make(chan error, (to-from+each-1)/each)
	turn := make(chan struct{}, 8)
	for start := from; start < to; start += each {
		turn <- struct{}{}
		go func() {
			defer func() { <-turn }()
			done <- comeAndSettle(t.Context(), scripts, start, min(start+each, to))
		}()
	}
	for range cap(done) {
		require.NoError(t, <-done)
		keys, memory = max(keys, figure(t, client, "keyspace", "db0")), max(memory, figure(t, client, "memory", "used_memory"))
	}
	return keys, memory
}

func comeAndSettle(ctx context.Context, scripts *Scripts, from, to int) error {
	var endings []Ending
	for i := from; i < to; i++ {
		call := &ReserveCall{
			ID: fmt.Sprint("r", i), App: "shop", Generation: "1", TTL: 15 * time.Second, Need: ledger.Amounts{Requests: 1, Tokens: 100},
			Rates: userRates(fmt.Sprint("user:shop/u", i)),
		}
		d, err := scripts.Reserve(ctx, call)
		if err == nil && d.Status != StatusAllowed {
			err = fmt.Errorf("%s: status %d", call.ID, d.Status)
		}
		if err != nil {
			return err
		}
		ending := Ending{ReservationID: call.ID, Held: call.Need, Spent: ledger.Amounts{Requests: 1, Tokens: 60}}
		for _, r := range call.Rates {
			ending.Rates = append(ending.Rates, r.Rate)
		}
		endings = append(endings, ending)
	}
	settled, err := scripts.Settle(ctx, "shop", nil, nil, endings)
	if err == nil && settled.Ended != int64(len(endings)) {
		err = fmt.Errorf("%+v of %d", settled, len(endings))
	}
	return err
}

func userRates(subject string) []Rate {
	rates := []Rate{
		{Rate: ledger.Rate{Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitRequests}, Amount: 10, Window: time.Second},
		{Rate: ledger.Rate{Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitTokens}, Amount: 1000, Window: 5 * time.Second},
		{Rate: ledger.Rate{Algorithm: ledger.AlgorithmTokenBucket, Unit: ledger.UnitTokens}, Amount: 1000, Window: 5 * time.Second, Burst: 1000},
		{Rate: ledger.Rate{Algorithm: ledger.AlgorithmSlidingCounter, Unit: ledger.UnitTokens}, Amount: 1000, Window: 5 * time.Second},
		{Rate: ledger.Rate{Algorithm: ledger.AlgorithmFixedWindow, Unit: ledger.UnitRequests}, Amount: 10, Window: 5 * time.Second},
		{Rate: ledger.Rate{Algorithm: ledger.AlgorithmConcurrency, Unit: ledger.UnitRequests}, Amount: 5},
	}
	for i := range rates {
		rates[i].Tier, rates[i].Limit, rates[i].Subject = ledger.TierUser, fmt.Sprint("limit-", i), subject
	}
	return rates
}

// requireGone waits until Redis has no more than so many keys and so much memory: for as long as the windows, a reservation that
// does not end, and the memory of one that has. Its own tables shrink later than what is in them.
func requireGone(t *testing.T, client *redis.Client, keys, memory int64) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		n, err := client.DBSize(t.Context()).Result()
		require.NoError(t, err)
		used := figure(t, client, "memory", "used_memory")
		if n <= keys && used < memory {
			return time.Since(start)
		}
		require.Less(t, time.Since(start), 3*time.Minute, "%d keys are left, and %d bytes where %d may be", n, used, memory)
		time.Sleep(200 * time.Millisecond)
	}
}

// requireTTLs fails where a key would live for ever.
func requireTTLs(t *testing.T, client *redis.Client) {
	t.Helper()
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		names, next, err := client.Scan(t.Context(), cursor, "*", 1000).Result()
		require.NoError(t, err)
		cursor = next
		pipe := client.Pipeline()
		for _, name := range names {
			pipe.PTTL(t.Context(), name)
		}
		answers, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		for i, answer := range answers {
			require.NotEqual(t, time.Duration(-1), answer.(*redis.DurationCmd).Val(), "%s has no time to live", names[i])
		}
	}
}

// figure reads a number of INFO; of a database, how many keys it has.
func figure(t *testing.T, client *redis.Client, section, name string) int64 {
	t.Helper()
	info, err := client.Info(t.Context(), section).Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		rest, found := strings.CutPrefix(strings.TrimSpace(line), name+":")
		if !found {
			continue
		}
		rest, _, _ = strings.Cut(strings.TrimPrefix(rest, "keys="), ",")
		n, err := strconv.ParseInt(rest, 10, 64)
		require.NoError(t, err)
		return n
	}
	t.Fatalf("INFO %s tells no %s", section, name)
	return 0
}
