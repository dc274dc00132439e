package command

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A price file that cannot be read is named, with where it ends or goes wrong.
func TestUnreadablePriceFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                             "the file is empty",
		" \n":                          "the file is empty",
		`{"format":"tollgate-prices/1`: "the file is cut: it ends at byte 28, in the middle",
		`[{"id":"openai",`:             "the file is cut: it ends at byte 16, in the middle",
		`[{"id":x}]`:                   "at byte 8: ",
	} {
		path := filepath.Join(t.TempDir(), "prices.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := readPriceFile(path, importAsk{}, time.Now())
		require.ErrorContains(t, err, "prices "+path+": "+want)
	}
}
