package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

const (
	geminiBody   = `{"contents":[{"role":"user","parts":[{"text":"Say hello."}]}],"generationConfig":{"maxOutputTokens":50}}`
	geminiAnswer = `{"candidates":[{"content":{"parts":[{"text":"Hello."}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":12,"cachedContentTokenCount":4,"candidatesTokenCount":5,"thoughtsTokenCount":20,"totalTokenCount":37},"modelVersion":"gemini-2.5-flash","responseId":"g1"}`
)

// google answers each of Gemini's methods, and tells what it was asked.
func google(asked chan<- *http.Request) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		switch {
		case r.URL.Query().Get("alt") == "sse":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+geminiAnswer+"\r\n\r\n")
		case r.URL.Path == "/v1beta/models/gemini-2.5-flash:streamGenerateContent":
			_, _ = io.WriteString(w, "["+geminiAnswer+"\n]\n")
		default:
			_, _ = io.WriteString(w, geminiAnswer)
		}
	}
}

var geminiUsed = ledger.Usage{Input: 8, CachedInput: 4, Output: 5, Reasoning: 20}

// However the key comes and however the answer is written, the provider sees its own key alone, the caller the provider's
// bytes, and the ledger the same usage.
func TestGemini(t *testing.T) {
	t.Parallel()
	asked := make(chan *http.Request, 8)
	w := start(t, roomy, google(asked))
	bare := []string{"Authorization", ""}
	for _, c := range []struct {
		path, want string
		headers    []string
	}{
		{"gemini-2.5-flash:generateContent", geminiAnswer, []string{"X-Goog-Api-Key", callerSecret}},
		{"quick:generateContent", geminiAnswer, nil},
		{"gemini-2.5-flash:streamGenerateContent?alt=sse&key=" + callerSecret, "data: " + geminiAnswer + "\r\n\r\n", nil},
		{"gemini-2.5-flash:streamGenerateContent?key=" + callerSecret, "[" + geminiAnswer + "\n]\n", nil},
	} {
		headers := bare
		if c.path == "quick:generateContent" {
			headers = nil
		}
		a := w.send(http.MethodPost, "/v1beta/models/"+c.path, geminiBody, append(headers, c.headers...)...)
		require.NoError(t, a.err)
		require.Equal(t, http.StatusOK, a.StatusCode, a.body)
		require.Equal(t, c.want, a.body)
		r := <-asked
		require.Equal(t, []string{upstreamSecret}, r.Header["X-Goog-Api-Key"])
		require.Empty(t, r.Header["Authorization"])
		require.Contains(t, []string{"", "alt=sse"}, r.URL.RawQuery)
	}
	for _, e := range w.events(8)[event.KindUsed] {
		require.Equal(t, geminiUsed, e.Outcome.Usage)
		require.Equal(t, ledger.UsageReported, e.Outcome.UsageState)
		require.Equal(t, "g1", e.Outcome.UpstreamID)
		require.Equal(t, "gemini-2.5-flash", e.Outcome.ModelServed)
		require.Positive(t, e.Outcome.Cost)
	}

	a := w.send(http.MethodPost, "/v1beta/models/gemini-2.5-flash:countTokens", geminiBody)
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Empty(t, a.Header.Get("X-Tollgate-Request-Id"), "a count is free")
	w.events(8)
}

// Refusals have Google's shape, and say how long to wait where programs of Google's look.
func TestGeminiRefusals(t *testing.T) {
	t.Parallel()
	asked := make(chan *http.Request, 8)
	w := start(t, "  - {name: rpm, tier: key, rate: {requests: 1, per: minute, algorithm: fixed_window}}\n", google(asked))
	call := func(path string, headers ...string) (status int, p struct {
		Error struct {
			Code            int
			Message, Status string
			Details         []map[string]any
		}
		Tollgate struct{ Reason string }
	},
	) {
		a := w.send(http.MethodPost, path, geminiBody, headers...)
		require.NoError(t, a.err)
		require.NoError(t, json.Unmarshal([]byte(a.body), &p), a.body)
		return a.StatusCode, p
	}
	const generate = "/v1beta/models/gemini-2.5-flash:generateContent"
	for _, c := range []struct {
		path   string
		header string
		status int
		name   string
		reason string
	}{
		{"/v1beta/models/unknown:generateContent", callerSecret, 404, "NOT_FOUND", "UNKNOWN_MODEL"},
		{"/v1beta/models/gpt-4o-mini:generateContent", callerSecret, 400, "INVALID_ARGUMENT", "BAD_REQUEST"},
		{"/v1beta/models/gemini-2.5-flash:predict", callerSecret, 404, "NOT_FOUND", "UNKNOWN_ROUTE"},
		{"/v1beta/cachedContents", callerSecret, 404, "NOT_FOUND", "UNKNOWN_ROUTE"},
		{generate + "?alt=proto", callerSecret, 400, "INVALID_ARGUMENT", "BAD_REQUEST"},
		{generate, "tg-unknown", 401, "UNAUTHENTICATED", "UNKNOWN_KEY"},
	} {
		status, p := call(c.path, "Authorization", "", "X-Goog-Api-Key", c.header)
		require.Equal(t, c.status, status, c.path)
		require.Equal(t, c.status, p.Error.Code, c.path)
		require.Equal(t, c.name, p.Error.Status, c.path)
		require.Equal(t, c.reason, p.Tollgate.Reason, c.path)
		require.NotEmpty(t, p.Error.Message)
	}
	_, _ = call(generate)
	status, p := call(generate)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Equal(t, "RESOURCE_EXHAUSTED", p.Error.Status)
	require.Equal(t, "RPM_LIMIT", p.Tollgate.Reason)
	require.Len(t, p.Error.Details, 2)
	require.Equal(t, "type.googleapis.com/google.rpc.QuotaFailure", p.Error.Details[0]["@type"])
	require.Equal(t, "type.googleapis.com/google.rpc.RetryInfo", p.Error.Details[1]["@type"])
	require.Regexp(t, `^[1-9][0-9]*s$`, p.Error.Details[1]["retryDelay"])

	list := w.send(http.MethodGet, "/v1beta/models?key="+callerSecret, "", "Authorization", "")
	require.Equal(t, http.StatusOK, list.StatusCode, list.body)
	require.Contains(t, list.body, `"name":"models/gemini-2.5-flash"`)
}
