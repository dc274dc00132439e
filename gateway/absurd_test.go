package gateway

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// One answer with senseless figures once shut a platform's budget for the rest of the month.
func TestAbsurdUsageIsNotCharged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		usage   string
		charged ledger.Tokens // 0: the estimate
	}{
		"contradicting and beyond measure": {`{"prompt_tokens":1000000000000,"completion_tokens":1000000000000,"total_tokens":7}`, 0},
		"contradicting within measure":     {`{"prompt_tokens":9,"completion_tokens":11,"total_tokens":21}`, 21},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, "", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"id":"1","model":"m","usage":`+c.usage+`}`)
			})
			require.Equal(t, http.StatusOK, w.chat("").StatusCode)
			o := w.outcome()
			require.Equal(t, ledger.UsageInconsistent, o.UsageState)
			if c.charged == 0 {
				require.Less(t, o.Usage.Total(), ledger.Tokens(100))
				return
			}
			require.Equal(t, c.charged, o.Usage.Total())
		})
	}
}
