package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/policy"
)

// TestWarnings holds the exact text of the warnings about limits that cannot work together: one file for each.
func TestWarnings(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/warn/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			p, err := policy.Parse(data, environment)
			require.NoError(t, err, "a warning stops nothing")
			got := ""
			for _, warning := range p.Warnings() {
				got += warning.String() + "\n"
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".golden"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
	var fields []string
	for _, warning := range contract(t).Warnings() {
		fields = append(fields, warning.Field)
	}
	require.Equal(t, []string{"apps.checkout.fallback.gpt-4o"}, fields, "the example's limits work together")
}

// TestWarningsOfManyLimits: a file in which every limit stands in the way of every other stays cheap.
func TestWarningsOfManyLimits(t *testing.T) {
	t.Parallel()
	for _, n := range []int{400, 5000} {
		var b strings.Builder
		b.WriteString("version: 1\nlimits:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - {name: l%d, tier: app, budget: {usd: 1, per: day}}\n", i)
		}
		require.LessOrEqual(t, len(parse(t, b.String()).Warnings()), 102)
	}
}
