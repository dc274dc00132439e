package gateway

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// An answer that is little on its way and too large to be held whole reaches its caller complete, at the estimated price; as an
// error it does not, because it cannot be searched for the provider's key.
func TestInflatedAnswer(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err := io.WriteString(zip, `{"usage":{"prompt_tokens":1,"completion_tokens":1},"pad":"`+strings.Repeat("x", size)+`"}`)
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Encoding", "gzip")
		rw.Header().Set("Content-Type", "application/json")
		if text, _ := io.ReadAll(r.Body); bytes.Contains(text, []byte(`"fails"`)) {
			rw.WriteHeader(400)
		}
		_, _ = rw.Write(packed.Bytes())
	})
	a := w.chat("")
	require.Equal(t, 200, a.StatusCode)
	require.NoError(t, a.err)
	require.Greater(t, len(a.body), size)
	require.True(t, strings.HasSuffix(a.body, `x"}`))
	outcome := w.outcome()
	require.Equal(t, ledger.UsageEstimated, outcome.UsageState)
	require.Equal(t, ledger.ReasonOK, outcome.Finish)
	require.Equal(t, ledger.Tokens(10), outcome.Usage.Output)

	a = w.chat(`,"user":"fails"`)
	require.Equal(t, 502, a.StatusCode)
	require.Equal(t, "UPSTREAM_FAILED", w.problemOf(a).Tollgate.Reason)
}

// A large answer that breaks off behind its first piece breaks off for its caller, too.
func TestLargeAnswerBreaksOff(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", "100000000") // too large to be held
		_, _ = io.WriteString(rw, strings.Repeat(" ", 1<<20))
	})
	a := w.chat("")
	require.Error(t, a.err)
	require.Equal(t, ledger.UsageEstimated, w.outcome().UsageState)
}
