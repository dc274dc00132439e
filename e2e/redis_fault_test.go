package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/e2e/system"
)

const (
	faultRate  = 200 // requests a second
	faultSpell = 3 * time.Second
	otherApp   = "search" // asks as often as system.App
)

// Timeouts of the limiter. Two processors run all of this, and decisions are held to twice the timeout: only what must be found
// slow at 300 ms needs a shorter one than a second. Where Redis must not be given up, no call may be late by it.
const (
	hastyTimeout   = 250 * time.Millisecond
	usualTimeout   = time.Second
	patientTimeout = 15 * time.Second
)

// decisionAge is how old a decision may be when the provider is called. An older one is asked about again.
const decisionAge = 5 * time.Second

// redisFault is something that happens to Redis under load.
type redisFault struct {
	begin, during, end func(f *faulty) // during is called every 50 ms between the two
	// degrades is set where the gateway must give Redis up meanwhile, keeps where it must not; onlyShop where it judges just the
	// app shop without it.
	degrades, keeps, onlyShop bool
	// restarts is set where the server's own statistics begin anew.
	restarts bool
	timeout  time.Duration // of the limiter; 0 is usualTimeout
}

// faulty is a system with one gateway, which reaches Redis through a link.
type faulty struct {
	*system.System
	t *testing.T
	*redisFault
	link *stack.Link
	keys map[string]string // secrets by app
	old  sync.Map          // ids of requests that took so long that the gateway asked again whether its decision stands
}

// For each fault: every decision is made in time, no caller gets a 5xx or a broken answer, no decision runs its script twice,
// goroutines and memory stay bounded, and the gateway returns to Redis by itself. In the end the books agree.
func TestRedisFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("hurts Redis seven times, ten seconds each")
	}
	t.Parallel()
	// Not all side by side: decisions are held to a time that their load would use up.
	for effect, faults := range redisFaults {
		t.Run(effect, func(t *testing.T) {
			t.Parallel()
			for name, fault := range faults {
				t.Run(name, func(t *testing.T) { newFaulty(t, &fault).run() })
			}
		})
	}
}

// redisFaults are the faults by what becomes of Redis.
var redisFaults = map[string]map[string]redisFault{
	"gone": {
		"frozen": {
			begin: func(f *faulty) { require.NoError(f.t, f.Redis.Pause()) }, during: nothing,
			end:      func(f *faulty) { require.NoError(f.t, f.Redis.Resume()) },
			degrades: true,
		},
		"killed": {
			begin: func(f *faulty) { require.NoError(f.t, f.Redis.Kill()) }, during: nothing,
			end:      (*faulty).restart,
			degrades: true, restarts: true,
		},
		"restarted": {
			begin: (*faulty).restart, during: nothing, end: nothing,
			restarts: true,
		},
	},
	"ill": {
		"scripts flushed": {
			begin: nothing, end: nothing,
			during: func(f *faulty) { require.NoError(f.t, f.RedisClient.ScriptFlush(f.t.Context()).Err()) },
			keeps:  true, timeout: patientTimeout,
		},
		"wrong type": {
			begin: nothing, during: (*faulty).breakKeys, end: (*faulty).mendKeys,
			keeps: true, onlyShop: true, timeout: patientTimeout,
		},
		"full": {
			begin: func(f *faulty) { stack.SetMaxMemory(f.t, f.RedisClient, 1) }, during: nothing,
			end:      func(f *faulty) { stack.SetMaxMemory(f.t, f.RedisClient, 0) },
			degrades: true,
		},
		"slow": {
			begin: func(f *faulty) { f.link.SetLatency(300 * time.Millisecond) }, during: nothing,
			end:      func(f *faulty) { f.link.SetLatency(0) },
			degrades: true, timeout: hastyTimeout,
		},
	},
}

func newFaulty(t *testing.T, fault *redisFault) *faulty {
	t.Helper()
	f := &faulty{
		redisFault: fault,
		System: system.New(t, system.Options{
			Limits:   everyTier + "  - {name: eve, tier: user, match: {user: [shop/eve, search/eve]}, budget: {requests: 2, per: day}}\n",
			Settlers: 1, TTL: 5 * time.Second,
			Degraded: "{local: {requests_per_second: 5, tokens_per_minute: 20000}, breaker: {probe_every: 300ms, latency: 1m}}",
		}),
		t: t, keys: map[string]string{},
	}
	if f.timeout == 0 {
		f.timeout = usualTimeout
	}
	f.link = stack.Proxy(t, f.Redis.Addr())
	f.AddGateway("REDIS_URL=redis://"+f.link.Addr+"/0", "TOLLGATE_LIMITER_TIMEOUT="+f.timeout.String())
	f.CLI("app", "create", otherApp)
	for i, app := range []string{system.App, otherApp} {
		f.keys[app] = f.KnownKey(app)
		f.Eventually(system.Patience, "the budget of eve in "+app+" is used up", func() error {
			if a := f.send(5 * i); a.Reason != "USER_QUOTA" || !strings.Contains(string(a.Body), "insufficient_quota") {
				return fmt.Errorf("%s", a)
			}
			return nil
		})
	}
	return f
}

// send makes call i: the apps take turns, and one call of five is of the user eve, whose budget is small.
func (f *faulty) send(i int) system.Answer {
	user := "ada"
	if byEve(i) {
		user = "eve"
	}
	a := f.Send(f.t.Context(), f.Gateways[0].URL, system.Request{
		Key: f.keys[appOf(i)], Path: "/v1/embeddings", Body: system.EmbeddingBody(10),
		Header: map[string]string{"X-Sim-Latency": "0s", "X-Tollgate-User": user},
	})
	if a.Took >= decisionAge {
		f.old.Store(a.Header.Get("X-Tollgate-Request-Id"), true)
	}
	return a
}

func byEve(i int) bool { return i%5 == 0 }

func appOf(i int) string { return []string{system.App, otherApp}[i%2] }

// faultCall is an answer and who asked.
type faultCall struct {
	system.Answer
	app string
	eve bool
}

func (f *faulty) run() {
	t := f.t
	stack.LogCommands(t, f.RedisClient)
	before := stack.CountScripts(t, f.RedisClient)
	var mu sync.Mutex
	var calls []faultCall
	stop := system.Arrivals(faultRate, func(i int) system.Answer {
		a := f.send(i)
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, faultCall{a, appOf(i), byEve(i)})
		return a
	})
	healthy := f.quietSecond()
	ran := f.decisions(nil)

	begun := time.Now()
	f.begin(f)
	sick := f.watchUntil(func(so gauges, passed time.Duration) bool {
		return passed >= faultSpell && (!f.degrades || so.degraded || passed >= system.Patience)
	}, f.during)
	f.end(f)
	ended := time.Now()
	took := f.Eventually(system.Patience, "the gateway judges by Redis again", f.judgesByRedis)
	f.watch(time.Second, nothing)
	stop()
	t.Logf("judged by Redis again %s after the end of the fault", took.Round(time.Millisecond))
	t.Logf("stood still for %s", sick.stalled)
	t.Logf("goroutines %d, %d with the fault; heap %.1f MB, %.1f MB with the fault", healthy.goroutines, sick.goroutines, healthy.heap/1e6, sick.heap/1e6)
	f.answers(calls, begun, ended, sick.stalled)
	if f.restarts {
		f.decisions(ran)
	} else {
		f.ranOnce(before)
	}
	// Whoever came within twice the timeout may be waiting, each with a few goroutines of its connection.
	require.LessOrEqual(t, sick.goroutines, healthy.goroutines+4*int((2*f.timeout+sick.stalled).Seconds()*faultRate))
	require.LessOrEqual(t, sick.heap, healthy.heap+64e6+sick.stalled.Seconds()*faultRate*64e3)
	if f.degrades || f.keeps {
		require.Equal(t, f.degrades, sick.degraded, "whether Redis was given up: %s", f.openings())
	}
	f.Check()
}

func nothing(*faulty) {}

// quietSecond waits for a second in which the gateway relies on Redis: keys, connections and caches are warm then.
func (f *faulty) quietSecond() (g gauges) {
	for range 120 {
		if g = f.watch(time.Second, nothing); !g.degraded {
			return g
		}
	}
	require.Fail(f.t, "Redis is given up again and again before anything has happened to it", "%s", f.openings())
	return g
}

// gauges are the highest figures that a gateway showed.
type gauges struct {
	goroutines int
	heap       float64
	degraded   bool
	stalled    time.Duration // for which the gateway, the simulator or this process did nothing: no fault of Redis's
}

// watch reads the gateway's metrics again and again for a while.
func (f *faulty) watch(span time.Duration, each func(*faulty)) (most gauges) {
	return f.watchUntil(func(so gauges, passed time.Duration) bool { return passed >= span }, each)
}

// watchUntil is watch until it has seen enough.
func (f *faulty) watchUntil(enough func(so gauges, passed time.Duration) bool, each func(*faulty)) (most gauges) {
	for begun := time.Now(); !enough(most, time.Since(begun)); {
		turn := time.Now()
		most.goroutines = max(most.goroutines, int(f.metric("go_goroutines")))
		most.heap = max(most.heap, f.metric("go_memstats_heap_inuse_bytes"))
		most.degraded = most.degraded || f.metric("tollgate_degraded") > 0
		_, err := f.Sim.Totals(f.t.Context())
		require.NoError(f.t, err)
		time.Sleep(50 * time.Millisecond)
		most.stalled = max(most.stalled, time.Since(turn)-50*time.Millisecond)
		each(f)
	}
	return most
}

func (f *faulty) metric(name string) float64 {
	f.t.Helper()
	value, err := f.Metric(f.t.Context(), f.Gateways[0], name)
	require.NoError(f.t, err)
	return value
}

// openings are the gateway's own words on why it gave Redis up.
func (f *faulty) openings() (lines []string) {
	for line := range strings.Lines(f.Gateways[0].Log()) {
		if strings.Contains(line, "redis is ") || strings.Contains(line, "judged locally") {
			lines = append(lines, line)
		}
	}
	return lines
}

func (f *faulty) restart() {
	require.NoError(f.t, f.Redis.Restart(f.t.Context()))
	stack.LogCommands(f.t, f.RedisClient)
}

// breakKeys puts lists in the place of all that Redis knows of what the app shop used and holds.
func (f *faulty) breakKeys() {
	f.eachShopKey(func(ctx context.Context, key string) error {
		if f.RedisClient.Type(ctx, key).Val() == "list" {
			return nil
		}
		_, err := f.RedisClient.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Del(ctx, key)
			p.RPush(ctx, key, "nonsense")
			return nil
		})
		return err
	})
}

// mendKeys does what an operator would: it removes them, and the mark that says that Redis knows everything.
func (f *faulty) mendKeys() {
	require.NoError(f.t, f.RedisClient.Del(f.t.Context(), "{app:"+system.App+"}:tg1:mark").Err())
	f.eachShopKey(func(ctx context.Context, key string) error { return f.RedisClient.Del(ctx, key).Err() })
}

func (f *faulty) eachShopKey(do func(ctx context.Context, key string) error) {
	ctx := f.t.Context()
	keys, err := f.RedisClient.Keys(ctx, "{app:"+system.App+"}:tg1:budget:*").Result()
	require.NoError(f.t, err)
	for _, key := range keys {
		require.NoError(f.t, do(ctx, key))
	}
}

// judgesByRedis reports an error while an app is judged without Redis. The user eve has used up her budget, which only Redis
// and the gateway's memory know: a request of another user tells.
func (f *faulty) judgesByRedis() error {
	for i := range 2 {
		a := f.send(i + 1)
		if a.Header.Get("X-Ratelimit-Limit-Requests") == "" {
			return fmt.Errorf("%s: %s", appOf(i+1), a)
		}
	}
	if f.metric("tollgate_degraded") > 0 {
		return fmt.Errorf("degraded")
	}
	return nil
}

// answers holds every answer against what may come of a request, and those to requests that came while the fault lasted
// against twice the limiter's timeout, and for how long all stood still meanwhile.
func (f *faulty) answers(calls []faultCall, begun, ended time.Time, stalled time.Duration) {
	t := f.t
	t.Helper()
	tally := map[string]int{}
	var took []time.Duration
	for _, c := range calls {
		phase, what := "before", c.Reason
		switch {
		case c.Sent.After(ended):
			phase = "after"
		case c.Sent.After(begun):
			phase = "during"
			took = append(took, c.Took)
		}
		if c.Passed() {
			what = "passed"
			if c.eve {
				what = "eve"
			}
		}
		tally[phase+" "+what]++
	}
	slices.Sort(took)
	p50, p99, longest := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	t.Logf("%v", tally)
	t.Logf("%d answers while it lasted: p50 %s, p99 %s, longest %s", len(took), p50.Round(10*time.Microsecond), p99.Round(10*time.Microsecond), longest.Round(10*time.Microsecond))
	for _, c := range calls {
		require.NoError(t, c.Err, "a broken answer")
		require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, c.Status, c.String())
		if !(c.Passed() || c.Reason == "USER_QUOTA" || c.Sent.Before(begun) || f.excuses(c, c.Sent.After(ended))) {
			require.Fail(t, "an answer without an excuse", "%s, %s after the fault: %s\n%s", c.app, c.Sent.Sub(ended), c, f.openings())
		}
	}
	require.Zero(t, tally["before eve"]+tally["during eve"]+tally["after eve"], "a budget that was used up before stays used up")
	require.Positive(t, tally["before passed"])
	require.Positive(t, tally["during passed"])
	if !f.onlyShop {
		require.Positive(t, tally["after passed"])
	}
	require.LessOrEqual(t, p99, 2*f.timeout+stalled)
}

// excuses reports whether the fault is a good reason for a refusal.
func (f *faulty) excuses(c faultCall, after bool) bool {
	switch c.Reason {
	case "DEGRADED", "REBUILDING":
		// An app that holds something is rebuilt together with all others.
		return !f.keeps || f.onlyShop && (after || c.app == system.App)
	default:
		return false
	}
}

// ranOnce holds the scripts that Redis ran against the decisions that were asked for: its statistics say how many there were,
// its log of commands for which reservation.
func (f *faulty) ranOnce(before stack.ScriptCalls) {
	f.t.Helper()
	runs := f.decisions(nil)
	calls := stack.CountScripts(f.t, f.RedisClient)
	ran := calls.Ran() - before.Ran()
	f.t.Logf("%s since the server started, %d scripts ran in the test, %d of them decisions", calls, ran, len(runs))
	series, err := f.Series(f.t.Context(), f.Gateways[0], "tollgate_breaker_calls_total")
	require.NoError(f.t, err)
	asked := series[`result="answered"`] + series[`result="broken"`] + series[`result="outage"`]
	require.LessOrEqual(f.t, int64(len(runs)), ran)
	require.LessOrEqual(f.t, float64(len(runs)), asked, "each decision that ran was asked for")
}

// decisions returns the reservations that were decided on since the server started, and fails where the script was called twice
// for one of them or for one of the earlier. A call by hash of a script that Redis does not have runs nothing, and the source
// follows it.
func (f *faulty) decisions(earlier map[string]int) map[string]int {
	f.t.Helper()
	byHash, bySource := map[string]int{}, map[string]int{}
	for _, args := range stack.LoggedScripts(f.t, f.RedisClient) {
		// KEYS of reserve.lua: two marks, the reservation.
		if len(args) < 6 || !strings.HasSuffix(args[3], ":mark") || !strings.HasSuffix(args[4], ":mark") || !strings.Contains(args[5], ":reservation:") {
			continue
		}
		if args[0] == "eval" {
			bySource[args[5]]++
		} else {
			byHash[args[5]]++
		}
	}
	both := int64(0)
	for id, n := range bySource {
		require.Equal(f.t, 1, n, "%s was sent twice", id)
		if byHash[id] > 0 {
			both++
		}
	}
	require.LessOrEqual(f.t, both, stack.CountScripts(f.t, f.RedisClient).Unknown, "the source is sent only where nothing ran")
	for id, n := range byHash {
		most := 1
		if _, old := f.old.Load(id[strings.LastIndex(id, ":")+1:]); old {
			most = 2
		}
		require.LessOrEqual(f.t, n, most, "%s was asked %d times", id, n)
		require.Zero(f.t, earlier[id], "%s was asked before the restart, too", id)
	}
	for id := range bySource {
		byHash[id] = 1
	}
	return byHash
}
