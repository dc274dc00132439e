package gateway

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// finance.requests shows the time to the provider's first byte; it was 0 for every request.
func TestFirstByteIsRecorded(t *testing.T) {
	t.Parallel()
	w := start(t, "", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Millisecond) // the provider's latency
		plain(w, r)
	})
	require.Equal(t, http.StatusOK, w.chat("").StatusCode)
	o := w.outcome()
	require.GreaterOrEqual(t, o.FirstByteMS, int64(20))
	require.LessOrEqual(t, o.FirstByteMS, o.DurationMS)
}
