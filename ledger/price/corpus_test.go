package price

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
