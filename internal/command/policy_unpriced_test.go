package command

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/policy"
)

// A model without a price is told where a budget over all models counts money, and not elsewhere.
func TestUnpricedModels(t *testing.T) {
	t.Parallel()
	const text = `version: 1
providers:
  p: {protocol: openai, base_url: "http://127.0.0.1:1"}
models:
  ours: {provider: p, upstream_model: in-house}
  priced: {provider: p, upstream_model: tuned}
prices:
  - {provider: p, model: tuned, from: 2020-01-01, usd_per_million: {input: 1, output: 2}}
limits:
  - {name: day, tier: app, budget: `
	for budget, want := range map[string]int{"{usd: 5, per: day}}": 1, "{tokens: 5, per: day}}": 0, "{usd: 5, per: day}, shadow: true}": 0} {
		p, err := policy.Parse([]byte(text+budget+"\n"), nil)
		require.NoError(t, err)
		found, err := unpricedModels(p, time.Now())
		require.NoError(t, err)
		require.Len(t, found, want, budget)
		if want > 0 {
			require.Equal(t, "models.ours", found[0].Field)
			require.Equal(t, 5, found[0].Line)
			require.Contains(t, found[0].Message, "the budget day counts money")
		}
	}
}
