package gateway

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// What is no text is metered by what it tells, a form reaches the provider as it was, and what is free needs no price.
func TestMedia(t *testing.T) {
	t.Parallel()
	sent := make(chan string, 4)
	w := start(t, "  - {name: money, tier: app, budget: {usd: 100, per: day}}\n", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent <- r.Header.Get("Content-Type") + "\n" + string(body)
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/moderations" {
			_, _ = io.WriteString(w, `{"id":"modr-1","results":[{"flagged":false}]}`)
			return
		}
		_, _ = io.WriteString(w, `{"text":"Hi.","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":4,"audio_tokens":10},"output_tokens":45,"total_tokens":59}}`)
	})
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	file, err := parts.CreateFormFile("file", "a.mp3")
	require.NoError(t, err)
	_, err = io.WriteString(file, strings.Repeat("\x00\xff", 100_000))
	require.NoError(t, err)
	require.NoError(t, parts.WriteField("model", "gpt-4o-transcribe"))
	require.NoError(t, parts.Close())
	a := w.send(http.MethodPost, "/v1/audio/transcriptions", form.String(), "Content-Type", parts.FormDataContentType())
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	require.Equal(t, parts.FormDataContentType()+"\n"+form.String(), <-sent)
	used := w.events(2)[event.KindUsed][0].Outcome
	require.Equal(t, ledger.Usage{Input: 4, InputAudio: 10, Output: 45}, used.Usage)
	require.Positive(t, used.Cost)

	a = w.send(http.MethodPost, "/v1/moderations", `{"model":"omni-moderation-latest","input":"hi"}`)
	require.Equal(t, http.StatusOK, a.StatusCode, a.body)
	used = w.events(4)[event.KindUsed][1].Outcome
	require.Equal(t, ledger.UsageReportedZero, used.UsageState)
	require.Zero(t, used.Cost)

	a = w.send(http.MethodPost, "/v1/images/generations", `{"model":"unpriced","prompt":"hi"}`)
	require.Equal(t, http.StatusForbidden, a.StatusCode)
	require.Equal(t, "UNPRICED_MODEL", w.problemOf(a).Tollgate.Reason)
}
