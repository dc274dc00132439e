package provider

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// A name of a megabyte made an event that no stream takes, and what the answer had used was never recorded.
func TestLongNamesOfAnAnswerAreCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", MaxName) // two bytes each
	usage := `"usage":{"prompt_tokens":8,"completion_tokens":5,"total_tokens":13}`
	check := func(t *testing.T, answer Answer) {
		t.Helper()
		want := strings.Repeat("é", MaxName/2)
		require.Equal(t, "a"+want[:len(want)-2], answer.Model, "a letter that the cut would halve is left out")
		require.Equal(t, want, answer.UpstreamID)
		require.Equal(t, ledger.UsageReported, answer.State)
		require.Equal(t, ledger.Tokens(13), answer.Usage.Total())
	}
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		body := fmt.Sprintf(`{"id":%q,"model":%q,%s}`, long, "a"+long, usage)
		got, answer, err := Chat.ReadAnswer(&http.Response{Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1})
		require.NoError(t, err)
		require.Equal(t, body, string(got.Text), "the caller has the whole answer")
		check(t, answer)
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		body := fmt.Sprintf("data: {\"id\":%q,\"model\":%q,\"choices\":[],%s}\n\ndata: [DONE]\n\n", long, "a"+long, usage)
		sink := httptest.NewRecorder()
		answer, err := Chat.RelayStream(sink, strings.NewReader(body), Passing{})
		require.NoError(t, err)
		require.Equal(t, body, sink.Body.String(), "the caller has the whole stream")
		check(t, answer)
	})
}
