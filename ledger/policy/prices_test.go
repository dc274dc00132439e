package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
)

// TestPricesSayWhatTheBookCan: every kind of price that a row of the book can hold.
func TestPricesSayWhatTheBookCan(t *testing.T) {
	t.Parallel()
	p, err := policy.Parse([]byte(`version: 1
providers:
  house: {protocol: openai, base_url: "https://llm.example/v1"}
models:
  large: {provider: house}
prices:
  - provider: house
    model: large
    from: 2026-03-01
    usd_per_million:
      input: {base: 3, steps: [{above: 200_000, price: 6}]}
      output: {base: 15, steps: [{above: 1_000, price: 12}, {above: 5_000, price: 10}], mode: marginal}
      cached_input: 0.3
      input_audio: 40
      output_image: 0.000000001
    unpriced: [input_video]
    daily:
      - {from: "16:30", until: "23:00:01", usd_per_million: {input: 1, output: 5}}
    usd_per_million_by_service_tier:
      batch: {input: {base: 1.5, steps: [{above: 200_000, price: 3}]}, output: 7.5}
      priority: {input: 6, output: 30}
    usd_per_thousand_calls: {web_search: 10, file_search: 2.5, code_interpreter: 30, request: 0.000001}
`), nil)
	require.NoError(t, err)
	const usd = ledger.Dollar
	want := price.Row{
		Provider: "house", Model: "large", From: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		Prices: price.Prices{
			ledger.ClassInput:       {Base: 3 * usd, Steps: []price.Step{{Above: 200_000, Price: 6 * usd}}},
			ledger.ClassOutput:      {Base: 15 * usd, Steps: []price.Step{{Above: 1000, Price: 12 * usd}, {Above: 5000, Price: 10 * usd}}, Marginal: true},
			ledger.ClassCachedInput: price.Flat(usd * 3 / 10), ledger.ClassInputAudio: price.Flat(40 * usd), ledger.ClassOutputImage: price.Flat(1),
		},
		Unpriced: []ledger.Class{ledger.ClassInputVideo},
		Daily: []price.Daily{{
			From: price.TimeOfDay(16*time.Hour + 30*time.Minute), Until: price.TimeOfDay(23*time.Hour + time.Second),
			Prices: price.Prices{ledger.ClassInput: price.Flat(usd), ledger.ClassOutput: price.Flat(5 * usd)},
		}},
		Service: map[ledger.ServiceTier]price.Prices{
			ledger.ServiceBatch: {
				ledger.ClassInput:  {Base: usd * 3 / 2, Steps: []price.Step{{Above: 200_000, Price: 3 * usd}}},
				ledger.ClassOutput: price.Flat(usd * 15 / 2),
			},
			ledger.ServicePriority: {ledger.ClassInput: price.Flat(6 * usd), ledger.ClassOutput: price.Flat(30 * usd)},
		},
		PerCall: map[price.Call]ledger.NanoUSD{
			price.CallWebSearch: 10_000 * usd, price.CallFileSearch: 2500 * usd, price.CallCodeInterpreter: 30_000 * usd, price.CallRequest: 1_000_000,
		},
	}
	require.Equal(t, want, p.Prices[0].Row)

	book, err := price.Default().With([]price.Row{p.Prices[0].Row})
	require.NoError(t, err)
	row, ok := book.Find("house", "large", want.From.Add(time.Hour))
	require.True(t, ok)
	usage := ledger.Usage{Input: 300_000, Output: 2000, Calls: ledger.Calls{WebSearch: 2}}
	cost, err := row.Cost(usage, ledger.ServiceStandard, want.From)
	require.NoError(t, err)
	require.Equal(t, 1_800_000_000+15_000_000+12_000_000+20_000_000+1, int(cost.Total)) // 0.3 M × 6, 1,000 × 15, 1,000 × 12, two searches, the request
	cost, err = row.Cost(usage, ledger.ServiceBatch, want.From)
	require.NoError(t, err)
	require.Equal(t, 900_000_000+15_000_000+20_000_000+1, int(cost.Total))
	cost, err = row.Cost(usage, ledger.ServiceStandard, want.From.Add(17*time.Hour))
	require.NoError(t, err)
	require.Equal(t, 300_000_000+10_000_000+20_000_000+1, int(cost.Total))
}
