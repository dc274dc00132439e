package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// requestLines are the log's lines about requests, in order, when there are n.
func (w *world) requestLines(n int) (lines []map[string]any) {
	w.Helper()
	stack.Eventually(w, func() error {
		lines = nil
		for text := range strings.Lines(w.logs.String()) {
			var line map[string]any
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				return err
			}
			if line["msg"] == "request" {
				lines = append(lines, line)
			}
		}
		if len(lines) != n {
			return fmt.Errorf("%d lines about requests, want %d", len(lines), n)
		}
		return nil
	})
	return lines
}

// The line of a decision has its figures, whatever it was: of the limit that refused, or of the tightest that had room.
func TestLineOfADecision(t *testing.T) {
	t.Parallel()
	w := start(t, `  - {name: app-total, tier: app, budget: {requests: 2, per: total}}
  - {name: key-rpm, tier: key, rate: {requests: 100, per: minute, algorithm: sliding_log}}
`, plain)
	trace := []string{"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	for range 3 {
		w.chat(`,"user":"ada"`, trace...)
	}
	lines := w.requestLines(3)
	figures := func(line map[string]any) map[string]any {
		found := map[string]any{}
		for _, name := range strings.Fields("reason status layer app key_id user endpoint model limit_name subject unit limit current held needed remaining " +
			"reserved_tokens actual_tokens actual_nanousd usage_state trace_id upstream_model") {
			if value, ok := line[name]; ok {
				found[name] = value
			}
		}
		return found
	}
	want := map[string]any{
		"reason": "OK", "status": 200.0, "app": app, "key_id": "k_1", "user": "ada", "endpoint": chatPath, "model": "gpt-4o-mini",
		"limit_name": "app-total", "subject": "app:checkout", "unit": "requests", "limit": 2.0, "current": 0.0, "held": 0.0, "needed": 1.0, "remaining": 1.0,
		"reserved_tokens": lines[0]["reserved_tokens"], "actual_tokens": 17.0, "actual_nanousd": 12*150.0 + 5*600, "usage_state": "reported",
		"trace_id": "0af7651916cd43dd8448eb211c80319c", "upstream_model": "gpt-4o-mini",
	}
	require.Equal(t, want, figures(lines[0]))
	want["held"], want["remaining"] = 1.0, 0.0
	require.Equal(t, want, figures(lines[1]))
	for name, value := range map[string]any{"reason": "APP_QUOTA", "status": 429.0, "layer": "app", "held": 2.0} {
		want[name] = value
	}
	for _, name := range []string{"actual_tokens", "actual_nanousd", "usage_state", "upstream_model"} {
		delete(want, name)
	}
	require.Equal(t, want, figures(lines[2]))
}

// A line does not tell the figures of a limit that was not asked.
func TestLineOfWhatWasNotAsked(t *testing.T) {
	t.Parallel()
	w := start(t, `  - {name: tiny, tier: app, budget: {tokens: 1, per: day}}
`, plain)
	w.chat("")
	w.send(http.MethodPost, chatPath, `{"model":"x","messages":[]}`)
	lines := w.requestLines(2)
	require.Equal(t, "REQUEST_TOO_LARGE", lines[0]["reason"])
	require.Equal(t, "tiny", lines[0]["limit_name"])
	require.Equal(t, 1.0, lines[0]["limit"])
	require.Contains(t, lines[0], "needed")
	require.Equal(t, "UNKNOWN_MODEL", lines[1]["reason"])
	require.NotContains(t, lines[1], "limit")
	for _, line := range lines {
		for _, name := range []string{"current", "held", "remaining"} {
			require.NotContains(t, line, name)
		}
	}
}

// What is out of the ordinary stands in the line, and only then.
func TestLineSaysWhatIsOutOfTheOrdinary(t *testing.T) {
	t.Parallel()
	line := func(v *admission.Verdict) string {
		var text strings.Builder
		slog.New(slog.NewJSONHandler(&text, nil)).LogAttrs(t.Context(), slog.LevelInfo, "", appendOutcome(nil, v)...)
		_, rest, found := strings.Cut(text.String(), `"msg":""`)
		require.True(t, found)
		return strings.TrimSpace(rest)
	}
	require.Equal(t, `}`, line(&admission.Verdict{Refusal: &admission.Refusal{}}))
	v := &admission.Verdict{
		Degraded: true, Queued: &admission.Queued{Limit: "key-rpm", Waited: 1500 * time.Microsecond},
		PassedOver: []admission.PassedOver{
			{Action: admission.ActionShadow, Refusal: &admission.Refusal{LimitName: "app-day", Reason: ledger.ReasonAppQuota}},
			{Action: policy.ActionFlag, Refusal: &admission.Refusal{LimitName: "rpm", Reason: ledger.ReasonRPMLimit}},
		},
	}
	v.Reservation.Model = "gpt-4o-mini"
	require.Equal(t, `,"passed_over":["shadow app-day APP_QUOTA","flag rpm RPM_LIMIT"],"queued_for":"key-rpm","queued_ms":1.5,`+
		`"degraded":true,"upstream_model":"gpt-4o-mini"}`, line(v))
}

// No text of a prompt or of an answer, and no secret, is ever in the log, whatever becomes of the request.
//
// Long: one row a way that a request can end.
func TestLogHoldsNothingThatIsSaid(t *testing.T) {
	t.Parallel()
	const (
		prompt     = "marked-prompt"
		completion = "marked-completion"
		passenger  = "marked-header" // of the caller's or the provider's, none of our business
	)
	var mode atomic.Value
	w := start(t, `  - {name: few, tier: app, match: {model: fast}, budget: {requests: 1, per: total}}
  - {name: all, tier: app, budget: {requests: 100000, per: day}}
`, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set("X-Passenger", passenger)
		rw.Header().Set("Content-Type", "application/json")
		said := func(text string) { _, _ = io.WriteString(rw, text) }
		chunk := `data: {"id":"1","model":"` + completion + `","choices":[{"delta":{"content":"` + completion + `"}}]}` + "\n\n"
		switch mode.Load() {
		case "answer":
			said(`{"id":"1","model":"m","choices":[{"message":{"content":"` + completion + `"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		case "no usage":
			said(`{"choices":[{"message":{"content":"` + completion + `"}}]}`)
		case "nonsense":
			said(completion + `{"`)
		case "absurd":
			said(`{"choices":[{"message":{"content":"` + completion + `"}}],"usage":{"prompt_tokens":1000000000000,"completion_tokens":1,"total_tokens":3}}`)
		case "error that tells the prompt and the key back":
			rw.WriteHeader(http.StatusBadRequest)
			said(`{"error":{"message":"` + completion + ` ` + upstreamSecret + ` ` + prompt + `"}}`)
		case "rate limit":
			rw.WriteHeader(http.StatusTooManyRequests)
			said(completion)
		case "message":
			said(`{"id":"1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"` + completion + `"}],"usage":{"input_tokens":1,"output_tokens":1}}`)
		case "message's stream":
			rw.Header().Set("Content-Type", "text/event-stream")
			said(startEvent + strings.ReplaceAll(textEvent, "Hello.", completion) + deltaEvent + stopEvent)
		case "message's stream that breaks":
			rw.Header().Set("Content-Type", "text/event-stream")
			said(startEvent + strings.ReplaceAll(textEvent+errorEvent, "Overloaded", completion) + completion)
		case "stream":
			rw.Header().Set("Content-Type", "text/event-stream")
			said(chunk + chunk + "data: [DONE]\n\n")
		case "stream that breaks":
			rw.Header().Set("Content-Type", "text/event-stream")
			said(chunk + "data: {" + completion)
		case "stream of nonsense":
			rw.Header().Set("Content-Type", "text/event-stream")
			said("data: " + completion + "\n\n: " + completion + "\n\n" + completion + "\n")
		case "body that breaks":
			rw.Header().Set("Content-Length", "10000")
			said(completion)
		case "no answer":
			panic(http.ErrAbortHandler)
		}
	})
	message := `"messages":[{"role":"system","content":"` + prompt + `"},{"role":"user","content":[{"type":"text","text":"` + prompt + `"}]}],` +
		`"tools":[{"type":"function","function":{"name":"` + prompt + `","parameters":{"` + prompt + `":1}}}],"metadata":{"x":"` + prompt + `"},"max_tokens":10`
	chat := `{"model":"gpt-4o-mini",` + message + `}`
	sent := 0
	send := func(path, body string, headers ...string) {
		sent++
		a := w.send(http.MethodPost, path, body, append(headers, "X-Passenger", passenger, "Cookie", passenger, "X-Api-Key", passenger)...)
		if a.Response == nil {
			require.Error(t, a.err)
		}
	}
	for _, name := range []string{
		"answer", "no usage", "nonsense", "absurd", "error that tells the prompt and the key back", "rate limit", "stream", "stream that breaks",
		"stream of nonsense", "body that breaks", "no answer",
		"message", "message's stream", "message's stream that breaks",
	} {
		mode.Store(name)
		send(chatPath+"?key="+passenger, chat)
		send(chatPath, `{"model":"patient","stream":true,`+message+`}`)
		send(messagesPath, `{"model":"claude","system":"`+prompt+`",`+message+`}`)
		send(messagesPath, `{"model":"claude","stream":true,`+message+`}`)
		send("/v1/completions", `{"model":"gpt-4o-mini","prompt":"`+prompt+`"}`)
		send("/v1/embeddings", `{"model":"text-embedding-3-small","input":["`+prompt+`"]}`)
	}
	mode.Store("answer")
	for range 2 {
		send(chatPath, `{"model":"fast",`+message+`}`) // the second one is refused
	}
	// What cannot be admitted is not told in the log either.
	send(chatPath, chat, "Authorization", "Bearer tg-"+passenger)
	send(chatPath, chat[:len(chat)-1])
	send(chatPath, `"`+prompt+`"`)
	send(chatPath, `{"model":"gpt-4o-mini","messages":"`+prompt+`","max_tokens":"`+prompt+`"}`)
	send(chatPath, `{"model":"gpt-4o-mini","messages":[],"n":"`+prompt+`","user":{"x":"`+prompt+`"}}`)
	send(chatPath, `{"model":"gpt-4o-mini","`+prompt+`":1,"`+prompt+`":2}`)
	send(chatPath, `{"model":"`+strings.Repeat(prompt, 100)+`"}`)
	send(chatPath, chat, "X-Tollgate-User", strings.Repeat(passenger, 100))
	w.requestLines(sent)
	require.NoError(t, w.stop())
	for _, secret := range []string{prompt, completion, passenger, callerSecret, upstreamSecret, "Bearer"} {
		for line := range strings.Lines(w.logs.String()) {
			require.NotContains(t, line, secret)
		}
	}
}
