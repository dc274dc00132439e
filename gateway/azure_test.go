package gateway

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/ledger/event"
)

// The addresses of Azure's SDKs reach the routes that they mean; the deployment is the model, whatever the body says.
func TestAzureAddresses(t *testing.T) {
	t.Parallel()
	var path, model atomic.Value
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		path.Store(r.URL.String())
		model.Store(gjson.GetBytes(text, "model").Str)
		require.Equal(t, "Bearer "+upstreamSecret, r.Header.Get("Authorization"))
		require.Empty(t, r.Header.Get("Api-Key"))
		plain(rw, r)
	})
	const dated = "?api-version=2024-10-21"
	for _, c := range []struct{ path, body, reached, model string }{
		{"/openai/deployments/gpt-4o-mini/chat/completions" + dated, `{"messages":[]}`, chatPath, "gpt-4o-mini"},
		{"/openai/deployments/fast/chat/completions" + dated, `{"messages":[]}`, chatPath, "gpt-4o-mini"},
		{"/openai/deployments/fast/chat/completions" + dated, `{"model":"other","messages":[]}`, chatPath, "gpt-4o-mini"},
		{"/openai/deployments/text-embedding-3-small/embeddings" + dated, `{"input":"x"}`, "/v1/embeddings", "text-embedding-3-small"},
		{"/openai/responses" + dated, `{"model":"fast","input":"x"}`, "/v1/responses", "gpt-4o-mini"},
		{"/openai/v1/responses", `{"model":"fast","input":"x"}`, "/v1/responses", "gpt-4o-mini"},
		{"/openai/v1/chat/completions?api-version=preview", `{"model":"fast","messages":[]}`, chatPath, "gpt-4o-mini"},
	} {
		a := w.send(http.MethodPost, c.path, c.body, "Authorization", "", "Api-Key", callerSecret)
		require.Equal(t, 200, a.StatusCode, "%s: %s", c.path, a.body)
		require.Equal(t, c.reached, path.Load(), c.path)
		require.Equal(t, c.model, model.Load(), c.path)
	}
	require.Equal(t, chatPath, w.events(14)[event.KindReserved][0].Reservation.Endpoint)
	a := w.send(http.MethodPost, "/openai/deployments/nobody/chat/completions"+dated, `{"model":"fast","messages":[]}`, "Authorization", "", "Api-Key", callerSecret)
	require.Equal(t, "UNKNOWN_MODEL", w.problemOf(a).Tollgate.Reason)
	for _, path := range []string{"/openai/deployments/fast/extensions/chat/completions", "/openai/deployments/fast", "/openai/"} {
		require.Equal(t, 404, w.send(http.MethodPost, path, `{}`).StatusCode, path)
	}
	require.Contains(t, w.send(http.MethodGet, "/openai/models"+dated, "").body, "gpt-4o-mini")
}

// A file goes to the deployment too, in a form that names no model.
func TestAzureForm(t *testing.T) {
	t.Parallel()
	var model atomic.Value
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		model.Store(r.FormValue("model"))
		plain(rw, r)
	})
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "a.wav")
	require.NoError(t, err)
	_, err = part.Write(make([]byte, 1000))
	require.NoError(t, err)
	require.NoError(t, form.Close())
	a := w.send(http.MethodPost, "/openai/deployments/gpt-4o-transcribe/audio/transcriptions?api-version=2025-03-01-preview", body.String(),
		"Content-Type", form.FormDataContentType())
	require.Equal(t, 200, a.StatusCode, a.body)
	require.Equal(t, "gpt-4o-transcribe", model.Load())
	w.events(2)
}
