package policy_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
)

var update = flag.Bool("update", false, "rewrite the expected problems in testdata")

// environment is what the fixtures may refer to.
func environment(name string) (string, bool) {
	value, ok := map[string]string{
		"TOLLGATE_SIM_URL": "http://127.0.0.1:9999",
		"EMPTY":            "",
		"NUMBER":           "5",
		"INJECTION":        "reject}}}, limits: []",
	}[name]
	return value, ok
}

func parse(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text), environment)
	require.NoError(t, err)
	return p
}

func contract(t testing.TB) *policy.Policy {
	t.Helper()
	data, err := os.ReadFile("testdata/contract.yaml")
	require.NoError(t, err)
	return parse(t, string(data))
}

// TestParseBad holds the exact text of every problem: one file for each thing that can be wrong.
func TestParseBad(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			p, err := policy.Parse(data, environment)
			require.Error(t, err)
			require.Nil(t, p)
			var problems policy.Problems
			require.ErrorAs(t, err, &problems)
			golden := strings.TrimSuffix(path, ".yaml") + ".golden"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644))
			}
			want, readErr := os.ReadFile(golden)
			require.NoError(t, readErr)
			require.Equal(t, string(want), err.Error()+"\n")
		})
	}
}

func TestParseContract(t *testing.T) {
	t.Parallel()
	p := contract(t)

	require.Equal(t, "Europe/Berlin", p.Timezone)
	require.Equal(t, "Europe/Berlin", p.Calendar.Location.String())
	require.Equal(t, time.Monday, p.Calendar.WeekStart)
	require.Equal(t, &policy.Provider{
		Name: "openai", Protocol: policy.ProtocolOpenAI, BaseURL: "https://api.openai.com/v1",
		Keys: []policy.ProviderKey{{Name: policy.DefaultKey, Env: "OPENAI_API_KEY", Weight: 1, Line: 6}}, Retries: 1, OnDisconnect: policy.OnDisconnectCancel, Line: 6,
	}, p.Providers["openai"])
	require.Equal(t, &policy.Model{Name: "fast", Provider: "openai", Upstream: "gpt-4o-mini", Line: 13}, p.Models["fast"])
	require.Equal(t, "gpt-4o-mini", p.Models["gpt-4o-mini"].Upstream)
	require.Equal(t, []policy.PriceRow{{
		Line: 15,
		Row: price.Row{
			Provider: "openai", Model: "in-house", From: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Prices: price.Prices{
				ledger.ClassInput: price.Flat(150_000_000), ledger.ClassCachedInput: price.Flat(75_000_000), ledger.ClassOutput: price.Flat(600_000_000),
			},
		},
	}}, p.Prices)
	require.Equal(t, policy.OnExceed{Action: policy.ActionThrottle, MaxWait: 10 * time.Second, MaxDepth: 100}, p.Plans["paid"].OnExceed)
	require.Equal(t, policy.ActionReject, p.Plans[policy.DefaultPlan].OnExceed.Action)
	require.Equal(t, &policy.App{
		Name: "checkout", Plan: "paid", Fallback: map[string]string{"gpt-4o": "gpt-4o-mini"}, Line: 21,
	}, p.Apps["checkout"])
	require.Equal(t, policy.Degraded{
		Breaker: policy.Breaker{
			ConsecutiveTimeouts: 3, ErrorRatio: 1000, Latency: 500 * time.Millisecond, ProbeEvery: time.Second,
		},
		Local:       policy.Local{RequestsPerSecond: 5, TokensPerMinute: 20_000},
		ClosedPlans: []string{"free"},
	}, p.Degraded)
	require.Equal(t, policy.Reservations{TTL: 15 * time.Minute, OnExpiry: event.ExpiryCharge}, p.Reservations)

	require.Len(t, p.Limits, 7)
	require.Equal(t, &policy.Budget{Unit: ledger.UnitUSD, Period: ledger.PeriodMonth, Default: 20_000_000_000_000}, p.Limits[0].Budget)
	require.True(t, p.Limits[0].Hard)
	require.Equal(t, []policy.Override{
		{Name: "checkout", Value: 20_000_000, Line: 32},
		{Name: "promo", Value: 50_000_000, Until: time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC), Line: 33},
	}, p.Limits[1].Overrides)
	require.Equal(t, &policy.Rate{
		Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitRequests, Amount: 60, Declared: 60, Window: time.Minute,
	}, p.Limits[2].Rate)
	require.Equal(t, &policy.Rate{
		Algorithm: ledger.AlgorithmTokenBucket, Unit: ledger.UnitRequests, Amount: 100, Declared: 100, Window: 24 * time.Hour,
		Burst: 20,
	}, p.Limits[3].Rate)
	require.Equal(t, &policy.Rate{
		Algorithm: ledger.AlgorithmSlidingLog, Unit: ledger.UnitTokens, Amount: 70_000, Declared: 100_000, Headroom: 3000,
		Window: time.Minute,
	}, p.Limits[4].Rate)
	require.Equal(t, int64(200), p.Limits[5].Concurrency)
	require.True(t, p.Limits[6].Priority)
	require.False(t, p.Limits[6].Shadow)
	require.Equal(t, &policy.OnExceed{Action: policy.ActionReject}, p.Limits[6].OnExceed)

	families := make([]string, len(p.Limits))
	for i, l := range p.Limits {
		families[i] = l.Family
	}
	require.Equal(t, []string{
		"platform", "app", "key[endpoint,model]", "key?plan=free", "provider[model]", "provider",
		"endpoint?endpoint=/v1/responses",
	}, families)
}

func TestParseGood(t *testing.T) {
	t.Parallel()
	p := parse(t, `
version: 1
providers:
  sim: {protocol: openai, base_url: "${TOLLGATE_SIM_URL}/v1/", api_key_env: KEY, on_disconnect: drain}
  raw: {protocol: openai, base_url: "http://127.0.0.1:1/$$HOME/$x"}
models: {gpt: {provider: sim}}
apps:
plans:
  internal:
prices: []
limits:
  - {name: a, tier: app, by: model, match: {plan: internal}, budget: {tokens: 5_000_000, per: total}}
  - {name: b, tier: user, budget: {usd: 0, per: day}, overrides: {alice: {usd: 0.000000001}, blocked: {usd: 0}}}
  - {name: c, tier: key, rate: {tokens: 10, per: hour, algorithm: token_bucket, headroom: 12.5%}, overrides: {k: {tokens: 100}, l: {tokens: 100, burst: 7}}}
  - {name: d, tier: app, rate: {requests: 1, per: day, algorithm: token_bucket, burst: 366}}
  - {name: e, tier: plan, budget: {usd: 9223372036.854775807, per: week}}
`)
	require.Empty(t, p.Warnings())
	require.Equal(t, "UTC", p.Timezone)
	require.Equal(t, ledger.Calendar{Location: time.UTC, WeekStart: time.Monday}, p.Calendar)
	require.Equal(t, "http://127.0.0.1:9999/v1", p.Providers["sim"].BaseURL)
	require.Equal(t, policy.OnDisconnectDrain, p.Providers["sim"].OnDisconnect)
	require.Equal(t, "http://127.0.0.1:1/$HOME/$x", p.Providers["raw"].BaseURL)
	require.Equal(t, policy.Reservations{TTL: 15 * time.Minute, OnExpiry: event.ExpiryCharge}, p.Reservations)
	require.Equal(t, policy.Breaker{ConsecutiveTimeouts: 3, ErrorRatio: 1000, Latency: 500 * time.Millisecond, ProbeEvery: time.Second}, p.Degraded.Breaker)
	require.Equal(t, "app[model]?plan=internal", p.Limits[0].Family)
	require.Equal(t, int64(5_000_000), p.Limits[0].Budget.Default)
	require.Equal(t, int64(1), p.Limits[1].Overrides[0].Value)
	require.Equal(t, int64(8), p.Limits[2].Rate.Amount, "headroom rounds down")
	require.Equal(t, int64(8), p.Limits[2].Rate.Burst)
	require.Equal(t, policy.Override{Name: "k", Value: 87, Burst: 87, Line: 14}, p.Limits[2].Overrides[0])
	require.Equal(t, policy.Override{Name: "l", Value: 87, Burst: 7, Line: 14}, p.Limits[2].Overrides[1])
	require.Equal(t, int64(1<<63-1), p.Limits[4].Budget.Default)
}

func TestParseRevision(t *testing.T) {
	t.Parallel()
	one, same, other := parse(t, "version: 1\n"), parse(t, "version: 1\n"), parse(t, "version: 1 \n")
	require.Len(t, one.Revision, 12)
	require.Equal(t, one.Revision, same.Revision)
	require.NotEqual(t, one.Revision, other.Revision)
}

func TestParseWarnings(t *testing.T) {
	t.Parallel()
	require.Equal(t, strings.TrimSpace(`
line 1, column 1: no models are declared: every request is refused, because callers may only ask for those
line 1, column 1: no limits are declared: nothing is limited`), parse(t, "version: 1\n").Warnings().Error())
	require.Equal(t, strings.TrimSpace(`
line 4, column 23: apps.a.fallback.gpt-5: callers cannot ask for the model, so it never falls back; use gpt-4; did you mean gpt-4?
line 6, column 32: limits[0].rate: a sliding_log keeps each of 10001 requests in memory for every subject: consider token_bucket`),
		parse(t, `version: 1
providers: {p: {protocol: openai, base_url: http://127.0.0.1:1}}
models: {gpt-4: {provider: p}}
apps: {a: {fallback: {gpt-5: gpt-4}}}
limits:
  - {name: a, tier: app, rate: {requests: 10001, per: day, algorithm: sliding_log}}
  - {name: b, tier: key, rate: {requests: 10000, per: day, algorithm: sliding_log}}
  - {name: c, tier: app, budget: {requests: 10001, per: day}, hard: true}
`).Warnings().Error())
}

func TestParseTooLarge(t *testing.T) {
	t.Parallel()
	_, err := policy.Parse([]byte("version: 1\n#"+strings.Repeat("x", policy.MaxSize)), nil)
	require.EqualError(t, err, "the file has 524300 bytes: at most 524288")
}

// TestParseLongName keeps problems small however long the names around them are.
func TestParseLongName(t *testing.T) {
	t.Parallel()
	text := "version: 1\napps:\n  ? " + strings.Repeat("x", 300_000) + "\n  :\n" + strings.Repeat("    y:\n", 20_000)
	_, err := policy.Parse([]byte(text), nil)
	var problems policy.Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 1+1+19_999)
	for _, problem := range problems {
		require.Less(t, len(problem.String()), 400)
	}
}

// TestParseHostile keeps files cheap whose every line is wrong and near many names.
func TestParseHostile(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("version: 1\nplans:\n")
	for i := range 190 {
		fmt.Fprintf(&b, "  %s%d:\n", strings.Repeat("y", 50), i)
	}
	b.WriteString("apps:\n")
	for i := range 7000 {
		fmt.Fprintf(&b, "  a%d: {plan: %s}\n", i, strings.Repeat("x", 50))
	}
	start := time.Now()
	_, err := policy.Parse([]byte(b.String()), nil)
	var problems policy.Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 7000)
	require.Less(t, time.Since(start), 10*time.Second)
}
