package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

const (
	messagesPath = "/v1/messages"
	countPath    = "/v1/messages/count_tokens"
)

func messageBody(more string) string {
	return `{"model":"claude","max_tokens":10,"messages":[{"role":"user","content":"Say hello."}]` + more + `}`
}

func (w *world) message(more string, headers ...string) answer {
	w.Helper()
	return w.send(http.MethodPost, messagesPath, messageBody(more), append([]string{"Authorization", "", "X-Api-Key", callerSecret, "Anthropic-Version", "2023-06-01"}, headers...)...)
}

const plainMessage = `{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-4-6","content":[{"type":"thinking","thinking":"Hm."},{"type":"text","text":"Hello."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":30,"cache_read_input_tokens":400,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20},"output_tokens":9,"output_tokens_details":{"thinking_tokens":4},"service_tier":"standard"}}`

// plainUsage is what plainMessage used, plainCost what that costs: input 3, caches 3.75, 6 and 0.3, output 15 dollars a million.
var plainUsage = ledger.Usage{Input: 12, CachedInput: 400, CacheWrite5m: 10, CacheWrite1h: 20, Output: 5, Reasoning: 4}

const plainCost = ledger.NanoUSD(12*3000 + 400*300 + 10*3750 + 20*6000 + 9*15000)

var (
	startEvent = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"claude-sonnet-4-6\",\"usage\":{\"input_tokens\":12,\"output_tokens\":1}}}\n\n"
	pingEvent  = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
	textEvent  = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello.\"}}\n\n"
	deltaEvent = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":9}}\n\n"
	stopEvent  = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	errorEvent = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	var sent http.Header
	var path, body string
	w := start(t, roomy+"  - {name: key-tokens, tier: key, budget: {tokens: 1000000, per: day}}\n", func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		sent, path, body = r.Header, r.URL.Path, string(text)
		for _, name := range []string{"Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Organization-Id"} {
			rw.Header().Set(name, "7")
		}
		rw.Header().Set("Request-Id", "req_theirs")
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, plainMessage)
	})
	a := w.message(`,"metadata":{"user_id":"ada"},"x":[1, 2]`, "Anthropic-Beta", "a-1,b-2")
	require.Equal(t, 200, a.StatusCode)
	require.Equal(t, plainMessage, a.body)
	require.Equal(t, messagesPath, path)
	require.Equal(t, strings.Replace(messageBody(`,"metadata":{"user_id":"ada"},"x":[1, 2]`), `"claude"`, `"claude-sonnet-4-6"`, 1), body)
	require.Equal(t, upstreamSecret, sent.Get("X-Api-Key"))
	require.Empty(t, sent.Get("Authorization"))
	require.Equal(t, "2023-06-01", sent.Get("Anthropic-Version"))
	require.Equal(t, "a-1,b-2", sent.Get("Anthropic-Beta"))
	require.Equal(t, "req_theirs", a.Header.Get("Request-Id"))
	require.Equal(t, "claude-sonnet-4-6", a.Header.Get("X-Tollgate-Model"))

	require.Equal(t, "1000000", a.Header.Get("Anthropic-Ratelimit-Requests-Limit"))
	require.Equal(t, "999999", a.Header.Get("Anthropic-Ratelimit-Requests-Remaining"))
	require.Equal(t, "1000000", a.Header.Get("Anthropic-Ratelimit-Tokens-Limit"))
	for _, unit := range []string{"Requests", "Tokens"} {
		reset, err := time.Parse(time.RFC3339, a.Header.Get("Anthropic-Ratelimit-"+unit+"-Reset"))
		require.NoError(t, err)
		require.Equal(t, time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1), reset)
	}
	for name := range a.Header {
		require.NotContains(t, name, "X-Ratelimit")
		require.NotContains(t, name, "put-Tokens", "limits count input and output together")
	}
	require.Empty(t, a.Header.Get("Anthropic-Organization-Id"))
	require.Equal(t, `"app-day";q=1000000, "key-tokens";q=1000000;qu="tollgate-tokens"`, a.Header.Get("Ratelimit-Policy"))

	found := w.events(2)
	res, o := found[event.KindReserved][0].Reservation, found[event.KindUsed][0].Outcome
	require.Equal(t, "ada", res.User)
	require.Equal(t, messagesPath, res.Endpoint)
	require.Equal(t, "claude", res.ModelRequested)
	require.Greater(t, res.Held.Tokens, ledger.Tokens(10))
	require.GreaterOrEqual(t, res.Held.NanoUSD, ledger.NanoUSD(10*15000))
	require.Equal(t, plainUsage, o.Usage)
	require.Equal(t, ledger.UsageReported, o.UsageState)
	require.Equal(t, plainCost, o.Cost)
	require.Equal(t, "msg_1", o.UpstreamID)
	require.Equal(t, ledger.ReasonOK, o.Finish)
	require.NotContains(t, w.logs.String(), "Say hello")
}

// What may be written to a cache of an hour is held at its price: twice the input's, not one and a quarter.
func TestMessageHoldsWhatItsCacheMayCost(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, plainMessage) })
	require.Equal(t, 200, w.message(`,"cache_control":{"type":"ephemeral","ttl":"5m"}`).StatusCode)
	require.Equal(t, 200, w.message(`,"cache_control":{"type":"ephemeral","ttl":"1h"}`).StatusCode)
	reserved := w.events(4)[event.KindReserved]
	held := func(perInput ledger.NanoUSD) ledger.NanoUSD {
		return ledger.NanoUSD(reserved[0].Reservation.Held.Tokens-10)*perInput + 10*15000
	}
	require.Equal(t, reserved[0].Reservation.Held.Tokens, reserved[1].Reservation.Held.Tokens)
	require.Equal(t, held(3750), reserved[0].Reservation.Held.NanoUSD)
	require.Equal(t, held(6000), reserved[1].Reservation.Held.NanoUSD)
}

func TestMessageStream(t *testing.T) {
	t.Parallel()
	parts := []string{startEvent, pingEvent, textEvent, deltaEvent, stopEvent}
	var body string
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body = string(text)
		events(rw, parts...)
	})
	a := w.message(`,"stream":true`)
	require.NoError(t, a.err)
	require.Equal(t, strings.Join(parts, ""), a.body, "byte for byte")
	require.NotContains(t, body, "stream_options")
	o := w.outcome()
	require.Equal(t, ledger.Usage{Input: 12, Output: 9}, o.Usage)
	require.Equal(t, ledger.UsageReported, o.UsageState)
	require.Equal(t, ledger.ReasonOK, o.Finish)
}

// What the provider says of an error in the middle is the end of the answer, and reaches the caller; nobody cuts it off.
func TestMessageStreamFails(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) { events(rw, startEvent, textEvent, errorEvent) })
	a := w.message(`,"stream":true`)
	require.NoError(t, a.err)
	require.Equal(t, startEvent+textEvent+errorEvent, a.body)
	o := w.outcome()
	require.Equal(t, ledger.UsageEstimated, o.UsageState)
	require.Equal(t, ledger.Tokens(12), o.Usage.Input)
	require.Equal(t, ledger.ReasonUpstreamFailed, o.Finish)
}

func TestMessageStreamIsCut(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]string{"after a ping": {pingEvent}, "in the middle": {startEvent, textEvent}, "before its stop": {startEvent, deltaEvent}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) {
				events(rw, parts...)
				cut()
			})
			a := w.message(`,"stream":true`)
			require.Error(t, a.err, "it does not look complete")
			require.Equal(t, ledger.ReasonUpstreamCut, w.outcome().Finish)
		})
	}
}

// A caller that leaves ends the provider's work where the policy says so; else the rest is read for its usage.
func TestMessageCallerLeaves(t *testing.T) {
	t.Parallel()
	for model, state := range map[string]ledger.UsageState{"claude": ledger.UsageEstimated, "steady": ledger.UsageReported} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			left := make(chan struct{})
			w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				events(rw, startEvent, textEvent)
				<-left
				if model == "claude" {
					<-r.Context().Done()
					return
				}
				for range 200 { // enough to notice that nobody reads
					events(rw, strings.Replace(textEvent, "Hello", strings.Repeat("x", 20_000), 1))
				}
				events(rw, deltaEvent, stopEvent)
			})
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+messagesPath, strings.NewReader(strings.Replace(messageBody(`,"stream":true`), "claude", model, 1)))
			require.NoError(t, err)
			r.Header.Set("X-Api-Key", callerSecret)
			response, err := w.client.Do(r)
			require.NoError(t, err)
			_, err = io.ReadFull(response.Body, make([]byte, len(startEvent)))
			require.NoError(t, err)
			leave()
			require.NoError(t, response.Body.Close())
			if model == "steady" {
				w.awaitDrains(1)
			}
			close(left)
			o := w.outcome()
			require.Equal(t, ledger.ReasonClientGone, o.Finish)
			require.Equal(t, state, o.UsageState)
			require.Equal(t, ledger.Tokens(12), o.Usage.Input, "the start told it")
		})
	}
}

// Errors of the provider pass with their status, body and wait, and what was held is given back (QuantumNous/new-api #5289: their
// text is no output); its own limits do not pass.
func TestMessageRefusedByProvider(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 429, 529} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Retry-After", "7")
				rw.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "0")
				rw.Header().Set("Anthropic-Ratelimit-Input-Tokens-Reset", "2020-01-01T00:00:00Z")
				rw.WriteHeader(status)
				_, _ = io.WriteString(rw, `{"type":"error","error":{"type":"overloaded_error","message":"`+r.Header.Get("X-Api-Key")+`"}}`)
			})
			a := w.message("")
			require.Equal(t, status, a.StatusCode)
			require.Equal(t, `{"type":"error","error":{"type":"overloaded_error","message":"[hidden]"}}`, a.body)
			require.Equal(t, "7", a.Header.Get("Retry-After"))
			require.Equal(t, "999999", a.Header.Get("Anthropic-Ratelimit-Requests-Remaining"), "ours, not theirs")
			require.Empty(t, a.Header.Get("Anthropic-Ratelimit-Input-Tokens-Reset"))
			require.Equal(t, event.Release{Reason: ledger.ReasonUpstreamFailed, Status: status}, *w.released())
		})
	}
}

// BerriAI/litellm #27823, #37754: a refusal has the headers and the body of the caller's protocol.
func TestMessageLimitRefusal(t *testing.T) {
	t.Parallel()
	w := start(t, `  - {name: app-day, tier: app, budget: {requests: 3, per: day}}
  - {name: key-minute, tier: key, by: [endpoint], match: {endpoint: messages}, rate: {requests: 1, per: minute, algorithm: sliding_log}}
`, func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, plainMessage) })
	before := time.Now()
	require.Equal(t, 200, w.message("").StatusCode)
	after := time.Now()
	a := w.message("")
	p := w.problemOf(a)
	require.Equal(t, 429, a.StatusCode)
	require.Equal(t, "error", p.Type)
	require.Equal(t, "rate_limit_error", p.Error.Type)
	require.Equal(t, "RPM_LIMIT", p.Tollgate.Reason)
	require.Equal(t, "key-minute", p.Tollgate.LimitName)
	require.Equal(t, "1", p.Tollgate.Used.String())
	require.NotEmpty(t, p.RequestID)
	require.Equal(t, p.RequestID, a.Header.Get("Request-Id"))
	require.Contains(t, w.logs.String(), p.RequestID, "the log line has it")
	require.Empty(t, a.Header.Get("X-Should-Retry"))
	require.NotEmpty(t, a.Header.Get("Retry-After-Ms"))
	require.Equal(t, "0", a.Header.Get("Anthropic-Ratelimit-Requests-Remaining"))
	reset, err := time.Parse(time.RFC3339, a.Header.Get("Anthropic-Ratelimit-Requests-Reset"))
	require.NoError(t, err)
	require.WithinRange(t, reset, before.Add(time.Minute).Truncate(time.Second), after.Add(time.Minute+time.Second), "the first has left the window then")
	w.events(2)
}

// songquanpeng/one-api #15: tokens are counted for everyone who has a key, also when every budget is used up, and nothing is set aside or recorded.
func TestCountTokens(t *testing.T) {
	t.Parallel()
	const counted = `{"input_tokens":2095}`
	status := make(chan int, 10)
	var path, body string
	var sent http.Header
	w := start(t, "  - {name: app-total, tier: app, budget: {tokens: 1, per: total}}\n", func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		path, body, sent = r.URL.Path, string(text), r.Header
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Anthropic-Ratelimit-Requests-Limit", "7")
		rw.WriteHeader(<-status)
		_, _ = io.WriteString(rw, counted)
	})
	count := func() answer {
		return w.send(http.MethodPost, countPath, `{"model":"claude","messages":[]}`, "Authorization", "", "X-Api-Key", callerSecret, "Anthropic-Beta", "b")
	}
	require.Equal(t, 413, w.message("").StatusCode, "no budget allows a message")
	for range 3 {
		status <- 200
		a := count()
		require.Equal(t, 200, a.StatusCode)
		require.Equal(t, counted, a.body)
		require.Equal(t, "claude-sonnet-4-6", a.Header.Get("X-Tollgate-Model"))
		require.Empty(t, a.Header.Get("X-Tollgate-Request-Id"), "there is no reservation")
		require.Empty(t, a.Header.Get("Anthropic-Ratelimit-Requests-Limit"))
	}
	require.Equal(t, countPath, path)
	require.Equal(t, `{"model":"claude-sonnet-4-6","messages":[]}`, body)
	require.Equal(t, upstreamSecret, sent.Get("X-Api-Key"))
	require.Equal(t, "b", sent.Get("Anthropic-Beta"))
	status <- 529
	a := count()
	require.Equal(t, 529, a.StatusCode)
	require.Equal(t, counted, a.body)
	w.provider.Close()
	a = count()
	require.Equal(t, 502, a.StatusCode)
	require.Equal(t, "api_error", w.problemOf(a).Error.Type)
	require.Contains(t, w.logs.String(), `"msg":"free request","reason":"UPSTREAM_FAILED","status":502`)
	w.events(0)
	held, err := w.redis.Keys(t.Context(), "*reservation*").Result()
	require.NoError(t, err)
	require.Empty(t, held)
}

// A caller of count_tokens that leaves takes its request along.
func TestCountTokensCallerLeaves(t *testing.T) {
	t.Parallel()
	arrived, gone := make(chan struct{}), make(chan struct{})
	w := start(t, roomy, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-arrived
		leave()
	}()
	a := w.sendContext(ctx, http.MethodPost, countPath, `{"model":"claude","messages":[]}`)
	require.ErrorIs(t, a.err, context.Canceled)
	<-gone
	stack.Eventually(t, func() error {
		if !strings.Contains(w.logs.String(), `"reason":"CLIENT_GONE"`) {
			return fmt.Errorf("no line")
		}
		return nil
	})
	w.events(0)
}

func TestRoutesOfProtocolsAreTold(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	p := w.problemOf(w.send(http.MethodPost, messagesPath, `{"model":"fast","messages":[],"max_tokens":1}`))
	require.Contains(t, p.Error.Message, "use /v1/chat/completions or /v1/completions or /v1/embeddings")
	p = w.problemOf(w.send(http.MethodPost, "/v1/embeddings", `{"model":"claude","input":"x"}`))
	require.Contains(t, p.Error.Message, "use /v1/messages")
	w.events(0)
}
