package dev_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/gateway"
	"tollgate/internal/dev/services"
	"tollgate/ledger/policy"
)

// serving is a policy that has one model, through the simulator, and no limit.
func serving(model string) string {
	return fmt.Sprintf(`
version: 1
providers:
  house: {protocol: openai, base_url: "${TOLLGATE_SIM_URL}/v1", api_key_env: TOLLGATE_SIM_KEY}
models:
  %s: {provider: house, upstream_model: gpt-4o-mini}
`, model)
}

// requireServes checks that after a push or a start the policy with this one model comes into force.
func (r *running) requireServes(model string) {
	r.t.Helper()
	eventually(r.t, func() error {
		if models := r.models(); len(models) != 1 || models[0] != model {
			return fmt.Errorf("the policy in force has the models %v, want %s", models, model)
		}
		return nil
	})
	status, text := r.request(http.MethodPost, "/v1/chat/completions", chat(model))
	require.Equal(r.t, http.StatusOK, status, text)
}

// Which policy is in force: that of --policy before an older push, a push before everything older, the built-in one where
// nobody said anything since.
func TestPolicyInForce(t *testing.T) {
	t.Parallel()
	dir, given, pushed := t.TempDir(), write(t, "given.yaml", serving("given")), write(t, "pushed.yaml", serving("pushed"))

	// A key for a provider is at hand, but the policy asks for the simulator.
	r := start(t, dir, []string{"OPENAI_API_KEY=sk-for-nobody"}, "--policy", given)
	require.Contains(t, r.Log(), "policy      "+given)
	require.Contains(t, r.Log(), `"model": "given"`, "the example names a model of the policy")
	r.requireServes("given")
	require.Contains(t, r.tollgate("policy", "push", pushed), "pushed as revision 2 ")
	r.requireServes("pushed")
	r.stop(syscall.SIGTERM)

	r = start(t, dir, nil)
	require.Contains(t, r.Log(), "policy      pushed, revision 2 ")
	r.requireServes("pushed")
	r.requireJoinedServes("pushed")
	r.stop(syscall.SIGTERM)

	r = start(t, dir, nil, "--policy", given)
	r.requireServes("given")
	require.Equal(t, serving("given"), r.tollgate("policy", "show"), "nothing older is left to take its place")
	r.requireServes("given")
	r.stop(syscall.SIGTERM)

	r = start(t, dir, nil)
	require.Contains(t, r.Log(), "policy      built-in")
	require.Contains(t, r.models(), "gpt-4o-mini")
	status, text := r.request(http.MethodPost, "/v1/messages", chat("claude-haiku-4-5"))
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, `"model":"claude-haiku-4-5-20251001"`)
	require.Contains(t, r.tollgate("policy", "rollback", "2"), "pushed as revision 5 ")
	r.requireServes("pushed")
	r.stop(syscall.SIGTERM)
}

// requireJoinedServes starts a second gateway from what dev.env says.
func (r *running) requireJoinedServes(model string) {
	r.t.Helper()
	address := stack.FreeAddr(r.t)
	p := stack.Start(r.t, "joined gateway", []string{
		"gateway", "--listen", address, "--admin", stack.FreeAddr(r.t), "--data", r.t.TempDir(),
	}, append(r.pairs(), "TOLLGATE_LIMITER_TIMEOUT=10s"))
	joined := &running{Process: p, t: r.t, env: map[string]string{"TOLLGATE_URL": "http://" + address, "TOLLGATE_API_KEY": r.env["TOLLGATE_API_KEY"]}}
	eventually(r.t, func() error {
		status, text, err := joined.try(http.MethodGet, "/v1/models", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, text)
		}
		return err
	})
	joined.requireServes(model)
	require.Equal(r.t, 0, p.Term())
}

func TestBadPolicyIsToldAtOnce(t *testing.T) {
	t.Parallel()
	bad := serving("m") + "limits:\n  - name: x\n    teir: app\n    budget: {usd: 1, per: day}\n"
	for name, row := range map[string]struct{ text, want string }{
		"misspelt":    {bad, `(?s)policy\.yaml:\n.*line 9, column 5: limits\[0\]\.teir: .*did you mean tier`},
		"no variable": {strings.ReplaceAll(serving("m"), "TOLLGATE_SIM_URL", "NOWHERE_SET"), `(?s)policy\.yaml:\nline 4, column 39: .*NOWHERE_SET`},
		"no YAML":     {"version: [1", `(?s)policy\.yaml:\n.*line 1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, path := t.TempDir(), write(t, "policy.yaml", row.text)
			log := refused(t, nil, devArgs(dir, "--policy", path))
			require.Regexp(t, row.want, log)
			require.NoDirExists(t, filepath.Join(dir, "postgres"), "nothing slow is started before")
			require.NoFileExists(t, filepath.Join(dir, "dev.env"))
		})
	}
	t.Run("no file", func(t *testing.T) {
		t.Parallel()
		require.Contains(t, refused(t, nil, devArgs(t.TempDir(), "--policy", "nowhere.yaml")), "open nowhere.yaml: no such file")
	})
}

// A pushed policy that cannot be used any more is told with the way out, and the way out works.
func TestPushedPolicyThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "nats"), "version: 99\n")
	log := refused(t, nil, devArgs(dir))
	require.Regexp(t, `(?s)pushed, revision 1 .*line 1, column 10: version: .*start with --policy FILE to replace it`, log)

	r := start(t, dir, nil, "--policy", write(t, "given.yaml", serving("given")))
	r.requireServes("given")
	r.stop(syscall.SIGTERM)
}

// put pushes a policy past all checks into a store that nobody serves.
func put(t *testing.T, store, text string) {
	t.Helper()
	server, err := services.StartNATS(t.Context(), services.NATSConfig{StoreDir: store})
	require.NoError(t, err)
	nc, err := nats.Connect(server.ClientURL())
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	bucket, err := gateway.PolicyBucket(t.Context(), js)
	require.NoError(t, err)
	_, err = bucket.PutString(t.Context(), policy.BucketKey, text)
	require.NoError(t, err)
	nc.Close()
	require.NoError(t, server.Stop(t.Context()))
}

// A folder that holds something else than what a run wrote is told by file.
func TestSpoiltRevisionFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy-revision"), []byte("x\n"), 0o600))
	require.Contains(t, refused(t, nil, devArgs(dir)), filepath.Join(dir, "policy-revision"))
}
