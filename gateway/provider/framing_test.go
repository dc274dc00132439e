package provider

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// The same events in every way that server-sent events may be written are metered the same, and pass as they came.
func TestFramings(t *testing.T) {
	t.Parallel()
	streams := map[string]struct {
		endpoint Endpoint
		text     string
	}{
		"chat":      {Chat, chunk("häl") + chunk("lo 🙂") + finishChunk + usageChunk + doneChunk},
		"messages":  {Messages, message()},
		"responses": {Responses, responseStream("completed", responseUsage)},
		"gemini":    {StreamGenerate, strings.ReplaceAll(geminiSSE(geminiChunk1, geminiChunk2), "\r\n", "\n")},
	}
	framings := map[string]func(string) string{
		"as it is":          func(s string) string { return s },
		"CRLF":              func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"a byte order mark": func(s string) string { return "\xef\xbb\xbf" + s },
		"no blank":          func(s string) string { return strings.ReplaceAll(s, "data: ", "data:") },
		"comments": func(s string) string {
			return ": OPENROUTER PROCESSING\n\n" + strings.ReplaceAll(s, "\n\n", "\n\n: keep-alive\n\n:\n\n")
		},
		"a comment inside": func(s string) string { return strings.ReplaceAll(s, "data: ", ": x\ndata: ") },
		"other fields":     func(s string) string { return "retry: 10\n" + strings.ReplaceAll(s, "data: ", "id: 7\ndata: ") },
		"several lines":    func(s string) string { return strings.ReplaceAll(s, `,"`, ",\ndata: \"") },
		"lines with CRLF": func(s string) string {
			return strings.ReplaceAll(strings.ReplaceAll(s, `,"`, ",\ndata: \""), "\n", "\r\n")
		},
		"without the last blank line": func(s string) string { return strings.TrimRight(s, "\n") },
	}
	for name, stream := range streams {
		want, err := stream.endpoint.RelayStream(&sink{}, strings.NewReader(stream.text), Passing{})
		require.NoError(t, err, name)
		require.Equal(t, ledger.UsageReported, want.State, name)
		for framing, rewrite := range framings {
			text := rewrite(stream.text)
			for how, body := range map[string]io.Reader{"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
				s := &sink{}
				got, err := stream.endpoint.RelayStream(s, body, Passing{})
				require.NoError(t, err, "%s, %s, %s", name, framing, how)
				require.Equal(t, text, s.String(), "%s, %s, %s", name, framing, how)
				if framing == "several lines" || framing == "lines with CRLF" {
					got.Output = want.Output // an estimate
				}
				require.Equal(t, want, got, "%s, %s, %s", name, framing, how)
			}
		}
	}
	body := "\xef\xbb\xbf" + `{"model":"m","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":34}}`
	require.Equal(t, used, answerOf(t, Chat, body).Reading)
}

// Azure's first event is about filters and names no model.
func TestModelOfALaterEvent(t *testing.T) {
	t.Parallel()
	filter := `data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0}]}` + "\n\n"
	_, answer := relay(t, filter+chunk("a")+finishChunk+usageChunk+doneChunk, true)
	require.Equal(t, []string{"m-1", "c-1"}, []string{answer.Model, answer.UpstreamID})
	require.Equal(t, used, answer.Reading)
}
