package gateway

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// The table of reasons in the README says what callers are answered.
func TestReadmeStatuses(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| ([0-9]{3}) \\| `([a-z_]+)` \\| (.+) \\|$").FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, 11)
	told := 0
	for _, row := range rows {
		for _, reason := range regexp.MustCompile("`([A-Z_]+)`").FindAllStringSubmatch(row[3], -1) {
			k := kindOf(ledger.Reason(reason[1]))
			require.Equal(t, row[1], strconv.Itoa(k.status), reason[1])
			require.Equal(t, row[2], k.anthropicType, reason[1])
			told++
		}
	}
	require.Greater(t, told, 25)
}

// The headers that the README names are those that are set.
func TestReadmeHeaders(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	require.NoError(t, err)
	for name, d := range map[string]*dialect{
		"x-ratelimit-{limit,remaining,reset}-{requests,tokens}":         &openAI,
		"anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}": &anthropic,
	} {
		require.Contains(t, string(text), "| `"+name+"` |")
		set := limitHeaders(d)
		require.Len(t, set, 6)
		for header := range set {
			require.Regexp(t, "^"+regexp.MustCompile(`\{([a-z,]+)\}`).ReplaceAllStringFunc(name, func(s string) string {
				return "(" + strings.ReplaceAll(strings.Trim(s, "{}"), ",", "|") + ")"
			})+"$", strings.ToLower(header))
		}
	}
}
