package gateway

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// A budget of a million dollars and more has too many nano-dollars for an integer of a structured field.
func TestLimitsBeyondFifteenDigits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rich := state(ledger.TierApp, "rich", &policy.Budget{Unit: ledger.UnitUSD}, nil, 1, true, 0, now.Add(time.Minute))
	rich.Applied.Value = 5_000_000_000_000_000
	header := http.Header{}
	writeLimits(header, &openAI, []admission.LimitState{rich}, ledger.Amounts{}, now)
	require.Equal(t, []string{`"rich";q=999999999999999;qu="tollgate-nanousd"`}, header["Ratelimit-Policy"])
	require.Equal(t, []string{`"rich";r=999999999999999;t=60`}, header["Ratelimit"])
}
