package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

const manyBody = `{"model":"many","messages":[{"role":"user","content":"Say hello."}],"max_tokens":10}`

// asked counts the requests that a provider got with each of its keys.
type asked struct {
	mu sync.Mutex
	by map[string]int
}

func (a *asked) with(r *http.Request) string {
	name := "a"
	if r.Header.Get("Authorization") == "Bearer "+upstreamSecret+"-b" {
		name = "b"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.by == nil {
		a.by = map[string]int{}
	}
	a.by[name]++
	return name
}

func (a *asked) of(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.by[name]
}

// A key that its provider refuses or limits is passed over for another one: each attempt is a reservation of its own, with its
// own key and end, and what is said of a key is kept.
func TestAnotherKey(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 429, 503, 529} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var keys asked
			w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
				if keys.with(r) == "a" {
					rw.Header().Set("Retry-After", "30")
					rw.WriteHeader(status)
					return
				}
				plain(rw, r)
			})
			w.frozen()
			w.run(roomy)
			a := w.send(http.MethodPost, chatPath, manyBody)
			require.Equal(t, 200, a.StatusCode, a.body)
			require.Equal(t, plainAnswer, a.body)
			found := w.events(4)
			first, second := found[event.KindReserved][0].Reservation, found[event.KindReserved][1].Reservation
			require.Equal(t, event.Release{Reason: ledger.ReasonUpstreamFailed, Status: status}, *found[event.KindReleased][0].Release)
			require.Equal(t, first.ID, found[event.KindReleased][0].Reservation.ID)
			require.Equal(t, second.ID, found[event.KindUsed][0].Reservation.ID)
			require.Equal(t, []any{"a", 1, ""}, []any{first.ProviderKey, first.Attempt, first.FirstAttempt})
			require.Equal(t, []any{"b", 2, first.ID}, []any{second.ProviderKey, second.Attempt, second.FirstAttempt})
			require.Equal(t, second.ID, a.Header.Get("X-Tollgate-Request-Id"))
			require.Equal(t, ledger.NanoUSD(12*150+5*600), found[event.KindUsed][0].Outcome.Cost)
			require.Equal(t, 1.0, testutil.ToFloat64(w.gateway.metrics.retries.WithLabelValues("many", fmt.Sprint(status))))

			refusals := 1
			if status == 403 {
				refusals = 3 // one may be about what was asked for
			}
			for range refusals {
				require.Equal(t, 200, w.send(http.MethodPost, chatPath, manyBody).StatusCode)
			}
			require.Equal(t, refusals, keys.of("a"), "it rests")
			require.Equal(t, refusals+1, keys.of("b"))
			requireMetric(t, w, "tollgate_upstream_key_rests", map[string]float64{"a": 1, "b": 0})
			requireMetric(t, w, "tollgate_upstream_in_flight", map[string]float64{"a": 0, "b": 0})
		})
	}
}

// requireMetric compares the sums of the gauge by key of the provider many.
func requireMetric(t *testing.T, w *world, name string, want map[string]float64) {
	t.Helper()
	stack.Eventually(t, func() error {
		families, err := w.registry.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if f.GetName() == name && labels["provider"] == "many" {
					got[labels["provider_key"]] += m.GetGauge().GetValue()
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("%s is %v, want %v", name, got, want)
		}
		return nil
	})
}

// When every key was told to wait, the caller is told so, with the time, and nobody is asked. An app that has opted in to another
// model for it is served by that.
func TestAllKeysRest(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Ok") != "" {
			plain(rw, r)
			return
		}
		calls.Add(1)
		rw.Header().Set("Retry-After", "40")
		rw.WriteHeader(429)
		_, _ = io.WriteString(rw, `{"error":{"message":"theirs"}}`)
	})
	w.frozen()
	w.run(roomy + "apps:\n  checkout: {fallback: {twin: fast}}\n")
	a := w.send(http.MethodPost, chatPath, manyBody)
	require.Equal(t, 429, a.StatusCode)
	require.Contains(t, a.body, "theirs")
	require.Equal(t, "40", a.Header.Get("Retry-After"))
	require.Equal(t, int64(2), calls.Load())

	a = w.send(http.MethodPost, chatPath, manyBody)
	require.Equal(t, 429, a.StatusCode)
	p := w.problemOf(a)
	require.Equal(t, "UPSTREAM_LIMITED", p.Tollgate.Reason)
	require.Contains(t, p.Error.Message, "the provider many has told every key to wait")
	require.GreaterOrEqual(t, p.Tollgate.RetryAfterS, int64(35))
	require.Equal(t, int64(2), calls.Load(), "nobody was asked")

	a = w.send(http.MethodPost, chatPath, strings.Replace(manyBody, "many", "twin", 1), "X-Ok", "1")
	require.Equal(t, 200, a.StatusCode, a.body)
	served := w.events(6)[event.KindUsed][0].Reservation
	require.Equal(t, []any{"twin", "openai", "default", []string{"fallback"}}, []any{served.ModelRequested, served.Provider, served.ProviderKey, served.Flags})
}

// Another attempt that a limit does not admit leaves the caller with the answer of the first.
func TestAttemptThatIsNotAdmitted(t *testing.T) {
	t.Parallel()
	w := start(t, "  - {name: key-rpm, tier: key, rate: {requests: 1, per: minute}}\n", func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(503)
		_, _ = io.WriteString(rw, `{"error":{"message":"theirs"}}`)
	})
	a := w.send(http.MethodPost, chatPath, manyBody)
	require.Equal(t, 503, a.StatusCode)
	require.Equal(t, `{"error":{"message":"theirs"}}`, a.body)
	found := w.events(2)
	require.Equal(t, found[event.KindReserved][0].Reservation.ID, a.Header.Get("X-Tollgate-Request-Id"))
	require.Len(t, found[event.KindReleased], 1)
	require.Equal(t, 1.0, testutil.ToFloat64(w.gateway.metrics.decisions.WithLabelValues("allow", "UPSTREAM_FAILED", "")))
}

// Another attempt that cannot go on record leaves the caller with the answer of the first, and gives back its slot: the slots that are
// renewed are those of requests in flight alone.
func TestAttemptThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	flies, lands := make(chan struct{}), make(chan struct{})
	var w *world
	w = begin(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Fly") != "" {
			close(flies)
			<-lands
			return
		}
		if err := w.outbox.Close(); err != nil {
			t.Error(err)
		}
		rw.WriteHeader(503)
	})
	w.run("  - {name: slots, tier: app, concurrency: 5}\n")
	var flight sync.WaitGroup
	flight.Go(func() { w.chat("", "X-Fly", "1") })
	land := sync.OnceFunc(func() {
		close(lands)
		flight.Wait()
	})
	defer land()
	<-flies
	require.Equal(t, 503, w.send(http.MethodPost, chatPath, manyBody).StatusCode)

	// Redis knows for a minute that a reservation has ended. Behind that a renewal would take the slot again.
	reservations, err := w.redis.Keys(t.Context(), "*:reservation:*").Result()
	require.NoError(t, err)
	for _, key := range reservations {
		text, err := w.redis.Get(t.Context(), key).Result()
		require.NoError(t, err)
		if text == "ended" {
			require.NoError(t, w.redis.Del(t.Context(), key).Err())
		}
	}
	slots, err := w.redis.Keys(t.Context(), "*:inflight:*").Result()
	require.NoError(t, err)
	require.Len(t, slots, 1)
	leases := func() []redis.Z {
		all, err := w.redis.ZRangeWithScores(t.Context(), slots[0], 0, -1).Result()
		require.NoError(t, err)
		return all
	}
	before := leases()
	require.Len(t, before, 1)
	stack.Eventually(t, func() error {
		if leases()[0].Score == before[0].Score {
			return errors.New("nothing is renewed yet")
		}
		return nil
	})
	require.Len(t, leases(), 1)
	land()
	require.Error(t, w.stop(), "the outbox was closed before")
	w.stop = func() error { return nil }
}

// What was held for an attempt that spent nothing is given back before the next is admitted: a budget for one request is enough.
func TestAttemptsNeedNoMoreBudget(t *testing.T) {
	t.Parallel()
	var keys asked
	limits := "  - {name: app-total, tier: app, budget: {requests: 1, per: total}}\n  - {name: one, tier: app, concurrency: 1}\n"
	w := start(t, limits, func(rw http.ResponseWriter, r *http.Request) {
		if keys.with(r) == "a" {
			rw.WriteHeader(503)
			return
		}
		plain(rw, r)
	})
	require.Equal(t, 200, w.send(http.MethodPost, chatPath, manyBody).StatusCode)
	require.Equal(t, 1, keys.of("b"))
}

// An answer that the provider may have begun to make, or that the caller may have seen, is never asked for again.
func TestNoOtherAttempt(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]http.HandlerFunc{
		"a fault of the provider": func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(500) },
		"a bad gateway":           func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(502) },
		"no answer":               func(http.ResponseWriter, *http.Request) { cut() },
		"a broken stream": func(rw http.ResponseWriter, _ *http.Request) {
			events(rw, firstChunk)
			cut()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				serve(rw, r)
			})
			w.send(http.MethodPost, chatPath, strings.Replace(manyBody, `"messages"`, `"stream":true,"messages"`, 1))
			w.events(2)
			require.Equal(t, int64(1), calls.Load())
		})
	}
}

// A provider's only key is asked again when it says that a moment is enough, and not when it says more.
func TestShortWait(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		switch calls.Add(1) {
		case 1:
			rw.Header().Set("Retry-After-Ms", "30")
			rw.WriteHeader(429)
		case 3:
			rw.Header().Set("Retry-After", "0") // at once
			rw.WriteHeader(503)
		default:
			plain(rw, r)
		}
	})
	start := time.Now()
	require.Equal(t, 200, w.chat("").StatusCode)
	require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
	require.Equal(t, 2, w.events(4)[event.KindUsed][0].Reservation.Attempt)
	require.Equal(t, 200, w.chat("").StatusCode)
	require.Equal(t, int64(4), calls.Load())
}

// Limits of a provider's key are judged with all others, and a key without room is passed over.
func TestLimitsOfKeys(t *testing.T) {
	t.Parallel()
	limits := roomy + `  - {name: only-a, tier: provider, match: {provider_key: a}, rate: {requests: 1, per: hour}}
  - {name: each-key, tier: provider, by: [provider_key], budget: {requests: 3, per: day}}
`
	var keys asked
	w := start(t, limits, func(rw http.ResponseWriter, r *http.Request) {
		keys.with(r)
		plain(rw, r)
	})
	for range 4 {
		require.Equal(t, 200, w.send(http.MethodPost, chatPath, manyBody).StatusCode)
	}
	require.Equal(t, []int{1, 3}, []int{keys.of("a"), keys.of("b")})
	a := w.send(http.MethodPost, chatPath, manyBody)
	require.Equal(t, 429, a.StatusCode)
	require.Equal(t, "provider", w.problemOf(a).Tollgate.Layer)
	w.events(8)
}

// refusing is a transport that cannot connect so many times.
type refusing struct {
	http.RoundTripper
	times atomic.Int64
}

func (r *refusing) RoundTrip(request *http.Request) (*http.Response, error) {
	if r.times.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	return r.RoundTripper.RoundTrip(request)
}

// A connection that could not be made is tried again for the same reservation: nothing of it was taken.
func TestConnectionIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	transport := &refusing{RoundTripper: w.gateway.transport}
	transport.times.Store(1)
	p := w.rules(roomy)
	upstreams, err := connect(p, transport)
	require.NoError(t, err)
	require.NoError(t, w.gateway.admission.SetPolicy(p, upstreams))
	require.Equal(t, 200, w.chat("").StatusCode)
	require.Equal(t, 2, w.outcome().Tries)
}

// A provider that fails time after time is left alone for a moment, then one request finds out whether it is back.
func TestProviderGoesDownAndComesBack(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	var calls atomic.Int64
	down.Store(true)
	w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if down.Load() {
			rw.WriteHeader(503)
			return
		}
		plain(rw, r)
	})
	move := w.frozen()
	w.run(roomy)
	for range 5 {
		require.Equal(t, 503, w.chat("").StatusCode)
	}
	a := w.chat("")
	require.Equal(t, 503, a.StatusCode)
	p := w.problemOf(a)
	require.Equal(t, "UPSTREAM_DOWN", p.Tollgate.Reason)
	require.Contains(t, p.Error.Message, "the provider openai does not serve at the moment")
	require.Equal(t, "1", a.Header.Get("Retry-After"))
	require.Equal(t, int64(5), calls.Load())
	require.Equal(t, 503, w.send(http.MethodPost, chatPath, strings.Replace(manyBody, "many", "patient", 1)).StatusCode, "another provider is asked")
	require.Equal(t, int64(6), calls.Load())
	down.Store(false)
	require.Equal(t, 503, w.chat("").StatusCode, "its moment is not over")
	move(time.Second)
	require.Equal(t, 200, w.chat("").StatusCode)
	require.Equal(t, 200, w.chat("").StatusCode)
	require.Equal(t, int64(8), calls.Load())
}

// Each phase of a call that takes too long is told by its name.
func TestTimeoutsByPhase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set     func(*Config)
		stream  string
		parts   []string
		message string
	}{
		"first byte": {func(c *Config) { c.HeaderTimeout = 50 * time.Millisecond }, "", nil, "no first byte from it within 50ms"},
		"idle":       {func(c *Config) { c.IdleTimeout = 50 * time.Millisecond }, "", []string{"{"}, "no next piece of the answer from it within 50ms"},
		"total":      {func(c *Config) { c.TotalTimeout = time.Second }, "", []string{"{"}, "no whole answer from it within 1s"},
		"a stream":   {func(c *Config) { c.IdleTimeout = time.Second }, `,"stream":true`, []string{firstChunk}, "no next piece of the answer from it within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leave := make(chan struct{})
			var asked atomic.Bool
			w := begin(t, func(rw http.ResponseWriter, _ *http.Request) {
				asked.Store(true)
				switch {
				case c.stream != "":
					events(rw, c.parts...)
				case c.parts != nil:
					rw.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(rw, c.parts[0])
					rw.(http.Flusher).Flush()
				}
				<-leave
			})
			t.Cleanup(func() { close(leave) })
			c.set(&w.config)
			w.run(roomy)
			a := w.chat(c.stream)
			if c.stream != "" && a.err != nil { // else the time was over before the first piece had been passed on
				require.ErrorIs(t, a.err, io.ErrUnexpectedEOF, "it must not look complete")
			} else {
				require.Equal(t, 504, a.StatusCode)
				require.Contains(t, w.problemOf(a).Error.Message, c.message)
			}
			if ended := w.events(2)[event.KindReleased]; len(ended) > 0 && !asked.Load() {
				require.Equal(t, ledger.ReasonUpstreamTimeout, ended[0].Release.Reason)
				return // the time was over before the provider had been asked
			}
			o := w.outcome()
			require.Equal(t, ledger.ReasonUpstreamTimeout, o.Finish)
			require.Equal(t, ledger.UsageEstimated, o.UsageState)
		})
	}
}

// A response that a provider stores is known to the key that made it: it alone is asked to show it, and to go on from it.
func TestStoredResponsesStayWithTheirKey(t *testing.T) {
	t.Parallel()
	var keys asked
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		name := keys.with(r)
		text, _ := io.ReadAll(r.Body)
		known := gjson.GetBytes(text, "previous_response_id").Str
		if r.Method == http.MethodGet {
			known = path.Base(r.URL.Path)
		}
		if known != "" && known != "resp_"+name {
			rw.WriteHeader(404)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(rw, `{"id":"resp_%s","usage":{"input_tokens":12,"output_tokens":5,"total_tokens":17}}`, name)
	})
	for range 2 {
		require.Equal(t, 200, w.send(http.MethodPost, "/v1/responses", `{"model":"many","input":"x"}`).StatusCode)
	}
	require.Equal(t, []int{1, 1}, []int{keys.of("a"), keys.of("b")})
	for range 2 {
		for _, id := range []string{"resp_a", "resp_b"} {
			require.Equal(t, 200, w.send(http.MethodGet, "/v1/responses/"+id, "").StatusCode, id)
			next := `{"model":"many","input":"x","previous_response_id":"` + id + `"}`
			require.Equal(t, 200, w.send(http.MethodPost, "/v1/responses/input_tokens", next).StatusCode, id)
			require.Equal(t, 200, w.send(http.MethodPost, "/v1/responses", next).StatusCode, id)
		}
	}
	w.events(12)
}
