package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/policy"
)

const soundPolicy = `version: 1
providers:
  house: {protocol: openai, base_url: "${HOUSE}/v1", api_key_env: HOUSE_KEY}
models:
  small: {provider: house, upstream_model: gpt-4o-mini}
limits:
  - {name: app-day, tier: app, budget: {usd: 1, per: day}, hard: true}
`

const house = "HOUSE=http://127.0.0.1:9"

func TestPolicyCheck(t *testing.T) {
	t.Parallel()
	sound := write(t, "sound.yaml", soundPolicy)
	r := mustRun(t, []string{house}, "policy", "check", sound)
	require.Empty(t, r.stderr)
	require.Contains(t, r.stdout, sound+": line 5: models.small: neither the built-in book nor the policy has a price of it")
	require.True(t, strings.HasSuffix(r.stdout, "\n"+sound+": ok, revision "+policy.RevisionOf([]byte(soundPolicy))+", 1 limits\n"), r.stdout)

	for name, row := range map[string]struct {
		text string
		want []string
	}{
		"every problem at once": {
			"version: 1\nlimits:\n  - {name: x, teir: app, budget: {usd: 1, per: day}}\n  - {name: x, tier: app, budget: {eur: 1, per: day}}\n",
			[]string{"line 3, column 15: limits[0].teir: unknown field", "did you mean tier?", "line 4, "},
		},
		"variable not set": {soundPolicy, []string{"line 3, column 39: providers.house.base_url: environment variable HOUSE is not set"}},
		"no YAML":          {"version: [1\n", []string{"line "}},
		"empty":            {"", []string{"version"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, "policy.yaml", row.text)
			r := tollgate(t, nil, "policy", "check", path)
			require.Equal(t, 1, r.code)
			require.NotContains(t, r.stdout, "ok")
			require.Contains(t, r.stderr, "policy "+path)
			for _, want := range row.want {
				require.Contains(t, r.stderr, want)
			}
		})
	}
	r = tollgate(t, nil, "policy", "check", filepath.Join(t.TempDir(), "missing.yaml"))
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "no such file")
}

func TestPolicyPushAndBack(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	env := []string{"NATS_URL=" + server.ClientURL(), house}
	for _, args := range [][]string{{"policy", "show"}, {"policy", "history"}} {
		r := tollgate(t, env, args...)
		require.Equal(t, 1, r.code, "%s", args)
		require.Contains(t, r.stderr, "no policy has been pushed")
	}

	first, second := soundPolicy, soundPolicy+"  - {name: key-day, tier: key, budget: {requests: 5, per: day}}\n"
	path := write(t, "policy.yaml", first)
	require.Contains(t, mustRun(t, env, "policy", "push", path).stdout, "pushed as revision 1 ("+policy.RevisionOf([]byte(first))+")\n")
	require.NoError(t, os.WriteFile(path, []byte(second), 0o600))
	mustRun(t, env, "policy", "push", path)

	require.NoError(t, os.WriteFile(path, []byte("version: 2\n"), 0o600))
	r := tollgate(t, env, "policy", "push", path)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "line 1, column 10: version")
	require.Equal(t, second, mustRun(t, env, "policy", "show").stdout, "a bad file changes nothing")

	require.Contains(t, mustRun(t, env, "policy", "rollback", "1").stdout, "pushed as revision 3 ("+policy.RevisionOf([]byte(first))+")\n")
	require.Equal(t, first, mustRun(t, env, "policy", "show").stdout)
	history := lines(mustRun(t, env, "policy", "history").stdout)
	require.Len(t, history, 3)
	for i, text := range []string{first, second, first} {
		require.Regexp(t, `^`+string(rune('1'+i))+` \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ `+policy.RevisionOf([]byte(text))+`$`, history[i])
	}

	stale := tollgate(t, env, "policy", "push", "--expect", "2", write(t, "other.yaml", second))
	require.Equal(t, 1, stale.code)
	require.Contains(t, stale.stderr, "revision 3 is in force, not 2")
	require.Equal(t, first, mustRun(t, env, "policy", "show").stdout)
	require.Contains(t, mustRun(t, env, "policy", "push", "--expect", "3", write(t, "other.yaml", second)).stdout, "pushed as revision 4 ")
	mustRun(t, env, "policy", "rollback", "1")

	for revision, want := range map[string]string{"9": "revision 9: ", "first": `revision "first" is not a number`, "-1": "unknown shorthand flag"} {
		r := tollgate(t, env, "policy", "rollback", revision)
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, want)
	}
	require.NoError(t, server.Restart(t.Context()))
	require.Equal(t, first, mustRun(t, env, "policy", "show").stdout, "what was pushed survives the server")
}
