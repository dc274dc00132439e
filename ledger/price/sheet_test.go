package price

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSheetSurvivesEncoding(t *testing.T) {
	t.Parallel()
	sheet, err := Import([]byte(genaiFixture), Source{Name: "fixture", Date: "2026-01-01"})
	require.NoError(t, err)
	text, err := sheet.Encode()
	require.NoError(t, err)
	got, err := ParseSheet(text)
	require.NoError(t, err)
	require.Equal(t, sheet, got)
	require.Equal(t, len(sheet.Rows)+2, strings.Count(string(text), "\n"), "one line for each row")
	require.Contains(t, string(text), `"usd_per_million":{"input":"0.15","output":"3"}`)
}

func TestBuiltinSheetIsItsOwnEncoding(t *testing.T) {
	t.Parallel()
	sheet, err := ParseSheet(builtin)
	require.NoError(t, err)
	text, err := sheet.Encode()
	require.NoError(t, err)
	require.Equal(t, string(builtin), string(text))
	require.Equal(t, "genai-prices 2026-08-21", sheet.Source.String())
	require.Equal(t, "MIT", sheet.Source.License)
	for _, row := range sheet.Rows {
		require.NotEmpty(t, row.ID, "the file holds the IDs, so that a change of how they are made is noticed")
	}
}

func TestParseSheetRefuses(t *testing.T) {
	t.Parallel()
	const head = `{"format":"tollgate-prices/1","source":{"name":"x"},"providers":[],"rows":[`
	row := func(prices string) string {
		return head + `{"provider":"p","model":"m","usd_per_million":` + prices + `}]}`
	}
	for text, want := range map[string]string{
		``:                               "EOF",
		`{"format":"tollgate-prices/2"}`: `format "tollgate-prices/2"`,
		head + `]} {}`:                   "text after the end",
		head + `{"modle":"m"}]}`:         `unknown field "modle"`,
		row(`{"input":0.15}`):            "cannot unmarshal number",
		row(`{"input":"1/3"}`):           "is not a decimal number",
		row(`{"input":"0.0000000001"}`):  "finer than a nano-dollar",
		row(`{"input":{"base":"1","steps":[{"above":1,"price":"1","mode":"marginal"}]}}`): `unknown field "mode"`,
	} {
		_, err := ParseSheet([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

// FuzzSheet holds that no text makes the decoder or the book panic, and that what it accepts survives encoding.
func FuzzSheet(f *testing.F) {
	sheet, err := Import([]byte(genaiFixture), Source{Name: "fixture"})
	require.NoError(f, err)
	for _, row := range sheet.Rows { // small seeds: large ones spend the time on being made smaller
		one := Sheet{Providers: sheet.Providers[:1], Rows: []Row{row}}
		text, err := one.Encode()
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"format":"tollgate-prices/1","source":{"name":""},"providers":null,"rows":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		sheet, err := ParseSheet(data)
		if err != nil {
			return
		}
		text, err := sheet.Encode()
		if err != nil {
			return // a year past 9999 has no text
		}
		again, err := ParseSheet(text)
		require.NoError(t, err)
		twice, err := again.Encode()
		require.NoError(t, err)
		require.Equal(t, string(text), string(twice))
		if book, err := sheet.Book(); err == nil {
			for _, row := range book.Rows() {
				require.NoError(t, row.validate())
			}
		}
	})
}

// FuzzImport holds that no text makes the importer panic, and that what it accepts makes a book.
func FuzzImport(f *testing.F) {
	var providers []struct {
		ID     string            `json:"id"`
		Models []json.RawMessage `json:"models"`
	}
	require.NoError(f, json.Unmarshal([]byte(genaiFixture), &providers))
	for _, p := range providers {
		for _, m := range p.Models {
			f.Add(fmt.Appendf(nil, `[{"id":%q,"models":[%s]}]`, p.ID, m))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		sheet, err := Import(data, Source{Name: "fuzz"})
		if err != nil {
			return
		}
		_, err = sheet.Book()
		require.NoError(t, err)
	})
}
