package bench_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"tollgate/internal/bench"
	"tollgate/internal/command"
)

// TestMain is this program in the place of tollgate where the bench starts its parts: they are commands, never test flags.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"bench", "gateway", "settler", "provider-sim"}, os.Args[1]) {
		os.Exit(command.Main(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

func TestGateway(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every server")
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("TOLLGATE_LIMITER_TIMEOUT", "nonsense") // must not reach the parts
	figures, profiles := filepath.Join(dir, "figures.json"), filepath.Join(dir, "profiles")
	var out, progress bytes.Buffer
	// The answer of Redis may take longer than production allows: other tests run beside this one.
	code := command.Run(t.Context(), []string{
		"bench", "gateway", "--quick", "--duration", "300ms", "--concurrency", "2", "--upstream", "0s",
		"--env", "TOLLGATE_LIMITER_TIMEOUT=1m", "--json", figures, "--raw", filepath.Join(dir, "raw.csv.gz"), "--profile", profiles,
	}, &out, &progress)
	require.Zero(t, code, progress.String())
	require.Contains(t, out.String(), "met      requests that failed or broke off: 0")

	text, err := os.ReadFile(figures)
	require.NoError(t, err)
	var result struct {
		bench.Result
		Goals []bench.Goal `json:"goals"`
	}
	require.NoError(t, json.Unmarshal(text, &result))
	require.NotEmpty(t, result.Goals)
	require.Len(t, result.Points, 6)
	for _, p := range result.Points {
		require.Positive(t, p.Requests, p.Target)
		require.Positive(t, p.Total.P50)
		require.Len(t, p.CPU, 8)
		require.Equal(t, p.Target != bench.TargetDirect, p.Path > 0)
	}

	names, err := filepath.Glob(filepath.Join(profiles, "*"))
	require.NoError(t, err)
	require.Len(t, names, 10) // two modes: three profiles and two sets of metrics each
	left, err := filepath.Glob(filepath.Join(dir, "tollgate-bench-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the run removes its data")
}

// The other benches run, find what they look for, and leave nothing.
func TestBenches(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every server")
	}
	for _, b := range []struct {
		name string
		args []string
		want []string
	}{
		{"admission", []string{"--callers", "2", "--slice", "200ms", "--rounds", "1"}, []string{`2 +admitted`, `2 +refused last`, `whole requests`}},
		{"limits", []string{"--duration", "2s"}, []string{`sliding_log +600 +62 +62 `, `sliding_counter +600 +62 +62 `, `token_bucket`}},
		{"settle", []string{"--events", "2000", "--settlers", "2"}, []string{`2000 events`, `bare consume +\d\d`, `bare copy +\d\d`, `settlers: 2 +\d\d`}},
		{"settle", []string{"--lag", "--rate", "100", "--duration", "1s"}, []string{`200 events`, `p99 \d.*at most 250`}},
		{"isolation", []string{"--round", "1s", "--rounds", "1"}, []string{`the loud one: \d+ of 1000 passed`, `requests of the nine that were refused: \d+ of 288`}},
	} {
		t.Run(b.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			var out, progress bytes.Buffer
			figures := filepath.Join(dir, "figures.json")
			code := command.Run(t.Context(), append([]string{"bench", b.name, "--json", figures}, b.args...), &out, &progress)
			require.Zero(t, code, progress.String())
			for _, want := range b.want {
				require.Regexp(t, want, out.String())
			}
			text, err := os.ReadFile(figures)
			require.NoError(t, err)
			require.True(t, json.Valid(text))
			left, err := filepath.Glob(filepath.Join(dir, "tollgate-bench-*"))
			require.NoError(t, err)
			require.Empty(t, left, "the run removes its data")
		})
	}
}

// The gateway's memory does not grow with the size of bodies: 40 of 20 MiB each are on their way at the same time.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every server")
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	figures := filepath.Join(dir, "figures.json")
	var out, progress bytes.Buffer
	code := command.Run(t.Context(), []string{
		"bench", "memory", "--uploads", "40", "--streams", "200", "--duration", "2s", "--json", figures,
	}, &out, &progress)
	require.Zero(t, code, progress.String())
	text, err := os.ReadFile(figures)
	require.NoError(t, err)
	var found bench.MemoryResult
	require.NoError(t, json.Unmarshal(text, &found))
	const bound = 300 << 20
	require.Less(t, found.Uploads.Peak, int64(bound), out.String())
	require.Less(t, found.Streams.Peak, int64(bound), out.String())
	require.Positive(t, found.Uploads.Before)
}
