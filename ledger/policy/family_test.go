package policy_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// values are what conditions and requests of one run share, so that they meet.
type values map[string]*rapid.Generator[string]

// drawLimits parses a policy of a few budgets whose conditions name what requests of the returned values have.
func drawLimits(t *rapid.T) (*policy.Policy, values) {
	var free []string
	for range 3 {
		free = append(free, names.Draw(t, "name"))
	}
	plain := []string{"a", "b", "checkout"}
	own := values{
		"plan": rapid.SampledFrom([]string{"", "free", "a plan", "default"}), "app": rapid.SampledFrom(append(plain, free...)),
		"key": rapid.SampledFrom(append(plain, free...)), "user": rapid.SampledFrom(append(plain, free...)),
		"provider": rapid.SampledFrom([]string{"p", "p, q", long}[:2]), "model": rapid.SampledFrom([]string{"m", "fast", "m=1"}),
		"endpoint": rapid.SampledFrom([]string{"/v1/chat/completions", "/v1/embeddings", "chat", "embeddings", "/v1/other"}),
	}
	var b strings.Builder
	b.WriteString(`version: 1
providers:
  p: {protocol: openai, base_url: http://127.0.0.1:1}
  "p, q": {protocol: openai, base_url: http://127.0.0.1:1}
models: {m: {provider: p}, fast: {provider: "p, q", upstream_model: m}, "m=1": {provider: p}}
plans: {free: {}, a plan: {}}
limits:
`)
	for i := range rapid.IntRange(1, 4).Draw(t, "limits") {
		tier := rapid.SampledFrom(ledger.Tiers()).Draw(t, "tier")
		period := rapid.SampledFrom([]string{"day", "week", "month", "total"}).Draw(t, "period")
		fmt.Fprintf(&b, "  - name: l%d\n    tier: %s\n    budget: {usd: 1, per: %s}\n", i, tier, period)
		var by, match []string
		for _, d := range []string{"model", "endpoint", "provider", "plan", "user", "ip", "app"} {
			if d != string(tier) && rapid.IntRange(0, 3).Draw(t, "by "+d) == 0 {
				by = append(by, d)
			}
		}
		for _, key := range []string{"plan", "app", "key", "user", "provider", "model", "endpoint"} {
			if rapid.IntRange(0, 4).Draw(t, "match "+key) > 0 {
				continue
			}
			if list := drawCondition(t, key, tier, own); len(list) > 0 {
				match = append(match, key+": ["+strings.Join(list, ", ")+"]")
			}
		}
		if len(by) > 0 {
			b.WriteString("    by: [" + strings.Join(by, ", ") + "]\n")
		}
		if len(match) > 0 {
			b.WriteString("    match: {" + strings.Join(match, ", ") + "}\n")
		}
	}
	p, err := policy.Parse([]byte(b.String()), nil)
	require.NoError(t, err, b.String())
	return p, own
}

// drawCondition gives values that the check accepts, quoted.
func drawCondition(t *rapid.T, key string, tier ledger.Tier, own values) []string {
	var list []string
	for _, name := range rapid.SliceOfNDistinct(own[key], 1, 2, rapid.ID).Draw(t, "values") {
		switch key {
		case "app":
			if policy.CheckApp(name) != nil {
				continue
			}
		case "user":
			if scope := rapid.SampledFrom([]string{"", "a/", "checkout/"}).Draw(t, "scope"); name != "" {
				name = scope + name
			}
			if app, user, scoped := strings.Cut(name, "/"); scoped && (user == "" || policy.CheckApp(app) != nil) {
				continue
			}
		case "model":
			if tier == ledger.TierProvider && name == "fast" {
				continue
			}
		case "endpoint":
			if name == "/v1/other" {
				continue
			}
		}
		if quoted := fmt.Sprintf("%q", strings.ReplaceAll(name, "$", "$$")); name != "" && !slices.Contains(list, quoted) {
			list = append(list, quoted)
		}
	}
	return list
}

// drawRequest makes a request that the policy has a model for, as the gateway hands one to Match.
func drawRequest(t *rapid.T, p *policy.Policy, own values) (r policy.Request, upstream string) {
	model := p.Models[own["model"].Draw(t, "asked")]
	path := own["endpoint"].Draw(t, "path")
	return policy.Request{
		App: own["app"].Draw(t, "its app"), Key: own["key"].Draw(t, "its key"), User: own["user"].Draw(t, "its user"),
		Plan: own["plan"].Draw(t, "its plan"), Provider: model.Provider, Model: model.Name, Endpoint: path,
		EndpointKind: policy.EndpointKind(path), IP: "192.0.2.7",
	}, model.Upstream
}

// TestFamilyIsTheLimits: a family read back says of every request exactly what the limit said.
func TestFamilyIsTheLimits(t *testing.T) {
	t.Parallel()
	met := 0
	rapid.Check(t, func(t *rapid.T) {
		p, own := drawLimits(t)
		for range 5 {
			r, upstream := drawRequest(t, p, own)
			want := map[string]string{}
			for _, a := range p.Match(r, noon, nil) {
				want[a.Limit.Name] = a.Subject
			}
			met += len(want)
			for _, l := range p.Limits {
				f, err := policy.ParseFamily(l.Family)
				require.NoError(t, err)
				require.Equal(t, l.Family, f.String())
				require.Equal(t, l.Tier, f.Tier())
				subject, ok := f.Subject(r, upstream)
				require.Equal(t, want[l.Name], subject, "%s of %+v", l.Family, r)
				require.Equal(t, subject != "", ok)
			}
		}
	})
	require.Positive(t, met, "requests that meet limits")
}

// TestFamilyDimensions: what a family does not look at changes nothing about its counter.
func TestFamilyDimensions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, own := drawLimits(t)
		one, upstream := drawRequest(t, p, own)
		two, upstream2 := drawRequest(t, p, own)
		f, err := policy.ParseFamily(p.Limits[0].Family)
		require.NoError(t, err)
		for _, d := range f.Dimensions() {
			switch d {
			case policy.DimensionApp:
				two.App = one.App
			case policy.DimensionKey:
				two.Key = one.Key
			case policy.DimensionUser:
				two.User = one.User
			case policy.DimensionPlan:
				two.Plan = one.Plan
			case policy.DimensionProvider:
				two.Provider = one.Provider
			case policy.DimensionModel:
				two.Model, upstream2 = one.Model, upstream
			case policy.DimensionEndpoint:
				two.Endpoint, two.EndpointKind = one.Endpoint, one.EndpointKind
			}
		}
		first, matched := f.Subject(one, upstream)
		second, same := f.Subject(two, upstream2)
		require.Equal(t, first, second)
		require.Equal(t, matched, same)
		if matched && !f.Tier().Shared() {
			require.Equal(t, one.App, two.App, "whose counter it is")
		}
	})
}

func TestParseFamilyBad(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "?", "apps", "app[", "app[]", "app[model", "app]", "app[model]x", "app[key]", "app[app]", "app[model,endpoint]",
		"app[model,model]", "app?", "app?plan", "app?plan=", "app?plan=%-", "app?plan=a,", "app?plan=a,app=b", "app?ip=1", "app?plan=a?",
		"app?plan=a b", "app?plan=%", "app?plan=%4", "app?plan=%41", "app?plan=%5b", "app?plan=%sha256-0", "app?plan=ü",
		"app?plan=" + strings.Repeat("x", 129), "app?plan=%sha256-" + strings.Repeat("A", 64), "app\x00",
	} {
		_, err := policy.ParseFamily(text)
		require.Error(t, err, text)
	}
	for _, text := range []string{"app", "user[app,model]", "app?endpoint=/v1/chat/completions,plan=%5B,plan=a", "key?user=%" + digest} {
		f, err := policy.ParseFamily(text)
		require.NoError(t, err, text)
		require.Equal(t, text, f.String())
	}
	_, err := policy.ParseFamily("app[key]")
	require.EqualError(t, err, `family "app[key]": cannot be split by "key"`)
}

// TestFamilySlashes: in a condition on users the first slash ends the app's name, also where names have slashes themselves.
func TestFamilySlashes(t *testing.T) {
	t.Parallel()
	f, err := policy.ParseFamily("key?user=a/b/c,user=d")
	require.NoError(t, err)
	for _, test := range []struct {
		app, user string
		want      bool
	}{
		{"a", "b/c", true},
		{"a/b", "c", false},
		{"x", "a/b/c", false},
		{"x", "d", true},
		{"", "d", true},
		{"a/b/c", "", false},
	} {
		_, ok := f.Subject(policy.Request{App: test.app, User: test.user}, "")
		require.Equal(t, test.want, ok, "%+v", test)
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	p := parse(t, head+`
  - {name: rate, tier: app, rate: {requests: 1, per: day}}
  - {name: day, tier: key, by: [model], match: {plan: free}, budget: {usd: 1, per: day}}
  - {name: tokens, tier: key, by: [model], match: {plan: free}, budget: {tokens: 1, per: day}}
  - {name: total, tier: key, by: [model], match: {plan: free}, budget: {usd: 1, per: total}}
  - {name: ip, tier: ip, budget: {usd: 1, per: day}}
  - {name: by-ip, tier: app, by: [ip], budget: {usd: 1, per: day}}
`)
	require.Equal(t, &event.Fill{Timezone: "UTC", WeekStart: 1, Families: []event.FillFamily{
		{Family: "key[model]?plan=free", Period: ledger.PeriodDay}, {Family: "key[model]?plan=free", Period: ledger.PeriodTotal},
	}}, p.Fill())
	f, err := policy.ParseFamily("app[ip]")
	require.NoError(t, err)
	require.False(t, f.Fillable())
}

// FuzzParseFamily: what is read is canonical and makes clean subjects; everything else is an error.
func FuzzParseFamily(f *testing.F) {
	data, err := os.ReadFile("testdata/contract.yaml")
	require.NoError(f, err)
	for _, l := range parse(f, string(data)).Limits {
		f.Add(l.Family)
	}
	f.Add("user[app,model]?endpoint=/v1/chat/completions,plan=%5B,user=a/b")
	f.Add("key?key=%" + digest)
	f.Fuzz(func(t *testing.T, text string) {
		family, err := policy.ParseFamily(text)
		if err != nil {
			return
		}
		require.Equal(t, text, family.String())
		for _, r := range []policy.Request{{}, request} {
			if subject, ok := family.Subject(r, "gpt-4o-mini"); ok {
				require.True(t, strings.HasPrefix(subject, string(family.Tier())+":"))
				require.Equal(t, 1, strings.Count(subject, ":"))
				for i := range len(subject) {
					require.True(t, subject[i] > ' ' && subject[i] < 0x7f, subject)
				}
			}
		}
	})
}

func BenchmarkFamily(b *testing.B) {
	f, err := policy.ParseFamily("key[endpoint,model]?plan=paid")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		f.Subject(request, "gpt-4o-mini")
	}
}
