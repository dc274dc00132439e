package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/e2e/system"
	"tollgate/internal/sim"
)

// began starts a call and hands out its answer when it is there.
func began(call func() system.Answer) <-chan system.Answer {
	answer := make(chan system.Answer, 1)
	go func() { answer <- call() }()
	return answer
}

// occupy has the gateway send one request whose answer does not come to its end, and returns once the provider has it. It
// ends when its caller leaves, which release has it do.
func occupy(t *testing.T, s *system.System, url, key, user string) (release func()) {
	t.Helper()
	before, err := s.Sim.Totals(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	answer := began(func() system.Answer {
		return s.Send(ctx, url, system.Request{
			Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "Hold the line", 9, true),
			Header: map[string]string{"X-Sim-Chunk-Delay": "10m", "X-Tollgate-User": user},
		})
	})
	s.Eventually(system.Patience, "the provider has the request", func() error {
		select {
		case a := <-answer:
			return fmt.Errorf("ended: %s", a)
		default:
		}
		now, err := s.Sim.Totals(t.Context())
		if err == nil && now.Calls == before.Calls {
			err = fmt.Errorf("%d calls", now.Calls)
		}
		return err
	})
	return func() {
		cancel()
		require.Error(t, (<-answer).Err, "its caller left")
	}
}

// awaitWaiting returns when so many requests wait in the gateway's lines.
func awaitWaiting(t *testing.T, s *system.System, gateway int, n float64) {
	t.Helper()
	s.Eventually(system.Patience, "requests wait", func() error {
		waiting, err := s.Metric(t.Context(), s.Gateways[gateway], "tollgate_waiting_requests")
		if err == nil && waiting != n {
			err = fmt.Errorf("%.0f wait, not %.0f", waiting, n)
		}
		return err
	})
}

func milliseconds(t *testing.T, a system.Answer, header string) int {
	t.Helper()
	n, err := strconv.Atoi(a.Header.Get(header))
	require.NoError(t, err, "%s of %s", header, a)
	return n
}

// D3, D4: a throttled request waits in a line of its limit, first come, first served, is told its place, and leaves with its
// caller. Nothing of those that left or found no place reaches the provider. Each gateway has a line of its own.
func TestThrottledRequestsWaitInLine(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits: `
  - name: one-at-a-time
    tier: app
    concurrency: 1
    on_exceed: {action: throttle, max_wait: 280s, max_depth: 3}
  - name: in-a-hurry
    tier: user
    match: {user: shop/hasty}
    concurrency: 1
    on_exceed: {action: throttle, max_wait: 300ms, max_depth: 3}
`,
		Gateways: 2, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	send := func(ctx context.Context, gateway int, user string) system.Answer {
		r := steady(0)
		r.Key, r.Header = key, map[string]string{"X-Tollgate-User": user}
		return s.Send(ctx, s.Gateways[gateway].URL, r)
	}
	release := occupy(t, s, s.Gateways[0].URL, key, "holder")
	var line [3]<-chan system.Answer
	var leave [3]context.CancelFunc
	for i := range line {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		line[i], leave[i] = began(func() system.Answer { return send(ctx, 0, "waiter") }), cancel
		awaitWaiting(t, s, 0, float64(i+1))
	}
	elsewhere := began(func() system.Answer { return send(t.Context(), 1, "waiter") })
	awaitWaiting(t, s, 1, 1)

	full := send(t.Context(), 0, "late")
	require.Equal(t, http.StatusTooManyRequests, full.Status, full.String())
	require.Equal(t, "CONCURRENCY", full.Reason, full.String())
	require.EqualValues(t, 4, gjson.GetBytes(full.Body, `tollgate.options.#(action=="queue").position`).Int(), full.String())
	require.Equal(t, "1", full.Header.Get("Retry-After"))

	leave[1]()
	require.Error(t, (<-line[1]).Err)
	awaitWaiting(t, s, 0, 2)
	totals, err := s.Sim.Totals(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, totals.Calls, "who waits is not sent")

	release()
	first, third, other := <-line[0], <-line[2], <-elsewhere
	for position, a := range map[int]system.Answer{1: first, 3: third} {
		require.True(t, a.Passed(), a.String())
		require.Equal(t, strconv.Itoa(position), a.Header.Get("X-Tollgate-Queue-Position"))
	}
	require.True(t, other.Passed(), other.String())
	require.Equal(t, "1", other.Header.Get("X-Tollgate-Queue-Position"))
	for _, a := range []system.Answer{first, third, other} {
		require.Equal(t, "one-at-a-time", a.Header.Get("X-Tollgate-Queue-Limit"))
		require.Positive(t, milliseconds(t, a, "X-Tollgate-Queue-Waited-Ms"))
		require.GreaterOrEqual(t, milliseconds(t, a, "X-Tollgate-Queue-Expected-Ms"), 0)
	}

	// One whose limit lets it wait for a moment only is refused after that moment.
	release = occupy(t, s, s.Gateways[0].URL, key, "hasty")
	late := send(t.Context(), 1, "hasty")
	require.Equal(t, "CONCURRENCY", late.Reason, late.String())
	require.Equal(t, http.StatusTooManyRequests, late.Status)
	require.Positive(t, milliseconds(t, late, "X-Tollgate-Queue-Waited-Ms"), "it waited in vain")
	release()

	s.Check()
	served := oneAtATime(t, s, first, third, other)
	require.Less(t, slices.Index(served, first.ID), slices.Index(served, third.ID), "first come, first served")
	require.EqualValues(t, 5, billed(t, s), "two that held the slot, three that waited for it")
	require.EqualValues(t, 5, s.Int(`SELECT count(*) FROM finance.requests`))
}

// oneAtATime fails unless the provider served the answers one after the other, and returns their ids in its order.
func oneAtATime(t *testing.T, s *system.System, answers ...system.Answer) (ids []string) {
	t.Helper()
	books, err := s.Sim.Books(t.Context())
	require.NoError(t, err)
	var before sim.Record
	for _, b := range books {
		if !slices.ContainsFunc(answers, func(a system.Answer) bool { return a.ID == b.TollgateRequestID }) {
			continue
		}
		require.False(t, b.ReceivedAt.Before(before.FinishedAt), "%+v came while %+v was served", b, before)
		ids, before = append(ids, b.TollgateRequestID), b
	}
	require.Len(t, ids, len(answers))
	return ids
}

// scriptCalls is how many scripts Redis has run.
func scriptCalls(t *testing.T, s *system.System) (n int) {
	t.Helper()
	info, err := s.RedisClient.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		for _, command := range []string{"cmdstat_evalsha:calls=", "cmdstat_eval:calls="} {
			if rest, found := strings.CutPrefix(line, command); found {
				calls, _, _ := strings.Cut(rest, ",")
				count, err := strconv.Atoi(calls)
				require.NoError(t, err)
				n += count
			}
		}
	}
	return n
}

// D3: a crowd that waits asks Redis as often as one who waits; the others sleep.
func TestWaitingCrowdAsksLikeOne(t *testing.T) {
	t.Parallel()
	const crowd = 60
	s := system.New(t, system.Options{
		Limits: fmt.Sprintf(`
  - name: one-at-a-time
    tier: app
    concurrency: 1
    on_exceed: {action: throttle, max_wait: 280s, max_depth: %d}
`, crowd),
		Gateways: 1, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	release := occupy(t, s, s.Gateways[0].URL, key, "")
	answers := make(chan system.Answer, crowd)
	r := steady(0)
	r.Key = key
	for range crowd {
		go func() { answers <- s.Send(t.Context(), s.Gateways[0].URL, r) }()
	}
	awaitWaiting(t, s, 0, crowd)
	const length = 3 * time.Second
	begun := time.Now()
	before := scriptCalls(t, s)
	time.Sleep(length) // what is measured is how often Redis is asked in it
	asked := scriptCalls(t, s) - before
	took := time.Since(begun) // which may be longer
	// One asks every 50 ms. Leases are renewed and the settler looks around meanwhile.
	most := 2 * int(took/(50*time.Millisecond))
	t.Logf("%d scripts in %s while %d wait", asked, took, crowd)
	require.LessOrEqual(t, asked, most)
	release()
	var served []system.Answer
	for range crowd {
		a := <-answers
		require.True(t, a.Passed(), a.String())
		served = append(served, a)
	}
	oneAtATime(t, s, served...)
	s.Check()
}

// D3: where the app has opted in, the cheaper model serves what the dearer one has no room for, at its own price. The caller
// is told, the ledger knows what was asked for, and another app is refused.
func TestFallbackServesTheCheaperModel(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits: `
  - {name: dear, tier: app, match: {model: gpt-4o}, budget: {requests: 3, per: day}, on_exceed: {action: fallback}}
  - {name: cheap, tier: app, match: {model: gpt-4o-mini}, budget: {requests: 2, per: day}}
  - {name: money, tier: app, budget: {usd: 100, per: month}}
`,
		Sections: "apps: {shop: {fallback: {gpt-4o: gpt-4o-mini}}}",
		Gateways: 2, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	s.CLI("app", "create", "other")
	others := s.KnownKey("other")
	call := func(i int, key string) system.Answer {
		return s.Send(t.Context(), s.Gateways[i%2].URL, system.Request{
			Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o", "Hello", 20, i%3 == 0),
			Header: map[string]string{"X-Sim-Prompt-Tokens": "10", "X-Sim-Completion-Tokens": "20"},
		})
	}
	for i, model := range []string{"gpt-4o", "gpt-4o", "gpt-4o", "gpt-4o-mini", "gpt-4o-mini"} {
		a := call(i, key)
		require.True(t, a.Passed(), a.String())
		require.Equal(t, model, a.Header.Get("X-Tollgate-Model"), "request %d", i)
	}
	for i := range 3 {
		refused := call(i, key)
		require.Equal(t, "APP_QUOTA", refused.Reason, refused.String())
		require.Equal(t, "dear", gjson.GetBytes(refused.Body, "tollgate.limit_name").Str, "the limit that the caller met")
		require.False(t, gjson.GetBytes(refused.Body, `tollgate.options.#(action=="fallback")`).Exists(), "it has no room either: %s", refused)
	}
	// The dearer model's counter is one an app: the other app has three of its own, and then no fallback.
	for i := range 3 {
		require.True(t, call(i, others).Passed())
	}
	refused := call(1, others)
	require.Equal(t, "APP_QUOTA", refused.Reason, refused.String())
	require.Equal(t, http.StatusTooManyRequests, refused.Status)

	s.Check()
	rows := s.Rows(`
SELECT model_requested, model, (cost_usd * 1000000000)::bigint, flags::text[]
FROM finance.requests WHERE app = 'shop' ORDER BY occurred_at`)
	require.Len(t, rows, 5)
	const dear, cheap = 10*2500 + 20*10000, 10*150 + 20*600 // nano-dollars
	for i, row := range rows {
		want := []any{"gpt-4o", "gpt-4o", int64(dear), []any{}}
		if i >= 3 {
			want = []any{"gpt-4o", "gpt-4o-mini", int64(cheap), []any{"fallback"}}
		}
		require.Equal(t, want, row, "request %d", i)
	}
	require.EqualValues(t, 3*dear+2*cheap, s.Int(`SELECT nanousd FROM budgets WHERE subject = 'app:shop' AND period = 'month'`))
}

// D3, F7: a limit in shadow, or with the action flag, lets everything pass and marks what it would have refused.
func TestFlagAndShadowMarkAndRefuseNobody(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits: `
  - {name: shadow-day, tier: app, budget: {requests: 2, per: day}, shadow: true}
  - {name: shadow-rate, tier: key, rate: {requests: 5, per: day, algorithm: token_bucket}, shadow: true}
  - {name: flag-rate, tier: app, rate: {requests: 3, per: day, algorithm: sliding_log}, on_exceed: {action: flag}}
`,
		Gateways: 2, Settlers: 1,
	})
	call := spread(t, s, s.KnownKey(system.App), embedding(3))
	const n = 7
	for i := range n {
		a := call(i)
		require.True(t, a.Passed(), a.String())
		require.NotContains(t, a.Header.Get("Ratelimit-Policy"), "shadow", "nobody is bound by it")
	}
	s.Check()
	var flags []string
	for _, row := range s.Rows(`SELECT array_to_string(flags, ' ') FROM finance.requests ORDER BY occurred_at`) {
		flags = append(flags, row[0].(string))
	}
	require.Equal(t, []string{"", "", "shadow", "shadow flagged", "shadow flagged", "shadow flagged", "shadow flagged"}, flags)
	over := 0.0
	for _, g := range s.Gateways {
		m, err := s.Metric(t.Context(), g, "tollgate_passed_over_total")
		require.NoError(t, err)
		over += m
	}
	require.EqualValues(t, (n-2)+(n-5)+(n-3), over)
	// A shadow counts what a real limit would have counted, and a rate that flags keeps no more than it may.
	require.EqualValues(t, n, s.Int(`SELECT requests FROM budgets WHERE subject LIKE 'app:shop%'`))
	dump, err := s.Dump(t.Context())
	require.NoError(t, err)
	logs := 0
	for redisKey, value := range dump {
		if strings.Contains(redisKey, ":log:") {
			logs += strings.Count(value, "{") // an entry each
		}
	}
	require.Equal(t, 3, logs)
}
