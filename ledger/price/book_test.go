package price

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

func date(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }

// priced is a row with an input price that tells it apart.
func priced(provider, model string, input ledger.NanoUSD) Row {
	return Row{Provider: provider, Model: model, Prices: Prices{ledger.ClassInput: Flat(input)}}
}

func TestFindIsHalfOpenInTime(t *testing.T) {
	t.Parallel()
	first, second := priced("p", "m", 1), priced("p", "m", 2)
	first.From, first.Until = date(2026, 1, 1), date(2026, 2, 1)
	second.From = date(2026, 3, 1)
	book, err := NewBook(first, second)
	require.NoError(t, err)
	for _, c := range []struct {
		at   time.Time
		want ledger.NanoUSD // zero: missing
	}{
		{date(2026, 1, 1).Add(-1), 0},
		{date(2026, 1, 1), 1},
		{date(2026, 2, 1).Add(-1), 1},
		{date(2026, 2, 1), 0}, // a gap is missing, not the price before
		{date(2026, 3, 1).Add(-1), 0},
		{date(2026, 3, 1), 2},
		{date(2036, 3, 1), 2},
		{date(2026, 3, 1).In(time.FixedZone("east", 3600)), 2},
	} {
		row, ok := book.Find("p", "m", c.at)
		require.Equal(t, c.want != 0, ok, c.at)
		if ok {
			require.Equal(t, c.want, row.Prices[ledger.ClassInput].Base, c.at)
		}
	}
}

func TestFindMissing(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"openai", "gpt-99-unheard-of"},
		{"nobody", "gpt-4o"},
		{"openai", ""},
		{"", "gpt-4o"},
		{"my-openai-proxy", "gpt-4o"},     // no guess from a part of the provider's name
		{"anthropic", "gpt-4o"},           // nor from another provider's book
		{"google", "gemma-3"},             // listed without any price
		{"azure", "phi-4-reasoning:free"}, // free on OpenRouter alone
	} {
		row, ok := Default().Find(c[0], c[1], noon)
		require.False(t, ok, "%v found %v", c, row)
		require.Nil(t, row)
	}
}

func TestFindByTheRulesOfTheBook(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ provider, asked, want string }{
		{"openai", "gpt-4o-mini-2024-07-18", "gpt-4o-mini"},
		{"openai", "GPT-4o-Mini", "gpt-4o-mini"},
		{"OpenAI", "gpt-4o-mini", "gpt-4o-mini"},
		{"openai", "gpt-5.6-luna-2026-07-30", "gpt-5.6-luna"}, // by regular expression
		{"anthropic", "claude-sonnet-4-5-20250929", "claude-sonnet-4-5"},
		{"azure", "claude-sonnet-4-6", "claude-sonnet-4-6"}, // borrowed
		{"google", "claude-haiku-4-5", "claude-haiku-4-5"},
		{"xai", "grok-4.3-20260101", "grok-4.3"}, // by another name of the provider
	} {
		row, ok := Default().Find(c.provider, c.asked, noon)
		require.True(t, ok, c.asked)
		require.Equal(t, c.want, row.Model, c.asked)
	}
}

func TestFirstModelWins(t *testing.T) {
	t.Parallel()
	prefix, exact, contains := priced("p", "early", 1), priced("p", "gpt-4o-mini", 2), priced("p", "late", 3)
	prefix.Match = Match{Prefix: "gpt-4o-m"}
	contains.Match = Match{Any: []Match{{Contains: "4o"}, {Equals: "gpt-4o-mini"}}}
	for _, c := range []struct {
		rows  []Row
		asked string
		want  string
	}{
		{[]Row{prefix, exact, contains}, "gpt-4o-mini", "early"},
		{[]Row{exact, prefix, contains}, "gpt-4o-mini", "gpt-4o-mini"},
		{[]Row{exact, prefix, contains}, "gpt-4o-max", "early"},
		{[]Row{exact, prefix, contains}, "gpt-4o", "late"},
		{[]Row{contains, exact, prefix}, "gpt-4o-mini", "late"},
	} {
		book, err := NewBook(c.rows...)
		require.NoError(t, err)
		row, ok := book.Find("p", c.asked, noon)
		require.True(t, ok)
		require.Equal(t, c.want, row.Model)
	}
}

// TestFindAgreesWithTrialInOrder compares the index with the plain meaning: try every model's rule in order.
func TestFindAgreesWithTrialInOrder(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[ab]{1,4}`)
	var rule func(depth int) *rapid.Generator[Match]
	rule = func(depth int) *rapid.Generator[Match] {
		return rapid.Custom(func(t *rapid.T) Match {
			switch kind := rapid.IntRange(0, 6).Draw(t, "kind"); {
			case kind == 1:
				return Match{Prefix: text.Draw(t, "prefix")}
			case kind == 2:
				return Match{Suffix: text.Draw(t, "suffix")}
			case kind == 3:
				return Match{Contains: text.Draw(t, "contains")}
			case kind == 4:
				return Match{Regex: "^" + text.Draw(t, "regex") + "$"}
			case kind == 5 && depth > 0:
				return Match{Any: rapid.SliceOfN(rule(depth-1), 1, 3).Draw(t, "any")}
			case kind == 6 && depth > 0:
				return Match{All: rapid.SliceOfN(rule(depth-1), 1, 3).Draw(t, "all")}
			default:
				return Match{Equals: text.Draw(t, "equals")}
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		var rows []Row
		for i, m := range rapid.SliceOfN(rule(2), 1, 6).Draw(t, "rules") {
			row := priced("p", string(rune('A'+i)), ledger.NanoUSD(i+1))
			row.Match = m
			rows = append(rows, row)
		}
		book, err := NewBook(rows...)
		require.NoError(t, err)
		asked := text.Draw(t, "asked")
		want := ""
		for _, row := range rows {
			judge, err := row.Match.compile()
			require.NoError(t, err)
			if judge(asked) {
				want = row.Model
				break
			}
		}
		row, ok := book.Find("p", asked, noon)
		require.Equal(t, want != "", ok)
		if ok {
			require.Equal(t, want, row.Model)
		}
	})
}

func TestRowIDPinsThePrices(t *testing.T) {
	t.Parallel()
	id := func(change func(*Row)) string {
		row := priced("p", "m", 5)
		row.From = date(2026, 1, 2)
		change(&row)
		return row.identify()
	}
	plain := id(func(*Row) {})
	require.Regexp(t, `^p/m@2026-01-02#[0-9a-f]{12}$`, plain)
	for name, change := range map[string]func(*Row){
		"its end":    func(r *Row) { r.Until = date(2026, 2, 1) },
		"its match":  func(r *Row) { r.Match = Match{Prefix: "m"} },
		"its source": func(r *Row) { r.Source = "elsewhere" },
	} {
		require.Equal(t, plain, id(change), name)
	}
	for name, change := range map[string]func(*Row){
		"a price":     func(r *Row) { r.Prices[ledger.ClassInput] = Flat(6) },
		"a class":     func(r *Row) { r.Prices[ledger.ClassOutput] = Flat(5) },
		"a step":      func(r *Row) { r.Prices[ledger.ClassInput] = Price{Base: 5, Steps: []Step{{1, 5}}} },
		"a refusal":   func(r *Row) { r.Unpriced = []ledger.Class{ledger.ClassOutput} },
		"a fee":       func(r *Row) { r.PerCall = map[Call]ledger.NanoUSD{CallRequest: 1} },
		"a daily":     func(r *Row) { r.Daily = []Daily{{0, 1, r.Prices}} },
		"its start":   func(r *Row) { r.From = date(2026, 1, 2).Add(time.Second) },
		"its model":   func(r *Row) { r.Model = "n" },
		"no start":    func(r *Row) { r.From = time.Time{} },
		"its company": func(r *Row) { r.Provider = "q" },
	} {
		require.NotEqual(t, plain, id(change), name)
	}
	// The ID of a published row, as transfers hold it.
	require.Equal(t, "openai/gpt-4o-mini@start#8404b1185bd4", find(t, "openai", "gpt-4o-mini", noon).ID)
}

func TestBookGivesRowsByID(t *testing.T) {
	t.Parallel()
	book := Default()
	require.Greater(t, len(book.Rows()), 1400)
	for _, row := range book.Rows() {
		got, ok := book.Row(row.ID)
		require.True(t, ok)
		require.Same(t, row, got)
		require.Equal(t, "genai-prices 2026-08-21", row.Source)
	}
	_, ok := book.Row("openai/gpt-4o-mini@start#000000000000")
	require.False(t, ok)
}

func TestNewBookRefuses(t *testing.T) {
	t.Parallel()
	with := func(change func(*Row)) Row {
		row := priced("p", "m", 5)
		change(&row)
		return row
	}
	january := with(func(r *Row) { r.From, r.Until = date(2026, 1, 1), date(2026, 2, 1) })
	for want, rows := range map[string][]Row{
		"must be named":           {with(func(r *Row) { r.Model = "" })},
		"is not after from":       {with(func(r *Row) { r.From, r.Until = date(2026, 2, 1), date(2026, 1, 1) })},
		"price -0.000000005 is n": {with(func(r *Row) { r.Prices[ledger.ClassInput] = Flat(-5) })},
		"above 7 tokens is negat": {with(func(r *Row) { r.Prices[ledger.ClassInput] = Price{Base: 1, Steps: []Step{{7, -1}}} })},
		"does not ascend":         {with(func(r *Row) { r.Prices[ledger.ClassInput] = Price{Base: 1, Steps: []Step{{7, 2}, {7, 3}}} })},
		`unknown class "inptu"`:   {with(func(r *Row) { r.Prices["inptu"] = Flat(1) })},
		"call request is negativ": {with(func(r *Row) { r.PerCall = map[Call]ledger.NanoUSD{CallRequest: -1} })},
		"must end after they beg": {with(func(r *Row) { r.Daily = []Daily{{From: 5, Until: 5}} })},
		"its content belongs to":  {with(func(r *Row) { r.ID = "p/m@start#000000000000" })},
		"given twice":             {with(func(*Row) {}), with(func(*Row) {})},
		"overlaps in time":        {january, with(func(r *Row) { r.From = date(2026, 1, 31) })},
		"matches other names":     {january, with(func(r *Row) { r.From, r.Match = date(2026, 2, 1), Match{Prefix: "m"} })},
		"exactly one rule":        {with(func(r *Row) { r.Match = Match{Prefix: "m", Suffix: "m"} })},
		"error parsing regexp":    {with(func(r *Row) { r.Match = Match{Any: []Match{{Regex: "("}}} })},
	} {
		_, err := NewBook(rows...)
		require.ErrorContains(t, err, want)
	}
}

func TestWithOverrides(t *testing.T) {
	t.Parallel()
	row := func(provider, model string, from time.Time, input ledger.NanoUSD) Row {
		return Row{Provider: provider, Model: model, From: from, Prices: Prices{ledger.ClassInput: Flat(input)}}
	}
	base := Default()
	book, err := base.With([]Row{
		row("OpenAI", "GPT-4o-mini", date(2026, 6, 1), 7),
		row("openai", "gpt-4o-mini", date(2026, 3, 1), 6),
		row("own", "in-house", time.Time{}, 0),
		row("xai", "grok-4.3", time.Time{}, 9),
	})
	require.NoError(t, err)
	for _, c := range []struct {
		provider, model string
		at              time.Time
		want            ledger.NanoUSD
	}{
		{"openai", "gpt-4o-mini", date(2026, 3, 1).Add(-1), 150_000_000}, // the book, before the first override
		{"openai", "gpt-4o-mini", date(2026, 3, 1), 6},
		{"openai", "gpt-4o-mini", date(2026, 6, 1), 7},
		{"openai", "gpt-4o-mini-2024-07-18", noon, 150_000_000}, // an override names one model exactly
		{"own", "in-house", noon, 0},                            // explicitly zero is a price
		{"x-ai", "grok-4.3", noon, 9},
	} {
		row, ok := book.Find(c.provider, c.model, c.at)
		require.True(t, ok, c.model)
		got, ok := row.Price(ledger.ClassInput, 0, c.at)
		require.True(t, ok)
		require.Equal(t, c.want, got, c.model)
		pinned, ok := book.Row(row.ID)
		require.True(t, ok)
		require.Same(t, row, pinned)
	}
	own := find(t, "openai", "gpt-4o-mini", noon)
	require.Equal(t, ledger.NanoUSD(150_000_000), own.Prices[ledger.ClassInput].Base, "the book underneath is unchanged")
	_, ok := base.Find("own", "in-house", noon)
	require.False(t, ok)

	found, ok := book.Find("openai", "gpt-4o-mini", noon)
	require.True(t, ok)
	_, err = found.Cost(ledger.Usage{Output: 1}, "", noon)
	require.ErrorIs(t, err, ErrMissingPrice, "an override is not mixed with the book")

	again, err := book.With([]Row{row("own", "in-house", date(2026, 1, 1), 3)})
	require.NoError(t, err)
	found, ok = again.Find("own", "in-house", noon)
	require.True(t, ok)
	require.Equal(t, ledger.NanoUSD(3), found.Prices[ledger.ClassInput].Base)
	found, ok = book.Find("own", "in-house", noon)
	require.True(t, ok)
	require.Zero(t, found.Prices[ledger.ClassInput].Base, "the book before is unchanged")
}

func TestWithRefuses(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Row{
		"names no price":       {Provider: "p", Model: "m"},
		"is negative":          {Provider: "p", Model: "m", Prices: Prices{ledger.ClassInput: Flat(-1)}},
		`unknown class "inpt"`: {Provider: "p", Model: "m", Prices: Prices{"inpt": Flat(1)}},
		"must be named":        {Provider: "p", Prices: Prices{ledger.ClassInput: Flat(1)}},
	} {
		_, err := Default().With([]Row{o})
		require.ErrorContains(t, err, want)
	}
	twice := Row{Provider: "p", Model: "m", From: noon, Prices: Prices{ledger.ClassInput: Flat(1)}}
	_, err := Default().With([]Row{twice, twice})
	require.ErrorContains(t, err, "stated twice")
}

func BenchmarkFind(b *testing.B) {
	book := Default()
	for _, c := range [][2]string{
		{"openai", "gpt-4o-mini"},
		{"openai", "gpt-4o-mini-2024-07-18"},
		{"openai", "unheard-of"},
		{"anthropic", "claude-sonnet-4-6"},
		{"openrouter", "qwen/qwen3-32b"},
		{"azure", "claude-sonnet-4-6"},
	} {
		b.Run(c[0]+"/"+c[1], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				book.Find(c[0], c[1], noon)
			}
		})
	}
}

func BenchmarkParseBuiltin(b *testing.B) {
	for b.Loop() {
		sheet, err := ParseSheet(builtin)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := sheet.Book(); err != nil {
			b.Fatal(err)
		}
	}
}
