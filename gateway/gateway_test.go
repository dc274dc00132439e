package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

func TestPlainAnswer(t *testing.T) {
	t.Parallel()
	var sent http.Header
	var body string
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		sent, body = r.Header, string(text)
		rw.Header().Set("X-Request-Id", "req_1")
		rw.Header().Set("X-Ratelimit-Remaining-Tokens", "1")
		rw.Header().Set("Set-Cookie", "a=b")
		rw.Header().Set("Openai-Organization", "org-1")
		rw.Header().Set("X-Tollgate-Model", "theirs")
		plain(rw, r)
	})
	a := w.chat(`,"user":"eve"`, "X-Api-Key", callerSecret, "Cookie", "c=d", "OpenAI-Organization", "org-2", "X-Custom", "kept",
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Idempotency-Key", "i1")
	require.Equal(t, 200, a.StatusCode)
	require.Equal(t, plainAnswer, a.body)
	require.Equal(t, chatBody(`,"user":"eve"`), body, "the body goes on byte for byte")
	require.Equal(t, "Bearer "+upstreamSecret, sent.Get("Authorization"))
	require.Equal(t, "kept", sent.Get("X-Custom"))
	require.Equal(t, "i1", sent.Get("Idempotency-Key"))
	for _, name := range []string{"X-Api-Key", "Cookie", "Openai-Organization"} {
		require.Empty(t, sent.Get(name), name)
	}
	require.Equal(t, "req_1", a.Header.Get("X-Request-Id"))
	require.Equal(t, "gpt-4o-mini", a.Header.Get("X-Tollgate-Model"))
	require.Empty(t, a.Header.Get("Set-Cookie"))
	require.Empty(t, a.Header.Get("Openai-Organization"))
	require.Empty(t, a.Header.Get("X-Ratelimit-Remaining-Tokens"))
	require.Equal(t, "1000000", a.Header.Get("X-Ratelimit-Limit-Requests"))
	require.Equal(t, "999999", a.Header.Get("X-Ratelimit-Remaining-Requests"))
	require.Equal(t, `"app-day";q=1000000`, a.Header.Get("Ratelimit-Policy"))
	require.Regexp(t, `^"app-day";r=999999;t=[0-9]+$`, a.Header.Get("Ratelimit"))

	found := w.events(2)
	reserved, used := found[event.KindReserved][0], found[event.KindUsed][0]
	require.Equal(t, a.Header.Get("X-Tollgate-Request-Id"), reserved.Reservation.ID)
	require.Equal(t, sent.Get("X-Tollgate-Request-Id"), reserved.Reservation.ID)
	require.Equal(t, "eve", reserved.Reservation.User)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", used.TraceID)
	require.Equal(t, reserved.Reservation, used.Reservation)
	o := used.Outcome
	require.Equal(t, ledger.Usage{Input: 12, Output: 5}, o.Usage)
	require.Equal(t, ledger.UsageReported, o.UsageState)
	require.Equal(t, ledger.NanoUSD(12*150+5*600), o.Cost)
	require.Equal(t, "gpt-4o-mini-2024-07-18", o.ModelServed)
	require.Equal(t, "chatcmpl-1", o.UpstreamID)
	require.Equal(t, ledger.ReasonOK, o.Finish)
	require.Equal(t, 200, o.Status)
	require.NotContains(t, w.logs.String(), "Say hello", "no prompt in a log")
	require.NotContains(t, w.logs.String(), "Hello.", "no completion in a log")
}

func TestAliasAndEmbeddings(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var bodies []string
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		bodies = append(bodies, r.URL.Path+" "+string(text))
		mu.Unlock()
		plain(rw, r)
	})
	a := w.send(http.MethodPost, chatPath, `{"model":"fast","messages":[]}`)
	require.Equal(t, 200, a.StatusCode)
	require.Equal(t, "gpt-4o-mini", a.Header.Get("X-Tollgate-Model"))
	require.Equal(t, 200, w.send(http.MethodPost, "/v1/embeddings", `{"model":"text-embedding-3-small","input":"x"}`).StatusCode)
	require.Equal(t, []string{chatPath + ` {"model":"gpt-4o-mini","messages":[]}`, `/v1/embeddings {"model":"text-embedding-3-small","input":"x"}`}, bodies)
	found := w.events(4)
	require.Equal(t, "fast", found[event.KindReserved][0].Reservation.ModelRequested)
	require.Equal(t, "gpt-4o-mini", found[event.KindReserved][0].Reservation.Model)
}

// Models that share an upstream, and policies that change, never give a request to the wrong place or lose it.
func TestPolicyChangesUnderLoad(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		plain(rw, r)
	})
	stop := make(chan struct{})
	var changer, callers sync.WaitGroup
	changer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			limits := roomy
			if i%2 == 0 {
				limits += "  - {name: key-total, tier: key, budget: {tokens: 1000000000, per: total}}\n"
			}
			if err := w.gateway.setPolicy(w.rules(limits)); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 4 {
		callers.Go(func() {
			for range 15 {
				a := w.send(http.MethodPost, chatPath, fmt.Sprintf(`{"model":%q,"messages":[]}`, []string{"fast", "gpt-4o-mini"}[i%2]))
				if a.err != nil || a.StatusCode != 200 {
					t.Errorf("answer %+v", a)
				}
			}
		})
	}
	callers.Wait()
	close(stop)
	changer.Wait()
	require.Equal(t, int64(60), calls.Load())
	found := w.events(120)
	require.Len(t, found[event.KindUsed], 60)
}

func TestPolicyThatCannotBeTakenLeavesTheRunningOne(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	before := w.gateway.admission.Policy().Revision
	for name, text := range map[string]string{
		"syntax":    "version: 1\nlimits: {",
		"no secret": strings.ReplaceAll(policyText(w), w.keyFile, w.keyFile+"-gone"),
	} {
		w.gateway.takePolicy(t.Context(), []byte(text))
		require.Equal(t, before, w.gateway.admission.Policy().Revision, name)
	}
	require.Equal(t, 2, strings.Count(w.logs.String(), "pushed policy is not taken"))
	w.gateway.takePolicy(t.Context(), []byte(policyText(w)))
	require.NotEqual(t, before, w.gateway.admission.Policy().Revision)
	require.Equal(t, 200, w.chat("").StatusCode)
}

func policyText(w *world) string {
	return fmt.Sprintf("version: 1\nproviders:\n  openai: {protocol: openai, base_url: %q, api_key_file: %s}\nmodels:\n  gpt-4o-mini: {provider: openai}\nlimits:\n%s",
		w.provider.URL+"/v1", w.keyFile, roomy)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := start(t, "  - {name: app-total, tier: app, budget: {requests: 1, per: total}}\n", plain)
	require.Equal(t, 200, w.chat("").StatusCode)
	require.Equal(t, 429, w.chat("").StatusCode)
	require.Equal(t, 404, w.send(http.MethodPost, chatPath, `{"model":"of-a-caller","messages":[]}`).StatusCode)
	w.events(2)
	problems, err := testutil.GatherAndLint(w.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	m := w.gateway.metrics
	require.Equal(t, 1.0, testutil.ToFloat64(m.decisions.WithLabelValues("allow", "OK", "")))
	require.Equal(t, 1.0, testutil.ToFloat64(m.decisions.WithLabelValues("refuse", "APP_QUOTA", "app")))
	require.Equal(t, 1.0, testutil.ToFloat64(m.decisions.WithLabelValues("refuse", "UNKNOWN_MODEL", "")))
	require.Equal(t, 12.0, testutil.ToFloat64(m.tokens.WithLabelValues("openai", "gpt-4o-mini", "input")))
	require.InDelta(t, float64(12*150+5*600)/1e9, testutil.ToFloat64(m.cost.WithLabelValues("openai", "gpt-4o-mini")), 1e-12)
	families, err := w.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			for _, label := range metric.GetLabel() {
				require.NotContains(t, label.GetValue(), "of-a-caller", f.GetName())
				require.NotContains(t, label.GetValue(), "k_1", f.GetName())
			}
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, Config{
		LimiterTimeout: 1, MaxBody: 1 << 10, MaxBodies: 1 << 10, DialTimeout: 1, TLSTimeout: 1, HeaderTimeout: 1, IdleTimeout: 1, TotalTimeout: 1, DownAfter: 1,
		ShutdownTimeout: 1, RefusalsEvery: 1, ConfirmEvery: 1, CallerTimeout: 1, DrainTimeout: 1,
	}.Validate())
	err := Config{MaxBodies: -1, Drains: -1}.Validate()
	for _, name := range []string{
		"LIMITER_TIMEOUT", "UPSTREAM_DIAL_TIMEOUT", "UPSTREAM_TLS_TIMEOUT", "UPSTREAM_HEADER_TIMEOUT", "UPSTREAM_IDLE_TIMEOUT", "UPSTREAM_TIMEOUT", "UPSTREAM_DOWN_AFTER", "BODIES_MAX_BYTES",
		"SHUTDOWN_TIMEOUT", "REFUSALS_EVERY", "MAX_BODY_BYTES", "CALLER_TIMEOUT", "DRAIN_TIMEOUT", "DRAINS",
	} {
		require.ErrorContains(t, err, "TOLLGATE_"+name)
	}
}

// A policy that was pushed while a gateway was starting judges its first request.
func TestPolicyPushedWhileStartingJudgesTheFirstRequest(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	w.follow = true
	bucket, err := PolicyBucket(t.Context(), w.js)
	require.NoError(t, err)
	pushed := strings.Replace(policyText(w), "app-day", "pushed", 1)
	_, err = bucket.PutString(t.Context(), policy.BucketKey, pushed)
	require.NoError(t, err)
	w.run(roomy)
	require.Equal(t, `"pushed";q=1000000`, w.chat("").Header.Get("Ratelimit-Policy"))
	stack.Eventually(t, func() error {
		if !strings.Contains(w.logs.String(), "gateway is serving") {
			return errors.New("not serving yet")
		}
		return nil
	})
	before, _, _ := strings.Cut(w.logs.String(), "gateway is serving")
	require.Contains(t, before, "policy in force")
}

// A pushed policy comes into force, also one that is pushed into a bucket that had to be made anew.
func TestPushedPolicyIsFollowed(t *testing.T) {
	t.Parallel()
	w := begin(t, plain)
	w.follow = true
	w.run(roomy)
	for _, limit := range []string{"first", "second"} {
		bucket, err := PolicyBucket(t.Context(), w.js)
		require.NoError(t, err)
		text := strings.Replace(policyText(w), "app-day", limit, 1)
		_, err = bucket.PutString(t.Context(), policy.BucketKey, text)
		require.NoError(t, err)
		stack.Eventually(t, func() error {
			if p := w.gateway.admission.Policy(); p.Revision != policy.RevisionOf([]byte(text)) {
				return fmt.Errorf("revision %s is in force", p.Revision)
			}
			return nil
		})
		require.Equal(t, fmt.Sprintf("%q;q=1000000", limit), w.chat("").Header.Get("Ratelimit-Policy"))
		require.NoError(t, w.js.DeleteKeyValue(t.Context(), policy.Bucket))
	}
}
