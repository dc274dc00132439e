package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of known faults names tests that exist.
func TestBugsHaveTests(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("bugs.md")
	require.NoError(t, err)
	named := regexp.MustCompile("`([a-z]+)\\.(Test\\w+)`").FindAllSubmatch(table, -1)
	require.Greater(t, len(named), 50)
	folders := map[string]string{
		"lua": "../lua", "admission": "../gateway/admission", "gateway": "../gateway", "provider": "../gateway/provider", "e2e": ".",
		"settler": "../settler", "policy": "../ledger/policy", "ledger": "../ledger", "dashboards": "../dashboards",
		"outbox": "../gateway/outbox", "pg": "../ledger/pg", "price": "../ledger/price", "migrations": "../migrations", "chaos": "chaos",
		"command": "../internal/command",
	}
	sources := map[string][]byte{}
	for name, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			sources[name] = append(sources[name], text...)
		}
	}
	for _, m := range named {
		require.Regexp(t, `(?m)^func `+string(m[2])+`\(t `, string(sources[string(m[1])]), "%s.%s", m[1], m[2])
	}
}
