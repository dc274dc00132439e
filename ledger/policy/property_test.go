package policy_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// long is a name that a subject shows as a digest, digest what that looks like.
var (
	long   = strings.Repeat("x", 129)
	digest = fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(long)))
)

// names are made of what could confuse a subject: separators, escapes, the forms of absent and long names.
var names = rapid.Custom(func(t *rapid.T) string {
	if rapid.IntRange(0, 3).Draw(t, "kind of name") == 0 {
		return rapid.SampledFrom([]string{"", "-", "%-", "~-", "~", long, digest, "%" + digest, "%25" + digest}).Draw(t, "name")
	}
	pieces := rapid.SampledFrom([]string{
		"a", "b", "/", "~", "%", "%-", "%2F", "2F", "[", "]", "?", ",", "=", ":", "{", "}", " ", "\x00", "ü", "model=a", "default",
		"%sha256-", strings.Repeat("x", 127), "all",
	})
	return strings.Join(rapid.SliceOfN(pieces, 0, 3).Draw(t, "pieces"), "")
})

var requests = rapid.Custom(func(t *rapid.T) policy.Request {
	return policy.Request{
		App: names.Draw(t, "app"), Key: names.Draw(t, "key"), User: names.Draw(t, "user"), Plan: names.Draw(t, "plan"),
		Provider: names.Draw(t, "provider"), ProviderKey: names.Draw(t, "provider key"), Model: names.Draw(t, "model"), Endpoint: names.Draw(t, "endpoint"),
		EndpointKind: names.Draw(t, "kind"), IP: names.Draw(t, "ip"),
	}
})

// identity is who a limit counts, said without any text form: the reference for subjects.
func identity(l *policy.Limit, r policy.Request) []any {
	plan := r.Plan
	if plan == "" {
		plan = policy.DefaultPlan
	}
	user := [3]string{r.App, "named", r.User}
	if r.User == "" {
		user = [3]string{r.App, "by key", r.Key}
	}
	kind := r.EndpointKind
	if kind == "" {
		kind = r.Endpoint
	}
	who := map[string]any{
		"platform": "", "cluster": "", "provider": r.Provider, "plan": plan, "app": r.App, "key": r.Key, "user": user,
		"endpoint": r.Endpoint, "ip": r.IP,
	}
	id := []any{l.Family, who[string(l.Tier)]}
	who["model"], who["endpoint"], who["provider_key"] = r.Model, kind, r.ProviderKey
	for _, dimension := range l.By {
		id = append(id, who[string(dimension)])
	}
	return id
}

// drawLimit parses one limit that the key of r meets.
func drawLimit(t *rapid.T, key string) *policy.Policy {
	tier := rapid.SampledFrom(ledger.Tiers()).Draw(t, "tier")
	var by []string
	for _, dimension := range []string{"model", "endpoint", "provider", "plan", "user", "ip", "app"} {
		if dimension != string(tier) && rapid.Bool().Draw(t, "by "+dimension) {
			by = append(by, dimension)
		}
	}
	if tier == ledger.TierProvider && rapid.Bool().Draw(t, "by provider_key") {
		by = append(by, "provider_key")
	}
	text := fmt.Sprintf("version: 1\nlimits:\n  - name: l\n    tier: %s\n    budget: {usd: 1, per: day}\n", tier)
	if len(by) > 0 {
		text += "    by: [" + strings.Join(by, ", ") + "]\n"
	}
	if key != "" && rapid.Bool().Draw(t, "match") {
		text += fmt.Sprintf("    match: {key: [%q", strings.ReplaceAll(key, "$", "$$"))
		if other := names.Draw(t, "other key"); other != "" && other != key {
			text += fmt.Sprintf(", %q", other)
		}
		text += "]}\n"
	}
	p, err := policy.Parse([]byte(text), nil)
	require.NoError(t, err)
	return p
}

// TestSubjectsNeverCollide: two requests share a subject exactly when the limits that they meet count the same thing.
func TestSubjectsNeverCollide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one, two := requests.Draw(t, "one"), requests.Draw(t, "two")
		// Requests that are almost alike are the ones that could be confused.
		switch rapid.SampledFrom([]string{"different", "alike", "moved"}).Draw(t, "requests are") {
		case "moved":
			two = one
			joined := one.App + "/" + one.User
			cuts := strings.Split(joined, "/")
			cut := rapid.IntRange(1, len(cuts)-1).Draw(t, "cut")
			two.App, two.User = strings.Join(cuts[:cut], "/"), strings.Join(cuts[cut:], "/")
		case "alike":
			two = one
			field := rapid.SampledFrom([]*string{
				&two.App, &two.Key, &two.User, &two.Plan, &two.Provider, &two.ProviderKey, &two.Model, &two.Endpoint, &two.EndpointKind, &two.IP,
			}).Draw(t, "differs in")
			*field = names.Draw(t, "by")
			two.User = rapid.SampledFrom([]string{two.User, "", "~" + two.Key, two.Key}).Draw(t, "user")
		}
		first := drawLimit(t, one.Key)
		second := first
		if rapid.Bool().Draw(t, "two limits") {
			second = drawLimit(t, two.Key)
		}
		a, b := first.Match(one, noon, nil), second.Match(two, noon, nil)
		if len(a) == 0 || len(b) == 0 {
			return
		}
		same := fmt.Sprintf("%q", identity(a[0].Limit, one)) == fmt.Sprintf("%q", identity(b[0].Limit, two))
		if same {
			require.Equal(t, a[0].Subject, b[0].Subject)
		} else {
			require.NotEqual(t, a[0].Subject, b[0].Subject)
		}
		require.Equal(t, a[0].Subject, first.Match(one, noon, nil)[0].Subject, "stable")
		requireClean(t, a[0])
	})
}

// requireClean holds the shape of a subject: what separates appears only where it separates.
func requireClean(t require.TestingT, a policy.Applied) {
	for i := range len(a.Subject) {
		require.True(t, a.Subject[i] > ' ' && a.Subject[i] < 0x7f && !strings.ContainsRune("{}", rune(a.Subject[i])), a.Subject)
	}
	rest, conditions, _ := strings.Cut(a.Subject, "?")
	require.NotContains(t, conditions, "?")
	require.LessOrEqual(t, strings.Count(rest, "["), 1)
	require.Equal(t, strings.Count(rest, "["), strings.Count(rest, "]"))
	require.Equal(t, 1, strings.Count(a.Subject, ":"))
	require.Equal(t, len(a.Limit.By), strings.Count(rest, "="))
	require.Equal(t, max(0, len(a.Limit.By)-1), strings.Count(rest, ","))
}

// FuzzParse: whatever the bytes, Parse returns a usable policy or problems that say where and what.
func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(f, err)
	for _, path := range append(paths, "testdata/contract.yaml") {
		data, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(tenLimits))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := policy.Parse(data, environment)
		if err != nil {
			var problems policy.Problems
			require.ErrorAs(t, err, &problems)
			require.NotEmpty(t, problems)
			require.Nil(t, p)
			require.True(t, slices.IsSortedFunc(problems, func(a, b policy.Problem) int { return a.Line - b.Line }))
			for _, problem := range problems {
				require.NotEmpty(t, problem.Message)
			}
			return
		}
		again, err := policy.Parse(data, environment)
		require.NoError(t, err)
		require.Equal(t, met(p, request, noon), met(again, request, noon))
		for _, a := range p.Match(request, noon, nil) {
			requireClean(t, a)
			require.GreaterOrEqual(t, a.Value, int64(0))
		}
		p.Projection(noon)
	})
}
