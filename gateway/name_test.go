package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/gateway/provider"
	"tollgate/ledger"
)

// TestLongNamesAreRefused: a name of a megabyte fits into no event, and belongs into no log line.
func TestLongNamesAreRefused(t *testing.T) {
	t.Parallel()
	w := start(t, "", plain)
	fits, long := strings.Repeat("n", provider.MaxName), strings.Repeat("n", provider.MaxName+1)
	require.Equal(t, http.StatusOK, w.chat(`,"user":"`+fits+`"`).StatusCode)
	require.Equal(t, http.StatusOK, w.chat("", "X-Tollgate-User", fits).StatusCode)
	for param, a := range map[string]answer{
		"user":            w.chat(`,"user":"` + long + `"`),
		"model":           w.send(http.MethodPost, chatPath, `{"model": "`+long+`", "messages": []}`),
		"X-Tollgate-User": w.chat("", "X-Tollgate-User", long),
	} {
		require.Equal(t, http.StatusBadRequest, a.StatusCode, param)
		p := w.problemOf(a)
		require.Equal(t, ledger.ReasonBadRequest, ledger.Reason(p.Tollgate.Reason), param)
		require.NotContains(t, a.body, long, param)
	}
	require.NotContains(t, w.logs.String(), long)
}
