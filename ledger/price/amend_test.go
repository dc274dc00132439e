package price

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

func proposed(t *testing.T, b *Book, from time.Time, rows ...Row) Proposal {
	t.Helper()
	return b.Propose(&Sheet{Rows: rows}, from)
}

func TestProposeTheSameIsNothing(t *testing.T) {
	t.Parallel()
	sheet, err := ParseSheet(builtin)
	require.NoError(t, err)
	for _, from := range []time.Time{date(2025, 1, 1), noon, date(2030, 1, 1)} {
		p := Default().Propose(sheet, from)
		require.Empty(t, p.Changes)
		require.Empty(t, p.Gone)
	}
}

func TestProposeDoubts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before, after ledger.NanoUSD
		doubt         string
		percent       int64
	}{
		{"a little dearer", 1_000_000, 1_200_000, "", 20},
		{"a little cheaper", 1_000_000, 800_000, "", -20},
		{"more than a fifth dearer", 1_000_000, 1_200_001, "more than 20 %", 20},
		{"more than a fifth cheaper", 1_000_000, 799_999, "more than 20 %", -20},
		{"ten times", 1_000_000, 10_000_000, "about 10^1 times: is it another unit?", 900},
		{"a thousandth", 150_000_000, 150_000, "about 10^-3 times: is it another unit?", -100},
		{"nearly a million times", 3, 2_900_000, "about 10^6 times: is it another unit?", 96666567},
		{"free now", 1_000_000, 0, "from or to free of charge", 0},
		{"no longer free", 0, 1, "from or to free of charge", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			book, err := NewBook(priced("p", "m", c.before))
			require.NoError(t, err)
			p := proposed(t, book, noon, priced("p", "m", c.after))
			require.Len(t, p.Changes, 1)
			require.Equal(t, ChangeChanged, p.Changes[0].Kind)
			require.Equal(t, c.doubt != "", p.Changes[0].Doubtful())
			f := p.Changes[0].Figures[0]
			require.Equal(t, c.doubt, f.Doubt)
			require.Equal(t, c.percent, f.PercentRounded)
		})
	}
	book, err := NewBook(Row{Provider: "p", Model: "m", Prices: Prices{ledger.ClassInput: Flat(1), ledger.ClassOutput: Flat(2)}})
	require.NoError(t, err)
	p := proposed(t, book, noon, priced("p", "m", 1))
	require.Equal(t, "the price vanishes", p.Changes[0].Figures[0].Doubt)
	p = proposed(t, book, noon, priced("p", "new", 7))
	require.Equal(t, ChangeAdded, p.Changes[0].Kind)
	require.False(t, p.Changes[0].Doubtful())
	require.Equal(t, []string{"p/m"}, p.Gone)
}

// TestAmendBeginsAtItsFrom holds that a change touches nothing before it: not a price, not a row by its id.
func TestAmendBeginsAtItsFrom(t *testing.T) {
	t.Parallel()
	first, second := priced("p", "m", 1), priced("p", "m", 2)
	first.Until, second.From = date(2026, 1, 1), date(2026, 1, 1)
	book, err := NewBook(first, second)
	require.NoError(t, err)
	p := proposed(t, book, date(2026, 3, 1), priced("p", "m", 3), priced("p", "n", 9))
	amended, err := book.Amend(p.Rows())
	require.NoError(t, err)
	price := func(b *Book, model string, at time.Time) ledger.NanoUSD {
		row, ok := b.Find("p", model, at)
		if !ok {
			return -1
		}
		return row.Prices[ledger.ClassInput].Base
	}
	for at, want := range map[time.Time]ledger.NanoUSD{
		date(2025, 1, 1): 1, date(2026, 2, 1): 2, date(2026, 3, 1).Add(-1): 2, date(2026, 3, 1): 3, date(2036, 3, 1): 3,
	} {
		require.Equal(t, want, price(amended, "m", at), at)
	}
	require.Equal(t, ledger.NanoUSD(-1), price(amended, "n", date(2026, 2, 1)))
	require.Equal(t, ledger.NanoUSD(9), price(amended, "n", date(2026, 3, 1)))
	require.Equal(t, ledger.NanoUSD(2), price(book, "m", date(2026, 4, 1)), "the book itself is not changed")
	for _, row := range book.Rows() {
		same, ok := amended.Row(row.ID)
		require.True(t, ok)
		require.Equal(t, row.Prices, same.Prices)
	}
	require.Empty(t, amended.Propose(&Sheet{Rows: []Row{priced("p", "m", 3), priced("p", "n", 9)}}, date(2026, 5, 1)).Changes)

	// A correction from an earlier instant wins from there on, over what was published for later too.
	p = amended.Propose(&Sheet{Rows: []Row{priced("p", "m", 5)}}, date(2026, 2, 1))
	again, err := amended.Amend(p.Rows())
	require.NoError(t, err)
	require.Equal(t, ledger.NanoUSD(2), price(again, "m", date(2026, 2, 1).Add(-1)))
	require.Equal(t, ledger.NanoUSD(5), price(again, "m", date(2026, 2, 1)))
	require.Equal(t, ledger.NanoUSD(5), price(again, "m", date(2026, 4, 1)))
}

// TestAmendProperties: whatever is published in whatever order, a book has at most one price at an instant, the last published
// that has begun, and no earlier instant is touched.
func TestAmendProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		book, err := NewBook(priced("p", "m", 1))
		require.NoError(t, err)
		want := map[int]ledger.NanoUSD{}
		for day := range 20 {
			want[day] = 1
		}
		for n := range rapid.IntRange(1, 6).Draw(t, "publications") {
			day := rapid.IntRange(0, 19).Draw(t, "from")
			row := priced("p", "m", ledger.NanoUSD(n+2))
			row.From = date(2026, 1, 1+day)
			book, err = book.Amend([]Row{row})
			require.NoError(t, err)
			for d := day; d < 20; d++ {
				want[d] = ledger.NanoUSD(n + 2)
			}
		}
		for day, price := range want {
			row, ok := book.Find("p", "m", date(2026, 1, 1+day))
			require.True(t, ok)
			require.Equal(t, price, row.Prices[ledger.ClassInput].Base, "day %d", day)
		}
	})
}
