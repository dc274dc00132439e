package price

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

var update = flag.Bool("update", false, "write book.json anew from the corpus")

// genaiSource is the file of the corpus that the built-in book is drawn from.
var genaiSource = Source{
	Name:    "genai-prices",
	URL:     "https://github.com/pydantic/genai-prices/blob/main/prices/new_data/v2/data.json",
	License: "MIT",
	Date:    "2026-08-21",
}

// corpus is the folder of recorded data. Tests over it run where it is named; fixtures of our own run always.
func corpus(t *testing.T) (string, bool) {
	t.Helper()
	dir := os.Getenv("TOLLGATE_CORPUS")
	if dir == "" {
		t.Log("TOLLGATE_CORPUS names no folder: nothing to compare with")
	}
	return dir, dir != ""
}

func TestBuiltinBookIsTheImport(t *testing.T) {
	t.Parallel()
	dir, ok := corpus(t)
	if !ok {
		return
	}
	data, err := os.ReadFile(filepath.Join(dir, "genai-prices.json"))
	require.NoError(t, err)
	sheet, err := Import(data, genaiSource)
	require.NoError(t, err)
	got, err := sheet.Encode()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("book.json", got, 0o644))
		return
	}
	require.Equal(t, string(builtin), string(got), "book.json differs from the import: run with -update and review")
}

// recorded is one provider answer of the corpus with the prices that an independent implementation computes for it.
type recorded struct {
	Model    string `json:"model"`
	Expected []struct {
		Provider  string                   `json:"provider"`
		Flavor    string                   `json:"flavor"`
		InputUSD  string                   `json:"input_usd"`
		OutputUSD string                   `json:"output_usd"`
		Usage     map[string]ledger.Tokens `json:"usage"`
	} `json:"expected"`
}

// normalised turns the independent implementation's counts, where totals contain their parts, into classes that do not
// overlap.
func normalised(u map[string]ledger.Tokens) ledger.Usage {
	out := ledger.Usage{
		CachedInput: u["cache_read_tokens"], CacheWrite1h: u["cache_write_1h_tokens"], InputAudio: u["input_audio_tokens"],
		InputImage: u["input_image_tokens"], Reasoning: u["output_reasoning_tokens"], OutputAudio: u["output_audio_tokens"],
		OutputImage: u["output_image_tokens"],
	}
	out.CacheWrite5m = u["cache_write_tokens"] - out.CacheWrite1h
	out.Input = u["input_tokens"] - out.InputTotal()
	out.Output = u["output_tokens"] - out.OutputTotal()
	return out
}

// TestPricesAgreeWithRecordedUsage prices the recorded usages. The independent figures are not rounded; ours are, once for
// each component, so they may differ by half a nano-dollar for each. The figures were made before 30 July 2026: on that day
// the price of openai.gpt-5.6-luna on aws fell to a fifth, by the source's own dated rows, and they show the one before.
func TestPricesAgreeWithRecordedUsage(t *testing.T) {
	t.Parallel()
	dir, ok := corpus(t)
	if !ok {
		return
	}
	data, err := os.ReadFile(filepath.Join(dir, "usage-prices.jsonl"))
	require.NoError(t, err)
	at := time.Date(2026, 7, 29, 12, 0, 0, 0, time.UTC)
	compared := map[string]int{}
	var differences []string
	for line := range strings.Lines(string(data)) {
		var r recorded
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		for _, e := range r.Expected {
			compared[e.Provider+" "+e.Flavor]++
			if d := difference(e.Provider, r.Model, normalised(e.Usage), e.InputUSD, e.OutputUSD, at); d != "" {
				differences = append(differences, fmt.Sprintf("%s %s %s: %s", e.Provider, e.Flavor, r.Model, d))
			}
		}
	}
	for _, from := range []string{"openai chat", "openai responses", "openai embeddings", "anthropic default", "google default"} {
		require.NotZero(t, compared[from], from)
	}
	t.Logf("compared: %v", compared)
	require.Empty(t, differences)
}

// difference says how our price of a usage differs from an independent one, or nothing.
func difference(provider, model string, u ledger.Usage, inputUSD, outputUSD string, at time.Time) string {
	row, ok := Default().Find(provider, model, at)
	if !ok {
		return "not in the book"
	}
	cost, err := row.Cost(u, "", at)
	if err != nil {
		return err.Error()
	}
	var in, out, inParts, outParts int64
	for _, c := range cost.Components {
		switch c.Class {
		case ledger.ClassOutput, ledger.ClassReasoning, ledger.ClassOutputAudio, ledger.ClassOutputImage:
			out, outParts = out+int64(c.Cost), outParts+1
		case ClassRequest: // neither input nor output
		default:
			in, inParts = in+int64(c.Cost), inParts+1
		}
	}
	for _, side := range []struct {
		ours, parts int64
		theirs      string
	}{{in, inParts, inputUSD}, {out, outParts, outputUSD}} {
		theirs, ok := new(big.Rat).SetString(side.theirs)
		if !ok {
			return "no number: " + side.theirs
		}
		off := theirs.Mul(theirs, big.NewRat(int64(ledger.Dollar), 1))
		off.Sub(off, big.NewRat(side.ours, 1))
		if off.Abs(off).Cmp(big.NewRat(side.parts, 2)) > 0 {
			return fmt.Sprintf("ours %s, theirs %s dollars (%s)", ledger.NanoUSD(side.ours), side.theirs, row.ID)
		}
	}
	return ""
}
