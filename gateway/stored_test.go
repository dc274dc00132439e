package gateway

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/keys"
)

const storedBody = `{"id":"resp_7","model":"gpt-4o-mini-2024-07-18","status":"completed","output":[],"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":2},"output_tokens":5,"total_tokens":17}}`

// responses is a provider that stores what it answers.
func responses(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Query().Get("stream") == "true":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"type\":\"response.completed\",\"response\":"+storedBody+"}\n\n")
	case r.Method == http.MethodPost && r.URL.Path == "/v1/responses":
		_, _ = io.WriteString(w, storedBody)
	default:
		_, _ = fmt.Fprintf(w, `{"asked":%q}`, r.Method+" "+r.URL.String())
	}
}

// BerriAI/litellm #17814: reading what is stored bills nothing; and only the app that made it may.
func TestStoredResponses(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, responses)
	const other = "tg-other-secret"
	w.key(other, keys.Record{KeyID: "k_2", App: "other"})
	ask := `{"model":"gpt-4o-mini","input":"hi"}`
	require.Equal(t, storedBody, w.send(http.MethodPost, "/v1/responses", ask).body)
	w.events(2)
	for _, c := range []struct{ method, path, want string }{
		{http.MethodGet, "/v1/responses/resp_7?include[]=file_search_call.results", `{"asked":"GET /v1/responses/resp_7?include[]=file_search_call.results"}`},
		{http.MethodGet, "/v1/responses/resp_7/input_items?limit=2", `{"asked":"GET /v1/responses/resp_7/input_items?limit=2"}`},
		{http.MethodGet, "/v1/responses/resp_7?stream=true", "data: {\"type\":\"response.completed\",\"response\":" + storedBody + "}\n\n"},
		{http.MethodPost, "/v1/responses/resp_7/cancel", `{"asked":"POST /v1/responses/resp_7/cancel"}`},
		{http.MethodDelete, "/v1/responses/resp_7", `{"asked":"DELETE /v1/responses/resp_7"}`},
	} {
		a := w.send(c.method, c.path, "")
		require.Equal(t, http.StatusOK, a.StatusCode, c.path)
		require.Equal(t, c.want, a.body)
		a = w.send(c.method, c.path, "", "Authorization", "Bearer "+other)
		require.Equal(t, http.StatusNotFound, a.StatusCode, c.path)
		require.Equal(t, "UNKNOWN_OBJECT", w.problemOf(a).Tollgate.Reason)
		require.Equal(t, http.StatusNotFound, w.send(c.method, strings.Replace(c.path, "resp_7", "resp_8", 1), "").StatusCode)
	}
	going := strings.Replace(ask, `"input"`, `"previous_response_id":"resp_7","input"`, 1)
	for _, path := range []string{"/v1/responses", "/v1/responses/input_tokens"} {
		require.Equal(t, http.StatusNotFound, w.send(http.MethodPost, path, going, "Authorization", "Bearer "+other).StatusCode, path)
	}
	w.events(2)
	require.Equal(t, http.StatusOK, w.send(http.MethodPost, "/v1/responses", going).StatusCode)
	for _, e := range w.events(4)[event.KindUsed] {
		require.Equal(t, ledger.Usage{Input: 10, CachedInput: 2, Output: 5}, e.Outcome.Usage)
	}
}

// An answer that comes compressed though nothing was asked for is read, and reaches the caller as it would have been.
func TestCompressedAnswers(t *testing.T) {
	t.Parallel()
	stream := "data: {\"choices\":[{\"delta\":{\"content\":\"Hello.\"}}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5,\"total_tokens\":17}}\n\ndata: [DONE]\n\n"
	w := start(t, roomy, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		text, kind := plainAnswer, "application/json"
		if strings.Contains(string(body), `"stream":true`) {
			text, kind = stream, "text/event-stream"
		}
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	})
	a := w.chat("")
	require.Equal(t, plainAnswer, a.body)
	require.Empty(t, a.Header.Get("Content-Encoding"))
	require.Equal(t, strings.Replace(stream, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5,\"total_tokens\":17}}\n\n", "", 1), w.chat(`,"stream":true`).body)
	for _, e := range w.events(4)[event.KindUsed] {
		require.Equal(t, ledger.Usage{Input: 12, Output: 5}, e.Outcome.Usage)
		require.Equal(t, ledger.UsageReported, e.Outcome.UsageState)
	}
}
