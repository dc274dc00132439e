package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/lua"
)

// limiter is the scripts on real Redis with the marks of the app "shop" set.
func limiter(t *testing.T) *lua.Scripts {
	t.Helper()
	client, err := lua.Connect(stack.Redis(t), lua.Options{Timeout: 30 * time.Second, PoolSize: 64})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	scripts := lua.New(client)
	for _, slot := range []string{lua.SharedSlot, "shop"} {
		require.NoError(t, scripts.Rebuild(t.Context(), lua.RebuildCall{Slot: slot, Generation: "1"}))
	}
	return scripts
}

// reserveCall is a request of so many tokens that meets one limit.
func reserveCall(id string, tokens ledger.Tokens, rate lua.Rate) *lua.ReserveCall {
	rate.Tier, rate.Limit, rate.Subject = ledger.TierApp, "the-limit", "app:shop"
	return &lua.ReserveCall{
		ID: id, App: "shop", Generation: "1", TTL: time.Minute, Need: ledger.Amounts{Requests: 1, Tokens: tokens}, Rates: []lua.Rate{rate},
	}
}

func rate(algorithm ledger.Algorithm, unit ledger.Unit, amount int64, window time.Duration, burst int64) lua.Rate {
	return lua.Rate{Rate: ledger.Rate{Algorithm: algorithm, Unit: unit}, Amount: amount, Window: window, Burst: burst}
}

// most is the largest number of the instants that lie in any one window of the length, the window's end left out.
func most(instants []time.Time, window time.Duration) int {
	slices.SortFunc(instants, time.Time.Compare)
	highest, first := 0, 0
	for i, at := range instants {
		for !instants[first].Add(window).After(at) {
			first++
		}
		highest = max(highest, i-first+1)
	}
	return highest
}

// H1: of 200 clients that push 800 tokens a request against 50,000 a window, 62 pass within a window and never more, wherever
// the window begins. A bucket admits in a window what it holds and what flows in, 50,000 together here.
func TestTokensOfAnyWindow(t *testing.T) {
	t.Parallel()
	const clients, tokens, want, window = 200, 800, 62, 2 * time.Second
	for _, r := range []lua.Rate{
		rate(ledger.AlgorithmSlidingLog, ledger.UnitTokens, 50_000, window, 0),
		rate(ledger.AlgorithmSlidingCounter, ledger.UnitTokens, 50_000, window, 0),
		rate(ledger.AlgorithmTokenBucket, ledger.UnitTokens, 25_000, window, 25_000),
	} {
		t.Run(string(r.Algorithm), func(t *testing.T) {
			t.Parallel()
			scripts := limiter(t)
			highest := 0
			for round := 0; round < 10 && highest < want; round++ { // a bucket must be asked just in time for its last one
				if round > 0 {
					time.Sleep(window) // then the bucket is full again
				}
				admitted := push(t, scripts, clients, 5*window/2, func(i int) *lua.ReserveCall {
					return reserveCall(fmt.Sprintf("%s-%d-%d", r.Algorithm, round, i), tokens, r)
				})
				here := most(admitted, window)
				t.Logf("%d in %s, at most %d in any %s", len(admitted), 5*window/2, here, window)
				require.LessOrEqual(t, here, want)
				highest = max(highest, here)
			}
			require.Equal(t, want, highest, "the limit is reached")
		})
	}
}

// push has clients ask as fast as they are answered, and returns when each admitted request was decided on, by Redis's clock.
func push(t *testing.T, scripts *lua.Scripts, clients int, length time.Duration, call func(i int) *lua.ReserveCall) (admitted []time.Time) {
	t.Helper()
	var mu sync.Mutex
	var wait sync.WaitGroup
	problems := make(chan error, clients)
	end := time.Now().Add(length)
	for client := range clients {
		wait.Go(func() {
			for i := client; time.Now().Before(end); i += clients {
				d, err := scripts.Reserve(t.Context(), call(i))
				switch {
				case err != nil:
					problems <- err
					return
				case d.Status == lua.StatusAllowed:
					mu.Lock()
					admitted = append(admitted, d.Now)
					mu.Unlock()
				case d.Status != lua.StatusRefused:
					problems <- fmt.Errorf("status %d", d.Status)
					return
				}
			}
		})
	}
	wait.Wait()
	close(problems)
	for err := range problems {
		require.NoError(t, err)
	}
	return admitted
}

// H2, U16: of 50 requests within a second, 50 more after ten idle seconds, those pass that the bucket's arithmetic says, each
// by the instant it was decided on, and in no second more than the bucket holds and what flows in.
func TestBurstsAndTheBucketsArithmetic(t *testing.T) {
	t.Parallel()
	for _, bucket := range []struct{ perMinute, burst int64 }{{120, 30}, {300, 50}, {60, 1}, {1, 100}} {
		t.Run(fmt.Sprintf("%d a minute, burst %d", bucket.perMinute, bucket.burst), func(t *testing.T) {
			t.Parallel()
			scripts := limiter(t)
			// The level is in requests times microseconds a minute, so all is whole: it begins full.
			const whole = int64(time.Minute / time.Microsecond)
			level, last := bucket.burst*whole, time.Time{}
			var admitted []time.Time
			passed := [2]int{}
			for half := range passed {
				for i := range 50 {
					call := reserveCall(fmt.Sprint(half, "-", i), 1,
						rate(ledger.AlgorithmTokenBucket, ledger.UnitRequests, bucket.perMinute, time.Minute, bucket.burst))
					d, err := scripts.Reserve(t.Context(), call)
					require.NoError(t, err)
					if !last.IsZero() {
						level = min(bucket.burst*whole, level+d.Now.Sub(last).Microseconds()*bucket.perMinute)
					}
					last = d.Now
					want := lua.StatusRefused
					if level >= whole {
						want = lua.StatusAllowed
						level -= whole
						passed[half]++
						admitted = append(admitted, d.Now)
					}
					require.Equal(t, want, d.Status, "request %d of half %d", i, half)
					time.Sleep(15 * time.Millisecond) // 50 of them within a second
				}
				if half == 0 {
					time.Sleep(10 * time.Second)
				}
			}
			t.Logf("%d, then %d passed", passed[0], passed[1])
			require.GreaterOrEqual(t, passed[0], int(min(50, bucket.burst)))
			require.LessOrEqual(t, int64(most(admitted, time.Second)), bucket.burst+(bucket.perMinute+59)/60)
		})
	}
}
