package price

import (
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

var noon = time.Date(2026, 8, 21, 12, 0, 0, 0, time.UTC)

// find gives a row of the built-in book.
func find(t *testing.T, provider, model string, at time.Time) *Row {
	t.Helper()
	row, ok := Default().Find(provider, model, at)
	require.True(t, ok, "%s/%s", provider, model)
	return row
}

func TestCostGolden(t *testing.T) {
	t.Parallel()
	day := func(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 12, 0, 0, 0, time.UTC) }
	for _, c := range []struct {
		name, provider, model string
		at                    time.Time
		usage                 ledger.Usage
		want                  string // dollars
	}{
		{"plain", "openai", "gpt-4o-mini", noon, ledger.Usage{Input: 1000, Output: 500}, "0.000450000"},
		{
			"cached input is not charged twice", "openai", "gpt-4o-mini", noon,
			ledger.Usage{Input: 24, CachedInput: 1000, Output: 10},
			"0.000084600",
		},
		{
			"reasoning at the output price", "openai", "o3-mini-2025-01-31", noon,
			ledger.Usage{Input: 13, Output: 385, Reasoning: 1856},
			"0.009874700",
		},
		{"embeddings have no output", "openai", "text-embedding-3-small", noon, ledger.Usage{Input: 8}, "0.000000160"},
		{"nothing used costs nothing", "openai", "gpt-4o", noon, ledger.Usage{}, "0.000000000"},
		{
			"cache write 5 min", "anthropic", "claude-sonnet-4-6", noon,
			ledger.Usage{Input: 4, CachedInput: 8845, CacheWrite5m: 6, Output: 193},
			"0.005583000",
		},
		{"cache write 1 h", "anthropic", "claude-sonnet-4-6", noon, ledger.Usage{CacheWrite1h: 1_000_000}, "6.000000000"},
		{
			"last token before the step", "anthropic", "claude-sonnet-4-5", noon,
			ledger.Usage{Input: 200_000, Output: 1000},
			"0.615000000",
		},
		{
			"one token more re-prices the whole request", "anthropic", "claude-sonnet-4-5", noon,
			ledger.Usage{Input: 200_001, Output: 1000},
			"1.222506000",
		},
		{
			"the step counts cached tokens", "anthropic", "claude-sonnet-4-5", noon,
			ledger.Usage{Input: 1, CachedInput: 199_000, CacheWrite5m: 1000, Output: 1000},
			"0.149406000",
		},
		{"before a price falls", "openai", "o3", day(2025, 6, 9), ledger.Usage{Input: 1000, Output: 1000}, "0.050000000"},
		{"after it fell", "openai", "o3", day(2025, 6, 10), ledger.Usage{Input: 1000, Output: 1000}, "0.010000000"},
		{"by day", "deepseek", "deepseek-chat", noon, ledger.Usage{Input: 1_000_000}, "0.270000000"},
		{"by night", "deepseek", "deepseek-chat", noon.Add(6 * time.Hour), ledger.Usage{Input: 1_000_000}, "0.135000000"},
		{
			"audio", "openai", "gpt-audio", noon,
			ledger.Usage{Input: 100, InputAudio: 100, Output: 10, OutputAudio: 100},
			"0.009950000",
		},
		{
			"image input at the input price", "google", "gemini-2.5-flash", noon,
			ledger.Usage{Input: 70, InputImage: 258, Output: 20, Reasoning: 77},
			"0.000340900",
		},
		{"image output", "google", "gemini-2.5-flash-image", noon, ledger.Usage{Input: 10, OutputImage: 1290}, "0.038703000"},
		{"images where one price covers the output", "openai", "gpt-image-1", noon, ledger.Usage{OutputImage: 1000}, "0.040000000"},
		{"fee for each request", "perplexity", "sonar", noon, ledger.Usage{Input: 1000, Output: 1000}, "0.014000000"},
		{"explicitly free", "openrouter", "qwen/qwen3-coder:free", noon, ledger.Usage{Input: 1000, CachedInput: 5, Output: 5}, "0.000000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			row := find(t, c.provider, c.model, c.at)
			cost, err := row.Cost(c.usage, "", c.at)
			require.NoError(t, err)
			require.Equal(t, c.want, cost.Total.String())
			require.Equal(t, row.ID, cost.RowID)
		})
	}
}

func TestCostRoundsHalfUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tokens ledger.Tokens
		price  ledger.NanoUSD
		want   ledger.NanoUSD
	}{
		{1, 499_999, 0},
		{1, 500_000, 1},
		{1, 1_499_999, 1},
		{1, 1_500_000, 2},
		{499_999, 1, 0},
		{500_000, 1, 1},
		{3, 500_000, 2},
		{1 << 53, 1_000_000, 1 << 53},
		{1<<53 + 1, 1_000_000, 1<<53 + 1},
		{1<<53 - 1, 500_000, 1 << 52},
		{math.MaxInt64, 1_000_000, math.MaxInt64},
		{math.MaxInt64, 1, 9_223_372_036_855},
		{1_000_000, math.MaxInt64, math.MaxInt64},
	} {
		row := &Row{Prices: Prices{ledger.ClassInput: Flat(c.price)}}
		cost, err := row.Cost(ledger.Usage{Input: c.tokens}, "", noon)
		require.NoError(t, err)
		require.Equal(t, c.want, cost.Total, "%d × %d", c.tokens, c.price)
	}
}

func TestCostOverflow(t *testing.T) {
	t.Parallel()
	dear := &Row{Prices: Prices{ledger.ClassInput: Flat(1_000_001), ledger.ClassOutput: Flat(1_000_000)}}
	cheap := &Row{Prices: Prices{ledger.ClassInput: Flat(1)}}
	for name, c := range map[string]struct {
		row   *Row
		usage ledger.Usage
	}{
		"one component":         {dear, ledger.Usage{Input: math.MaxInt64}},
		"sum of components":     {dear, ledger.Usage{Input: math.MaxInt64 / 2, Output: math.MaxInt64/2 + 2}},
		"past 64 bits":          {&Row{Prices: Prices{ledger.ClassInput: Flat(math.MaxInt64)}}, ledger.Usage{Input: math.MaxInt64}},
		"sum of input tokens":   {cheap, ledger.Usage{Input: math.MaxInt64, CachedInput: 1}},
		"half up past the edge": {&Row{Prices: Prices{ledger.ClassInput: Flat(1_500_000)}}, ledger.Usage{Input: math.MaxInt64/3*2 + 1}},
	} {
		_, err := c.row.Cost(c.usage, "", noon)
		require.ErrorIs(t, err, ErrOverflow, name)
	}
	_, err := dear.UpperBound(Ask{Input: math.MaxInt64}, noon)
	require.ErrorIs(t, err, ErrOverflow)
	_, err = dear.UpperBound(Ask{Input: math.MaxInt64 / 2, Output: math.MaxInt64/2 + 2}, noon)
	require.ErrorIs(t, err, ErrOverflow)
}

func TestMissingPriceIsNeverFree(t *testing.T) {
	t.Parallel()
	inputOnly := &Row{ID: "r", Prices: Prices{ledger.ClassInput: Flat(1)}}
	writes := &Row{ID: "r", Prices: Prices{ledger.ClassInput: Flat(1), ledger.ClassCacheWrite5m: Flat(2)}}
	refused := &Row{ID: "r", Prices: Prices{ledger.ClassInput: Flat(1)}, Unpriced: []ledger.Class{ledger.ClassCacheWrite5m}}
	for name, c := range map[string]struct {
		row   *Row
		usage ledger.Usage
		class ledger.Class // empty: has a price
	}{
		"output":                            {inputOnly, ledger.Usage{Output: 1}, ledger.ClassOutput},
		"reasoning without output":          {inputOnly, ledger.Usage{Reasoning: 1}, ledger.ClassReasoning},
		"input audio":                       {inputOnly, ledger.Usage{Input: 9, InputAudio: 1}, ledger.ClassInputAudio},
		"output audio":                      {inputOnly, ledger.Usage{OutputAudio: 1}, ledger.ClassOutputAudio},
		"output image":                      {inputOnly, ledger.Usage{OutputImage: 1}, ledger.ClassOutputImage},
		"no tokens need no price":           {inputOnly, ledger.Usage{Input: 1}, ""},
		"cached input falls to input":       {inputOnly, ledger.Usage{CachedInput: 1}, ""},
		"image falls to input":              {inputOnly, ledger.Usage{InputImage: 1}, ""},
		"writes fall to input":              {inputOnly, ledger.Usage{CacheWrite5m: 1, CacheWrite1h: 1}, ""},
		"hour not at the price of minutes":  {writes, ledger.Usage{CacheWrite1h: 1}, ledger.ClassCacheWrite1h},
		"refused figure does not fall back": {refused, ledger.Usage{CacheWrite5m: 1}, ledger.ClassCacheWrite5m},
		"nor does its hour":                 {refused, ledger.Usage{CacheWrite1h: 1}, ledger.ClassCacheWrite1h},
	} {
		cost, err := c.row.Cost(c.usage, "", noon)
		if c.class == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, ErrMissingPrice, name)
		require.ErrorContains(t, err, string(c.class), name)
		require.ErrorContains(t, err, "row r", name)
		require.Zero(t, cost, name)
	}
	_, err := inputOnly.UpperBound(Ask{Input: 1, Output: 1}, noon)
	require.ErrorIs(t, err, ErrMissingPrice)
	_, err = inputOnly.UpperBound(Ask{Input: 1, Also: []ledger.Class{ledger.ClassInputAudio}}, noon)
	require.ErrorIs(t, err, ErrMissingPrice)
	most, err := inputOnly.UpperBound(Ask{Input: 1_000_000}, noon)
	require.NoError(t, err)
	require.Equal(t, ledger.NanoUSD(1), most-1, "one nano-dollar, and at most one more for the rounding of three parts")
}

func TestNegativeUsageIsRefused(t *testing.T) {
	t.Parallel()
	row := find(t, "openai", "gpt-4o", noon)
	_, err := row.Cost(ledger.Usage{Input: 10, CachedInput: -1}, "", noon)
	require.ErrorIs(t, err, ErrNegativeUsage)
	_, err = row.UpperBound(Ask{Input: -1}, noon)
	require.ErrorIs(t, err, ErrNegativeUsage)
}

func TestUpperBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, provider, model string
		input, output         ledger.Tokens
		also                  []ledger.Class
		want                  string
	}{
		{"exact where nothing is rounded", "openai", "gpt-4o-mini", 1000, 500, nil, "0.000450000"},
		{"cache writes are dearer than input", "anthropic", "claude-sonnet-4-6", 1000, 0, nil, "0.003750000"},
		{"an hour only when asked for", "anthropic", "claude-sonnet-4-6", 1000, 0, []ledger.Class{ledger.ClassCacheWrite1h}, "0.006000000"},
		{"below the step", "google", "gemini-2.5-pro", 200_000, 1000, nil, "0.260000000"},
		{"above the step", "google", "gemini-2.5-pro", 200_001, 1000, nil, "0.515002500"},
		{"audio when asked for", "openai", "gpt-audio", 100, 100, []ledger.Class{ledger.ClassInputAudio, ledger.ClassOutputAudio}, "0.009600000"},
		{"reasoning cheaper than output", "perplexity", "sonar-deep-research", 0, 1000, nil, "0.008000000"},
		{"fee", "perplexity", "sonar", 0, 0, nil, "0.012000000"},
		{"nothing", "openai", "gpt-4o", 0, 0, nil, "0.000000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			most, err := find(t, c.provider, c.model, noon).UpperBound(Ask{Input: c.input, Output: c.output, Also: c.also}, noon)
			require.NoError(t, err)
			require.Equal(t, c.want, most.String())
		})
	}
}

// drawPrices makes prices from zero nano-dollars per million up, with steps that ascend or descend, of which some are marginal.
func drawPrices(t *rapid.T, ascending bool) Prices {
	amount := rapid.Int64Range(0, 200_000_000_000)
	prices := Prices{}
	for _, c := range (ledger.Usage{}).Classes() {
		needed := c.Class == ledger.ClassInput || c.Class == ledger.ClassOutput
		if !needed && !rapid.Bool().Draw(t, "lists "+string(c.Class)) {
			continue
		}
		p := Flat(ledger.NanoUSD(amount.Draw(t, "base")))
		if rapid.Bool().Draw(t, "stepped") {
			next := ledger.NanoUSD(amount.Draw(t, "next"))
			if ascending {
				next = max(next, p.Base)
			}
			p.Steps = []Step{{Above: ledger.Tokens(rapid.Int64Range(1, 3000).Draw(t, "above")), Price: next}}
			p.Marginal = rapid.Bool().Draw(t, "marginal")
		}
		prices[c.Class] = p
	}
	return prices
}

// tiers are the tiers that a row is drawn with.
var tiers = []ledger.ServiceTier{ledger.ServiceBatch, ledger.ServiceFlex, ledger.ServicePriority}

// drawRow makes a row with a price for every class that textUsage draws, in every tier, and for every call.
func drawRow(t *rapid.T, ascending bool) *Row {
	amount := rapid.Int64Range(0, 200_000_000_000)
	row := &Row{ID: "drawn", Prices: drawPrices(t, ascending), PerCall: map[Call]ledger.NanoUSD{}, Service: map[ledger.ServiceTier]Prices{}}
	for _, tier := range tiers {
		prices := drawPrices(t, ascending)
		for class := range row.Prices {
			if _, ok := prices[class]; !ok {
				prices[class] = Flat(ledger.NanoUSD(amount.Draw(t, "of the tier")))
			}
		}
		if tier == ledger.ServicePriority || rapid.Bool().Draw(t, "tier") {
			row.Service[tier] = prices
		}
	}
	for _, call := range Calls {
		if call != CallRequest || rapid.Bool().Draw(t, "fee") {
			row.PerCall[call] = ledger.NanoUSD(amount.Draw(t, string(call)))
		}
	}
	return row
}

func drawTier(t *rapid.T) ledger.ServiceTier {
	return rapid.SampledFrom(append([]ledger.ServiceTier{ledger.ServiceStandard}, tiers...)).Draw(t, "tier")
}

func drawTokens(t *rapid.T, label string) ledger.Tokens {
	return ledger.Tokens(rapid.Int64Range(0, 2000).Draw(t, label))
}

// textUsage draws the classes that a plain request can incur.
func textUsage(t *rapid.T) ledger.Usage {
	return ledger.Usage{
		Input: drawTokens(t, "input"), CachedInput: drawTokens(t, "cached"), CacheWrite5m: drawTokens(t, "write"),
		Output: drawTokens(t, "output"), Reasoning: drawTokens(t, "reasoning"), Calls: drawCalls(t, 5),
	}
}

func drawCalls(t *rapid.T, most int64) ledger.Calls {
	n := rapid.Int64Range(0, most)
	return ledger.Calls{WebSearch: n.Draw(t, "web"), FileSearch: n.Draw(t, "file"), CodeInterpreter: n.Draw(t, "code")}
}

func TestCostProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		row, u, tier := drawRow(t, true), textUsage(t), drawTier(t)
		cost, err := row.Cost(u, tier, noon)
		require.NoError(t, err)

		var total ledger.NanoUSD
		var tokens ledger.Tokens
		calls := int64(0)
		for _, c := range cost.Components {
			require.GreaterOrEqual(t, c.Cost, ledger.NanoUSD(0))
			total += c.Cost
			exact := new(big.Int).Mul(big.NewInt(int64(c.Tokens)), big.NewInt(int64(c.Price)))
			exact.Add(exact, big.NewInt(500_000)).Div(exact, big.NewInt(1_000_000))
			require.Equal(t, exact.Int64(), int64(c.Cost), "rounded half-up once")
			switch {
			case c.Class == ClassRequest:
			case slices.Contains(Calls, Call(c.Class)):
				calls += int64(c.Tokens)
			default:
				tokens += c.Tokens
			}
		}
		require.Equal(t, cost.Total, total, "components sum to the total")
		require.Equal(t, u.Total(), tokens, "and count every token once")
		require.Equal(t, u.Calls.WebSearch+u.Calls.FileSearch+u.Calls.CodeInterpreter, calls, "and every call")

		more := u
		more.Input += drawTokens(t, "more input")
		more.Reasoning += drawTokens(t, "more reasoning")
		more.Calls.WebSearch++
		dearer, err := row.Cost(more, tier, noon)
		require.NoError(t, err)
		require.GreaterOrEqual(t, dearer.Total, cost.Total, "more tokens never cost less")
	})
}

func TestUpperBoundHoldsForAnySplit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		row, u, tier := drawRow(t, false), textUsage(t), drawTier(t)
		ask := Ask{Input: u.InputTotal(), Output: u.OutputTotal(), Calls: u.Calls, Tier: tier}
		most, err := row.UpperBound(ask, noon)
		require.NoError(t, err)
		for _, served := range []ledger.ServiceTier{tier, ledger.ServiceStandard} {
			cost, err := row.Cost(u, served, noon)
			require.NoError(t, err)
			require.LessOrEqual(t, cost.Total, most, "served in tier %q", served)
		}
		ask.Input += drawTokens(t, "unused")
		ask.Calls.FileSearch++
		spare, err := row.UpperBound(ask, noon)
		require.NoError(t, err)
		require.LessOrEqual(t, most, spare, "nor when less is used than was asked for")
	})
}

// TestMarginalSteps prices a class at its own steps, each part at its price, whatever else the request holds.
func TestMarginalSteps(t *testing.T) {
	t.Parallel()
	row := &Row{ID: "m", Prices: Prices{
		ledger.ClassInput:  {Base: 3_000_000, Steps: []Step{{100, 2_000_000}, {200, 1_000_000}}, Marginal: true},
		ledger.ClassOutput: Flat(1_000_000),
	}}
	for tokens, want := range map[ledger.Tokens]ledger.NanoUSD{1: 3, 100: 300, 101: 302, 200: 500, 201: 501, 300: 600} {
		cost, err := row.Cost(ledger.Usage{Input: tokens, CachedInput: 0, Output: 7}, "", noon)
		require.NoError(t, err)
		require.Equal(t, want+7, cost.Total, "%d tokens", tokens)
	}
	text, err := row.Prices[ledger.ClassInput].MarshalJSON()
	require.NoError(t, err)
	require.JSONEq(t, `{"base":"0.003","steps":[{"above":100,"price":"0.002"},{"above":200,"price":"0.001"}],"mode":"marginal"}`, string(text))
}

// TestServiceTiers holds the tiers of the built-in book, and that a dearer tier without a price is never the usual price.
func TestServiceTiers(t *testing.T) {
	t.Parallel()
	u := ledger.Usage{Input: 1_000_000, CachedInput: 1_000_000, Output: 1_000_000}
	for _, c := range []struct {
		provider, model string
		tier            ledger.ServiceTier
		want            string // "": missing
	}{
		{"openai", "gpt-4.1", "", "10.500000000"},
		{"openai", "gpt-4.1", "flex", "5.250000000"},
		{"openai", "gpt-4.1", "batch", "5.250000000"},
		{"openai", "gpt-4.1", "priority", "18.375000000"},
		{"openai", "gpt-5-nano", "priority", ""},
		{"anthropic", "claude-sonnet-4-5", "priority", "29.100000000"}, // what was bought beforehand is told by the bill
		{"anthropic", "claude-haiku-4-5", "batch", "3.050000000"},
		{"groq", "llama-3.3-70b-versatile", "flex", "1.970000000"}, // not listed: never dearer than the usual price
	} {
		row := find(t, c.provider, c.model, noon)
		cost, err := row.Cost(u, c.tier, noon)
		bound, boundErr := row.UpperBound(Ask{Input: 2_000_000, Output: 1_000_000, Tier: c.tier}, noon)
		if c.want == "" {
			require.ErrorIs(t, err, ErrMissingPrice)
			require.ErrorIs(t, boundErr, ErrMissingPrice)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, boundErr)
		require.Equal(t, c.want, cost.Total.String(), "%s %s %s", c.provider, c.model, c.tier)
		require.GreaterOrEqual(t, bound, cost.Total)
		usual, err := row.UpperBound(Ask{Input: 2_000_000, Output: 1_000_000}, noon)
		require.NoError(t, err)
		require.GreaterOrEqual(t, bound, usual, "a cheaper tier may be answered in the usual one")
	}
}

// TestCallsAreCharged bills tools by the call, holds them, and never gives one away whose price is missing.
func TestCallsAreCharged(t *testing.T) {
	t.Parallel()
	calls := ledger.Calls{WebSearch: 3}
	row := find(t, "anthropic", "claude-sonnet-4-6", noon)
	cost, err := row.Cost(ledger.Usage{Input: 100, Calls: calls}, "", noon)
	require.NoError(t, err)
	require.Equal(t, "0.030300000", cost.Total.String())
	require.Equal(t, Component{ledger.ClassWebSearch, 3, 10_000 * ledger.Dollar, 3 * ledger.Dollar / 100}, cost.Components[1])
	bound, err := row.UpperBound(Ask{Input: 100, Calls: calls}, noon)
	require.NoError(t, err)
	require.GreaterOrEqual(t, bound, cost.Total)

	unlisted := find(t, "groq", "llama-3.3-70b-versatile", noon)
	_, err = unlisted.Cost(ledger.Usage{Calls: calls}, "", noon)
	require.ErrorIs(t, err, ErrMissingPrice)
	_, err = unlisted.UpperBound(Ask{Calls: calls}, noon)
	require.ErrorIs(t, err, ErrMissingPrice)
}

func TestUpperBoundHoldsForEveryBuiltinRow(t *testing.T) {
	t.Parallel()
	for _, row := range Default().Rows() {
		if !row.priced() {
			continue
		}
		for _, scale := range []ledger.Tokens{1, 7, 100_001, 300_001} {
			u := ledger.Usage{Input: scale, CachedInput: scale}
			if _, ok := row.Price(ledger.ClassCacheWrite5m, 0, noon); ok {
				u.CacheWrite5m = scale
			}
			if _, ok := row.Price(ledger.ClassOutput, 0, noon); ok {
				u.Output, u.Reasoning = scale, scale
			}
			cost, err := row.Cost(u, "", noon)
			require.NoError(t, err)
			most, err := row.UpperBound(Ask{Input: u.InputTotal(), Output: u.OutputTotal()}, noon)
			require.NoError(t, err)
			require.LessOrEqual(t, cost.Total, most, row.ID)
		}
	}
}

func BenchmarkCost(b *testing.B) {
	row, ok := Default().Find("openai", "gpt-4o-mini", noon)
	require.True(b, ok)
	u := ledger.Usage{Input: 1000, CachedInput: 200, Output: 300}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := row.Cost(u, "", noon); err != nil {
			b.Fatal(err)
		}
	}
}
