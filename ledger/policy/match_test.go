package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

const head = `
version: 1
providers: {openai: {protocol: openai, base_url: http://127.0.0.1:1}}
models: {gpt-4o-mini: {provider: openai}, fast: {provider: openai, upstream_model: gpt-4o-mini}}
plans: {free: {}, paid: {}}
limits:
`

var (
	noon    = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	request = policy.Request{
		App: "checkout", Key: "k_7f", User: "alice", Plan: "paid", Provider: "openai", Model: "fast",
		Endpoint: "/v1/chat/completions", EndpointKind: "chat", IP: "2001:db8::/64",
	}
)

// met renders what r meets as "limit subject value".
func met(p *policy.Policy, r policy.Request, now time.Time) []string {
	var lines []string
	for _, a := range p.Match(r, now, nil) {
		lines = append(lines, a.Limit.Name+" "+a.Subject)
	}
	return lines
}

func TestMatchSubjects(t *testing.T) {
	t.Parallel()
	p := parse(t, head+`
  - {name: ip, tier: ip, rate: {requests: 1, per: day}}
  - {name: endpoint, tier: endpoint, rate: {requests: 1, per: day}}
  - {name: user, tier: user, rate: {requests: 1, per: day}}
  - {name: key, tier: key, rate: {requests: 1, per: day}}
  - {name: app, tier: app, rate: {requests: 1, per: day}}
  - {name: plan, tier: plan, rate: {requests: 1, per: day}}
  - {name: provider, tier: provider, rate: {requests: 1, per: day}}
  - {name: cluster, tier: cluster, rate: {requests: 1, per: day}}
  - {name: platform, tier: platform, rate: {requests: 1, per: day}}
  - {name: pay, tier: endpoint, priority: true, rate: {requests: 1, per: day}}
  - {name: all, tier: key, by: [user, provider, plan, model, ip, endpoint, app], rate: {requests: 1, per: day}}
  - {name: upstream, tier: provider, by: [model, user], match: {model: gpt-4o-mini}, rate: {requests: 1, per: day}}
  - {name: conditions, tier: app, match: {plan: [paid, free], endpoint: chat, user: checkout/alice}, rate: {requests: 1, per: day}}
`)
	require.Equal(t, []string{
		"platform platform:all",
		"cluster cluster:all",
		"provider provider:openai",
		"upstream provider:openai[model=gpt-4o-mini,user=checkout/alice]?model=gpt-4o-mini",
		"plan plan:paid",
		"app app:checkout",
		"conditions app:checkout?endpoint=chat,plan=free,plan=paid,user=checkout/alice",
		"key key:k_7f",
		"all key:k_7f[app=checkout,endpoint=chat,ip=2001%3Adb8%3A%3A/64,model=fast,plan=paid,provider=openai,user=checkout/alice]",
		"pay endpoint:/v1/chat/completions",
		"user user:checkout/alice",
		"endpoint endpoint:/v1/chat/completions",
		"ip ip:2001%3Adb8%3A%3A/64",
	}, met(p, request, noon))
}

func TestMatchConditions(t *testing.T) {
	t.Parallel()
	for condition, cases := range map[string]struct{ holds, fails policy.Request }{
		`plan: default`:        {policy.Request{}, policy.Request{Plan: "paid"}},
		`plan: [free, paid]`:   {policy.Request{Plan: "paid"}, policy.Request{}},
		`app: checkout`:        {policy.Request{App: "checkout"}, policy.Request{App: "checkout2"}},
		`key: k`:               {policy.Request{Key: "k"}, policy.Request{Key: ""}},
		`user: alice`:          {policy.Request{App: "any", User: "alice"}, policy.Request{User: "any/alice"}},
		`user: checkout/a`:     {policy.Request{App: "checkout", User: "a"}, policy.Request{App: "other", User: "a"}},
		`user: checkout/a/b`:   {policy.Request{App: "checkout", User: "a/b"}, policy.Request{App: "checkout", User: "a"}},
		`provider: openai`:     {policy.Request{Provider: "openai"}, policy.Request{Provider: "sim"}},
		`model: fast`:          {policy.Request{Model: "fast"}, policy.Request{Model: "gpt-4o-mini"}},
		`endpoint: chat`:       {policy.Request{EndpointKind: "chat"}, policy.Request{EndpointKind: "embeddings"}},
		`endpoint: /v1/models`: {policy.Request{Endpoint: "/v1/models"}, policy.Request{Endpoint: "/v1/models/x"}},
		`plan: paid, app: a`:   {policy.Request{Plan: "paid", App: "a"}, policy.Request{Plan: "paid", App: "b"}},
	} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			p := parse(t, head+"  - {name: a, tier: platform, match: {"+condition+"}, rate: {requests: 1, per: day}}")
			require.Len(t, p.Match(cases.holds, noon, nil), 1)
			require.Empty(t, p.Match(cases.fails, noon, nil))
		})
	}
}

func TestMatchValues(t *testing.T) {
	t.Parallel()
	p := parse(t, head+`
  - name: budget
    tier: app
    budget: {tokens: 10, per: day}
    overrides: {checkout: {tokens: 20}, promo: {tokens: 30, until: 2026-12-01T13:00:00+01:00}}
  - name: bucket
    tier: key
    rate: {requests: 100, per: minute, algorithm: token_bucket, headroom: 10%, burst: 5}
    overrides: {big: {requests: 200}, bigger: {requests: 300, burst: 7}}
  - name: users
    tier: user
    by: [model]
    budget: {usd: 1, per: total}
    overrides: {alice: {usd: 2}, checkout/alice: {usd: 3, until: 2026-12-01T12:00:00Z}, other/a/b: {usd: 4}, k: {usd: 5}}
  - {name: flight, tier: platform, concurrency: 9}
`)
	type want struct{ budget, bucket, burst, users int64 }
	for name, test := range map[string]struct {
		r    policy.Request
		now  time.Time
		want want
	}{
		"defaults":           {policy.Request{App: "new", Key: "k", User: "u"}, noon, want{10, 90, 5, 1e9}},
		"override":           {policy.Request{App: "checkout", Key: "big", User: "u"}, noon, want{20, 180, 180, 1e9}},
		"until, before":      {policy.Request{App: "promo", Key: "bigger"}, noon.Add(-1), want{30, 270, 7, 1e9}},
		"until, at":          {policy.Request{App: "promo", Key: "bigger"}, noon, want{10, 270, 7, 1e9}},
		"user in every app":  {policy.Request{App: "new", User: "alice"}, noon, want{10, 90, 5, 2e9}},
		"user of the app":    {policy.Request{App: "checkout", User: "alice"}, noon.Add(-1), want{20, 90, 5, 3e9}},
		"user, lapsed":       {policy.Request{App: "checkout", User: "alice"}, noon, want{20, 90, 5, 2e9}},
		"user with slash":    {policy.Request{App: "other", User: "a/b"}, noon, want{10, 90, 5, 4e9}},
		"other split":        {policy.Request{App: "other/a", User: "b"}, noon, want{10, 90, 5, 1e9}},
		"key is no user":     {policy.Request{App: "other", Key: "k"}, noon, want{10, 90, 5, 1e9}},
		"user named as path": {policy.Request{App: "new", User: "checkout/alice"}, noon.Add(-1), want{10, 90, 5, 1e9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(map[string]policy.Applied)
			for _, a := range p.Match(test.r, test.now, nil) {
				got[a.Limit.Name] = a
			}
			require.Equal(t, test.want, want{
				got["budget"].Value, got["bucket"].Value, got["bucket"].Burst, got["users"].Value,
			})
			require.Equal(t, int64(9), got["flight"].Value)
			require.Zero(t, got["budget"].Burst)
		})
	}
}

func TestMatchAppends(t *testing.T) {
	t.Parallel()
	p := parse(t, head+`
  - {name: day, tier: app, budget: {usd: 1, per: day}}
  - {name: month, tier: app, budget: {usd: 1, per: month}}
`)
	kept := policy.Applied{Subject: "kept", Value: 1}
	got := p.Match(request, noon, []policy.Applied{kept})
	require.Len(t, got, 3)
	require.Equal(t, kept, got[0])
	require.Equal(t, "app:checkout", got[1].Subject)
	require.Equal(t, "app:checkout", got[2].Subject)
	require.Equal(t, p.Limits[0].Family, p.Limits[1].Family, "both budgets look at one subject")
	require.Empty(t, parse(t, "version: 1").Match(request, noon, nil))
}

// TestMatchMany passes what Match keeps on its stack.
func TestMatchMany(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(head)
	for i := range 100 {
		b.WriteString("  - {name: l" + strings.Repeat("x", i) + ", tier: key, by: [user, model], match: {key: [" +
			strings.Repeat("k, ", i%2) + strings.Repeat("z", i+1) + ", k_7f]}, budget: {usd: 1, per: day}}\n")
	}
	p := parse(t, b.String())
	got := p.Match(request, noon, nil)
	require.Len(t, got, 100)
	for i, a := range got {
		require.Equal(t, p.Limits[i], a.Limit)
		require.Equal(t, "key:k_7f[model=fast,user=checkout/alice]"+strings.TrimPrefix(a.Limit.Family, "key[model,user]"), a.Subject)
	}
}

func TestSubjectEscapes(t *testing.T) {
	t.Parallel()
	p := parse(t, head+"  - {name: a, tier: key, rate: {requests: 1, per: day}}\n  - {name: u, tier: user, rate: {requests: 1, per: day}}")
	long := strings.Repeat("x", 129)
	for _, test := range []struct{ app, key, user, wantKey, wantUser string }{
		{"a", "k", "u", "key:k", "user:a/u"},
		{"a", "k", "", "key:k", "user:a/~k"},
		{"a", "k", "~k", "key:k", "user:a/%7Ek"},
		{"a", "", "", "key:%-", "user:a/~%-"},
		{"", "%-", "%-", "key:%25-", "user:%-/%25-"},
		{"a/b", "k/l", "c", "key:k/l", "user:a%2Fb/c"},
		{"a", "k", "b/c", "key:k", "user:a/b%2Fc"},
		{"a", "[]?,=:{}%~", "u", "key:%5B%5D%3F%2C%3D%3A%7B%7D%25%7E", "user:a/u"},
		{"a", "x y\n\x00\x7f", "ü", "key:x%20y%0A%00%7F", "user:a/%C3%BC"},
		{"a", strings.Repeat("x", 128), "u", "key:" + strings.Repeat("x", 128), "user:a/u"},
		{
			"a", long, long, "key:%sha256-0ec9eb33e74510bcdd1f2ea55206e82f21649c5c2becbf2b433eb475b34c01bd",
			"user:a/%sha256-0ec9eb33e74510bcdd1f2ea55206e82f21649c5c2becbf2b433eb475b34c01bd",
		},
	} {
		r := policy.Request{App: test.app, Key: test.key, User: test.user}
		require.Equal(t, []string{"a " + test.wantKey, "u " + test.wantUser}, met(p, r, noon))
	}
}

func TestProjection(t *testing.T) {
	t.Parallel()
	p := parse(t, head+`
  - {name: rate, tier: app, rate: {requests: 1, per: day}}
  - {name: total, tier: platform, budget: {usd: 20000, per: total}, hard: true}
  - name: users
    tier: user
    by: [model]
    match: {plan: free}
    budget: {tokens: 10, per: day}
    overrides:
      alice: {tokens: 20}
      checkout/a/b: {tokens: 30, until: 2026-12-02T00:00:00Z}
      lapsed: {tokens: 40, until: 2026-12-01T12:00:00Z}
`)
	got := p.Projection(noon)
	require.Equal(t, event.Policy{Revision: p.Revision, Limits: []event.PolicyLimit{
		{
			Name: "total", Tier: ledger.TierPlatform, Family: "platform", Unit: ledger.UnitUSD, Period: ledger.PeriodTotal,
			Limit: 20_000_000_000_000, Hard: true,
		},
		{
			Name: "users", Tier: ledger.TierUser, Family: "user[model]?plan=free", Unit: ledger.UnitTokens,
			Period: ledger.PeriodDay, Limit: 10, Overrides: []event.PolicyOverride{
				{Name: "alice", Limit: 20},
				{Name: "checkout/a%2Fb", Limit: 30, Until: time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)},
			},
		},
	}}, got)
	applied := p.Match(policy.Request{App: "checkout", User: "a/b", Plan: "free"}, noon, nil)
	counter := ledger.Counter{Subject: applied[len(applied)-1].Subject}
	require.Equal(t, "checkout/a%2Fb", counter.Name(), "finance finds the override by the counter's name")
	require.Equal(t, []event.PolicyLimit{}, parse(t, "version: 1").Projection(noon).Limits, "encodes as [], not null")
}

func TestCheckApp(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "checkout", "App_2-x", strings.Repeat("a", 128)} {
		require.NoError(t, policy.CheckApp(name))
	}
	for _, name := range []string{"", "a b", "a.b", "a*", "a>", "a/b", "ä", "{a}", "a\n", "shared", strings.Repeat("a", 129)} {
		require.Error(t, policy.CheckApp(name), name)
	}
}

const tenLimits = head + `
  - {name: platform-month, tier: platform, budget: {usd: 20000, per: month}}
  - {name: app-day, tier: app, budget: {tokens: 5000000, per: day}, overrides: {checkout: {tokens: 20000000}, promo: {tokens: 1, until: 2026-12-02T00:00:00Z}}}
  - {name: app-month, tier: app, budget: {usd: 100, per: month}}
  - {name: key-day, tier: key, budget: {usd: 10, per: day}}
  - {name: key-month, tier: key, budget: {usd: 50, per: month}}
  - {name: user-day, tier: user, budget: {requests: 1000, per: day}, overrides: {alice: {requests: 5}}}
  - {name: user-month, tier: user, budget: {usd: 5, per: month}}
  - {name: key-rpm, tier: key, by: [model, endpoint], rate: {requests: 60, per: minute, algorithm: sliding_log}}
  - {name: paid-day, tier: key, match: {plan: paid}, rate: {requests: 100, per: day, burst: 20, algorithm: token_bucket}}
  - {name: upstream-tpm, tier: provider, by: [model], rate: {tokens: 100000, per: minute, algorithm: sliding_log, headroom: 30%}}
`

// TestMatchAllocates cannot run beside other tests, whose allocations it would count.
func TestMatchAllocates(t *testing.T) { //nolint:paralleltest // see above
	p := parse(t, tenLimits)
	dst := make([]policy.Applied, 0, 16)
	allocs := testing.AllocsPerRun(100, func() { dst = p.Match(request, noon, dst[:0]) })
	require.Len(t, dst, 10)
	require.LessOrEqual(t, allocs, 1.0, "all subjects share one allocation")
}

func BenchmarkMatch(b *testing.B) {
	p := parse(b, tenLimits)
	dst := make([]policy.Applied, 0, 16)
	b.ReportAllocs()
	for b.Loop() {
		dst = p.Match(request, noon, dst[:0])
	}
	require.Len(b, dst, 10)
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		parse(b, tenLimits)
	}
}
