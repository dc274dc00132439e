package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/price"
)

// sheetOf is a price file of our own format with one row a price.
func sheetOf(rows ...string) string {
	return `{"format":"tollgate-prices/1","source":{"name":"test","date":"2026-11-30"},"providers":[],"rows":[` + strings.Join(rows, ",") + `]}`
}

const (
	newModel = `{"provider":"openai","model":"gpt-9","match":{"prefix":"gpt-9"},"usd_per_million":{"input":"1","output":"4"}}`
	tenTimes = `{"provider":"groq","model":"house","usd_per_million":{"input":"3","output":"4"}}`
	before   = `{"provider":"groq","model":"house","usd_per_million":{"input":"0.3","output":"4"}}`
)

// TestPricesImport proposes, asks again where it must, publishes what is approved, and proposes nothing twice.
func TestPricesImport(t *testing.T) {
	t.Setenv("NATS_URL", stack.NATS(t).ClientURL())
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	// run wants an exit code, and says everything that was printed with single spaces.
	run := func(want int, args ...string) string {
		t.Helper()
		var out strings.Builder
		root := newRoot()
		root.SetIn(strings.NewReader("yes\n")) // an answer that nobody at a terminal has given counts for nothing
		require.Equal(t, want, runRoot(t.Context(), root, append([]string{"prices"}, args...), &out, &out), out.String())
		return strings.Join(strings.Fields(out.String()), " ")
	}
	path := file("prices.json", sheetOf(newModel, before))
	said := run(1, "import", path, "--from", "2026-12-01")
	require.Contains(t, said, "nothing is published: approve what is proposed with --yes")
	require.Contains(t, said, "2 added, 0 changed, 0 ended")
	require.Contains(t, said, "input none -> 1 ")
	require.Contains(t, run(0, "import", path, "--from", "2026-12-01", "--yes"), "published 2 rows")
	said = run(0, "import", path, "--from", "2026-12-02", "--yes")
	require.Contains(t, said, "0 added, 0 changed, 0 ended")
	require.NotContains(t, said, "published")

	dear := file("dear.json", sheetOf(tenTimes))
	said = run(1, "import", dear, "--from", "2026-12-05", "--yes") // approval of all is none of a doubtful change
	require.Contains(t, said, "--accept groq/house")
	require.Contains(t, said, "input 0.3 -> 3 +900 % ! about 10^1 times: is it another unit?")
	run(1, "import", dear, "--from", "2026-12-05", "--yes", "--accept", "groq/other")
	run(0, "import", dear, "--from", "2026-12-05", "--yes", "--accept", "groq/house")

	var text strings.Builder
	require.Zero(t, Run(t.Context(), []string{"prices", "show"}, &text, &text))
	sheet, err := price.ParseSheet([]byte(text.String()))
	require.NoError(t, err)
	require.Len(t, sheet.Rows, 3, "what was published stays, a change is added")
	require.Equal(t, "test 2026-11-30", sheet.Rows[0].Source)
	require.Contains(t, run(1, "import", file("bad.json", `{"format":"x"}`)), `format "x"`)
}
