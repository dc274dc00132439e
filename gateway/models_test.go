package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestModels(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	a := w.send("GET", "/v1/models", "")
	require.Equal(t, 200, a.StatusCode)
	require.JSONEq(t, `{"object":"list","data":[
		{"id":"calm","object":"model","created":0,"owned_by":"calm"},
		{"id":"claude","object":"model","created":0,"owned_by":"anthropic"},{"id":"fast","object":"model","created":0,"owned_by":"openai"},
		{"id":"gemini-2.5-flash","object":"model","created":0,"owned_by":"google"},
		{"id":"gpt-4o-mini","object":"model","created":0,"owned_by":"openai"},{"id":"gpt-4o-transcribe","object":"model","created":0,"owned_by":"openai"},
		{"id":"many","object":"model","created":0,"owned_by":"many"},
		{"id":"omni-moderation-latest","object":"model","created":0,"owned_by":"openai"},{"id":"patient","object":"model","created":0,"owned_by":"patient"},
		{"id":"quick","object":"model","created":0,"owned_by":"google"},{"id":"steady","object":"model","created":0,"owned_by":"steady"},
		{"id":"text-embedding-3-small","object":"model","created":0,"owned_by":"openai"},
		{"id":"twin","object":"model","created":0,"owned_by":"many"},{"id":"unpriced","object":"model","created":0,"owned_by":"openai"}
	]}`, a.body)
	require.Equal(t, `{"id":"fast","object":"model","created":0,"owned_by":"openai"}`+"\n", w.send("GET", "/v1/models/fast", "").body)
	head := w.send("HEAD", "/v1/models", "")
	require.NoError(t, head.err)
	require.Empty(t, head.body)

	version := []string{"Anthropic-Version", "2023-06-01"}
	a = w.send("GET", "/v1/models", "", version...)
	require.Equal(t, 200, a.StatusCode)
	require.Contains(t, a.body, `{"type":"model","id":"claude","display_name":"claude","created_at":"1970-01-01T00:00:00Z"}`)
	require.Contains(t, a.body, `"has_more":false,"first_id":"calm","last_id":"unpriced"`)
	require.JSONEq(t, `{"type":"model","id":"steady","display_name":"steady","created_at":"1970-01-01T00:00:00Z"}`,
		w.send("GET", "/v1/models/steady", "", version...).body)
	w.events(0)
}
