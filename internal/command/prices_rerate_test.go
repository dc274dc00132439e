package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

// TestPricesRerate shows what was charged wrongly, by the policy's prices, and writes nothing without being told to, nor without a
// settler.
func TestPricesRerate(t *testing.T) {
	url := stack.Postgres(t)
	t.Setenv("DATABASE_URL", url)
	t.Setenv("NATS_URL", stack.NATS(t).ClientURL())
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`version: 1
providers:
  openai: {protocol: openai, base_url: "https://api.openai.com/v1"}
models:
  m: {provider: openai}
prices:
  - {provider: openai, model: m, from: 2026-11-02, usd_per_million: {input: 3, output: 15}}
`), 0o600))
	at := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	charged := func(cost ledger.NanoUSD, at time.Time) *event.Event {
		e := spent("demo", "alice", "/v1/chat/completions", cost, at)
		e.Outcome.PriceRow = "policy:openai/m@2026-11-02#000000000000"
		return e
	}
	right, low, early := charged(30_000, at), charged(10_000, at), charged(500, at.AddDate(0, 0, -2))
	post(t, url, right, low, early)
	run := func(want int, args ...string) string {
		t.Helper()
		var out strings.Builder
		code := Run(t.Context(), append([]string{"prices", "rerate", "--policy", path}, args...), &out, &out)
		require.Equal(t, want, code, out.String())
		return strings.Join(strings.Fields(out.String()), " ")
	}
	said := run(0)
	require.Contains(t, said, "openai m 1 0.000010000 0.000030000 +0.000020000 all 1 0.000010000 0.000030000 +0.000020000")
	require.Contains(t, said, low.Reservation.ID+" demo m 2026-11-03T10:00:00Z 0.000010000 0.000030000 policy:openai/m@2026-11-02#")
	require.NotContains(t, said, right.Reservation.ID)
	require.Contains(t, said, "openai m: 1 requests cannot be priced and keep the 0.000000500 usd that they were charged: the book has no row")
	require.Contains(t, said, "3 settled requests priced anew, 1 were charged another cost: nothing is written; --post corrects them")
	require.Contains(t, run(0, "--to", "2026-11-02"), "1 settled requests priced anew, 0 were")
	require.Contains(t, run(0, "--model", "x", "--to", "2026-11-09"), "0 settled requests match --model x --to 2026-11-09")
	require.NotContains(t, said, "match")
	require.Contains(t, run(1, "--from", "2026-11-02", "--to", "2026-11-02"), "--to must be after --from")
	require.Contains(t, run(1, "--from", "monday"), "--from: ")
	require.Contains(t, run(1, "--post"), "nothing is posted: no settler is running")
}

// The null device is a character device, and nobody answers there.
func TestNullDeviceIsNoTerminal(t *testing.T) {
	t.Parallel()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	require.False(t, isTerminal(null))
	require.False(t, isTerminal(strings.NewReader("yes\n")))
}
