package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
	"tollgate/internal/sim"
)

// spread sends call i to one gateway after the other, of those that there are now.
func spread(t *testing.T, s *system.System, key string, r func(i int) system.Request) func(i int) system.Answer {
	gateways := slices.Clone(s.Gateways)
	return func(i int) system.Answer {
		request := r(i)
		request.Key = key
		return s.Send(t.Context(), gateways[i%len(gateways)].URL, request)
	}
}

func embedding(tokens int) func(int) system.Request {
	r := system.Request{Path: "/v1/embeddings", Body: system.EmbeddingBody(tokens)}
	return func(int) system.Request { return r }
}

// billed is how many requests the simulator was sent and billed.
func billed(t *testing.T, s *system.System) int64 {
	t.Helper()
	var totals sim.Totals
	// What a caller has left is billed when the simulator notices.
	s.Eventually(system.Patience, "all calls are billed", func() (err error) {
		if totals, err = s.Sim.Totals(t.Context()); err == nil && totals.Requests != totals.Calls {
			err = fmt.Errorf("%d calls, %d billed", totals.Calls, totals.Requests)
		}
		return err
	})
	return totals.Requests
}

// H4: a limit of 300 passes exactly 300 of 5,000 requests that come over two gateways, whatever kind of limit it is.
func TestExactly300(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct{ name, what, reason string }{
		{"budget", "budget: {requests: 300, per: day}", "APP_QUOTA"},
		{"sliding log", "rate: {requests: 300, per: day, algorithm: sliding_log}", "RPM_LIMIT"},
		{"token bucket", "rate: {requests: 300, per: day, algorithm: token_bucket}", "TOKEN_BUCKET"},
		{"sliding counter", "rate: {requests: 300, per: day, algorithm: sliding_counter}", "RPM_LIMIT"},
		{"fixed window", "rate: {requests: 300, per: day, algorithm: fixed_window}", "RPM_LIMIT"},
	} {
		t.Run(limit.name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{
				Limits: "\n  - {name: the-limit, tier: app, " + limit.what + "}\n" +
					"  - {name: platform, tier: platform, budget: {requests: 1000000, per: month}}\n",
				Gateways: 2, Settlers: 1,
			})
			call := spread(t, s, s.KnownKey(system.App), embedding(3))
			before := 0
			if limit.name == "fixed window" {
				before = awaitTurn(t, call(0))
			}
			start := time.Now()
			tally := system.Tally(system.Load(5000, 64, call))
			t.Logf("%v in %s", tally, time.Since(start).Round(time.Millisecond))
			allowed := 300 - before
			if tally["passed"] > allowed && limit.what != "budget: {requests: 300, per: day}" {
				// One more may come every 288 seconds.
				allowed += min(tally["passed"]-allowed, int(time.Since(start)/(24*time.Hour/300)))
			}
			require.Equal(t, map[string]int{"passed": allowed, limit.reason: 5000 - allowed}, tally)
			s.Check()
			require.EqualValues(t, s.Int(`SELECT count(*) FROM reservations`), billed(t, s))
		})
	}
}

// awaitTurn waits until a day's window that is about to end has ended, and returns how many requests the running one has then
// admitted: the first one, or none.
func awaitTurn(t *testing.T, first system.Answer) int {
	t.Helper()
	require.True(t, first.Passed(), first.String())
	_, text, found := strings.Cut(first.Header.Get("Ratelimit"), ";t=")
	require.True(t, found, "%v", first.Header)
	left, err := strconv.Atoi(text)
	require.NoError(t, err)
	if left > 120 {
		return 1
	}
	time.Sleep(time.Duration(left+1) * time.Second)
	return 0
}

// A dollar budget worth exactly 100 requests, whose estimate is exact, is spent to the last nano-dollar and no further.
func TestExactly100RequestsOfMoney(t *testing.T) {
	t.Parallel()
	const tokens, worth = 37, 100 * 37 * system.EmbeddingPrice
	s := system.New(t, system.Options{
		Limits:   fmt.Sprintf("\n  - {name: money, tier: app, budget: {usd: %s, per: month}}\n", dollars(worth)),
		Gateways: 2, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	tally := system.Tally(system.Load(1000, 64, spread(t, s, key, embedding(tokens))))
	require.Equal(t, map[string]int{"passed": 100, "APP_QUOTA": 900}, tally)
	require.EqualValues(t, 100, billed(t, s))
	s.Check()
	require.EqualValues(t, worth, s.Int(`SELECT nanousd FROM budgets WHERE subject = 'app:shop' AND period = 'month'`))
	totals, err := s.Sim.Totals(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, worth, totals.CostNanoUSD)
}

// Where answers cost less than was held, the budget is never passed at any instant, and what was not used is given to others.
//
// Two settlers may write back in another order than they committed in, and the later one's use then stands for a moment beside
// what the earlier one has not yet given back: used + held counts twice, which refuses and never admits. So used + held is held
// against the limit where one settles, and used alone where two do.
func TestMoneyBudgetIsNeverPassed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		settlers int
		counted  func(system.Counter) int64
	}{
		{"one settler", 1, func(c system.Counter) int64 { return c.Used[2] + c.Held[2] }},
		{"two settlers", 2, func(c system.Counter) int64 { return c.Used[2] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{
				Limits:   fmt.Sprintf("\n  - {name: money, tier: app, budget: {usd: %s, per: month}}\n", dollars(moneyBudget)),
				Gateways: 2, Settlers: c.settlers,
			})
			requireNeverPassed(t, s, c.counted)
		})
	}
}

const moneyBudget = 5_000_000 // nano-dollars

func requireNeverPassed(t *testing.T, s *system.System, counted func(system.Counter) int64) {
	t.Helper()
	// Held: at most 400 tokens of output and some of input; used: 100 of them.
	const prompt, output, held = 20, 100, 400
	const cost = prompt*150 + output*600
	call := spread(t, s, s.KnownKey(system.App), func(int) system.Request {
		return system.Request{
			Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "Extraordinarily comprehensive documentation", held, false),
			Header: map[string]string{"X-Sim-Prompt-Tokens": fmt.Sprint(prompt), "X-Sim-Completion-Tokens": fmt.Sprint(output)},
		}
	})
	watch := watchBudget(t, s, moneyBudget, counted)
	answers := system.Load(1000, 64, call)
	s.Check()
	// One after the other, what was held and not used is used up: the last one that passes leaves less than one can hold.
	for range moneyBudget / cost {
		a := call(0)
		answers = append(answers, a)
		if !a.Passed() {
			break
		}
		settled(t, s, a.ID)
		requireNothingHeld(t, s)
	}
	highest := watch()
	s.Check()
	tally, spent := system.Tally(answers), s.Int(`SELECT nanousd FROM budgets WHERE subject = 'app:shop'`)
	t.Logf("%v, spent %d of %d, at most %d counted", tally, spent, int64(moneyBudget), highest)
	require.Len(t, tally, 2)
	require.Positive(t, tally["APP_QUOTA"])
	require.EqualValues(t, cost*tally["passed"], spent)
	require.LessOrEqual(t, spent, int64(moneyBudget))
	require.Greater(t, spent, int64(moneyBudget-(held+prompt)*600), "what was held and not used must be used by others")
}

// requireNothingHeld waits until Redis has been told of what is settled, which comes after Postgres has it.
func requireNothingHeld(t *testing.T, s *system.System) {
	t.Helper()
	s.Eventually(system.Patience, "nothing is held", func() error {
		counters, err := s.Counters(t.Context())
		for key, c := range counters {
			if c.Held != ([3]int64{}) {
				return fmt.Errorf("%+v holds %v", key, c.Held)
			}
		}
		return err
	})
}

// watchBudget looks at all counters of Redis until it is stopped, and requires that what counted makes of each never passes the
// limit. It returns the most it saw.
func watchBudget(t *testing.T, s *system.System, limit int64, counted func(system.Counter) int64) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var highest int64
	go func() {
		for ctx.Err() == nil {
			counters, err := s.Counters(ctx)
			for key, c := range counters {
				highest = max(highest, counted(c))
				if highest > limit {
					done <- fmt.Errorf("%+v: %+v is above %d", key, c, limit)
					return
				}
			}
			if err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			time.Sleep(time.Millisecond) // Redis is for the gateways
		}
		done <- nil
	}()
	return func() int64 {
		cancel()
		require.NoError(t, <-done)
		return highest
	}
}
