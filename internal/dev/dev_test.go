package dev_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// One life of a folder, below one that nobody else may enter: a first run, others that want its place, a stop, a second run.
func TestFolderLivesOn(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(t.TempDir(), "closed")
	require.NoError(t, os.Mkdir(closed, 0o700))
	dir := filepath.Join(closed, "with 'quotes' in it")
	r := start(t, dir, nil)

	requireBlock(t, r)
	requireEnv(t, r)
	status, text := r.request(http.MethodPost, "/v1/chat/completions", chat("gpt-4o-mini"))
	require.Equal(t, http.StatusOK, status, text)
	r.awaitRequests(1)
	_, nanousd, err := r.requests()
	require.NoError(t, err)
	require.Positive(t, nanousd)
	require.Equal(t, billed(t, r.env["TOLLGATE_SIM_URL"]), nanousd, "the ledger and the provider's books")
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "tollgate_decisions_total"} {
		require.Contains(t, get(t, r.env["TOLLGATE_ADMIN_URL"]+path), want)
	}
	requireOthersStayOut(t, r)

	r.stop(syscall.SIGTERM)
	require.NoFileExists(t, filepath.Join(dir, "dev.env"), "it would tell of addresses that nobody serves")

	again := start(t, dir, nil)
	require.Equal(t, r.env["TOLLGATE_API_KEY"], again.env["TOLLGATE_API_KEY"])
	require.Equal(t, r.env["TOLLGATE_ADMIN_TOKEN"], again.env["TOLLGATE_ADMIN_TOKEN"])
	again.awaitRequests(1)
	status, text = again.request(http.MethodPost, "/v1/chat/completions", chat("gpt-4o-mini"))
	require.Equal(t, http.StatusOK, status, text)
	again.awaitRequests(2)
	require.Contains(t, again.tollgate("ledger", "verify"), "ok ")
	again.stop(syscall.SIGINT)
}

// requireBlock checks that the one block is all that a run prints, and that it holds what a person needs.
func requireBlock(t *testing.T, r *running) {
	t.Helper()
	block := r.Log()
	require.True(t, strings.HasPrefix(block, "\nTollgate is ready.\n"), block)
	require.True(t, strings.HasSuffix(block, "\nCtrl-C stops everything; the data stays.\n"), block)
	for _, name := range []string{"TOLLGATE_URL", "TOLLGATE_ADMIN_URL", "TOLLGATE_API_KEY", "DATABASE_URL", "REDIS_URL", "NATS_URL", "TOLLGATE_SIM_URL"} {
		require.Contains(t, block, r.env[name], name)
	}
	require.Contains(t, block, "curl "+r.env["TOLLGATE_URL"]+"/v1/chat/completions -H \"Authorization: Bearer "+r.env["TOLLGATE_API_KEY"])
	require.Contains(t, block, `psql "`+r.env["DATABASE_URL"]+`" -c "SELECT`)
	require.Contains(t, block, "policy      built-in")
	require.NotContains(t, block, r.env["TOLLGATE_ADMIN_TOKEN"])
}

// requireEnv checks dev.env: complete, for its owner only, and every address in it answers on loopback.
func requireEnv(t *testing.T, r *running) {
	t.Helper()
	info, err := os.Stat(filepath.Join(r.dir, "dev.env"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	names := []string{
		"DATABASE_URL", "NATS_URL", "REDIS_URL", "TOLLGATE_ADMIN_TOKEN", "TOLLGATE_ADMIN_URL", "TOLLGATE_API_KEY",
		"TOLLGATE_SIM_KEY", "TOLLGATE_SIM_URL", "TOLLGATE_URL",
	}
	for _, name := range names {
		require.NotEmpty(t, r.env[name], name)
	}
	require.Len(t, r.env, len(names))
	for _, name := range []string{"DATABASE_URL", "NATS_URL", "REDIS_URL", "TOLLGATE_ADMIN_URL", "TOLLGATE_SIM_URL", "TOLLGATE_URL"} {
		require.Contains(t, r.env[name], "127.0.0.1:", name)
	}

	options, err := redis.ParseURL(r.env["REDIS_URL"])
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()).Err())
	nc, err := nats.Connect(r.env["NATS_URL"], nats.Timeout(patience))
	require.NoError(t, err)
	nc.Close()
}

// requireOthersStayOut starts runs that want what r has: each gives up and says what to change.
func requireOthersStayOut(t *testing.T, r *running) {
	t.Helper()
	require.Regexp(t, `is in use by another 'tollgate dev', choose another folder with --data`, refused(t, nil, devArgs(r.dir)))
	for flag, name := range map[string]string{"--listen": "TOLLGATE_URL", "--admin": "TOLLGATE_ADMIN_URL"} {
		address := strings.TrimPrefix(r.env[name], "http://")
		log := refused(t, nil, devArgs(t.TempDir(), flag, address))
		require.Contains(t, log, "address "+address+" cannot be used, choose another with "+flag)
	}
	status, text := r.request(http.MethodGet, "/v1/models", "")
	require.Equal(t, http.StatusOK, status, text)
	require.FileExists(t, filepath.Join(r.dir, "dev.env"), "a run that gave up took it away")
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, string(text))
	return string(text)
}

// A killed run takes its children with it and its folder can be used again.
func TestKilledRunLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, dir, nil)
	status, text := r.request(http.MethodPost, "/v1/chat/completions", chat("gpt-4o-mini"))
	require.Equal(t, http.StatusOK, status, text)
	r.awaitRequests(1)
	children := descendants(t, r.PID())
	require.True(t, slices.ContainsFunc(children, func(p process) bool { return p.name == "redis-server" }), "%v", children)
	r.Kill()
	requireNoneLeft(t, children)

	again := start(t, dir, nil)
	require.Equal(t, r.env["TOLLGATE_API_KEY"], again.env["TOLLGATE_API_KEY"])
	require.NotEqual(t, r.env["TOLLGATE_URL"], again.env["TOLLGATE_URL"], "dev.env is the killed run's")
	again.awaitRequests(1)
	status, text = again.request(http.MethodPost, "/v1/chat/completions", chat("gpt-4o-mini"))
	require.Equal(t, http.StatusOK, status, text)
	again.awaitRequests(2)
	again.stop(syscall.SIGTERM)
}

// A run that is stopped while it starts ends well, and what it left half made does not hinder the next.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var p *stack.Process
	var children []process
	for range 5 { // it may be ready before it was seen to start
		p = stack.Start(t, "dev", devArgs(dir), cleared(nil))
		eventually(t, func() error {
			children = descendants(t, p.PID())
			if len(children) == 0 {
				return fmt.Errorf("nothing is being started yet:\n%s", p.Log())
			}
			return nil
		})
		p.Terminate()
		require.Equal(t, 0, p.Wait(patience), p.Log())
		if !strings.Contains(p.Log(), "ready") {
			break
		}
		requireNoneLeft(t, children)
		dir = t.TempDir()
	}
	requireNoneLeft(t, children)
	require.NotContains(t, p.Log(), "ready")

	start(t, dir, nil).stop(syscall.SIGTERM)
}

func TestEphemeralKeepsNothing(t *testing.T) {
	t.Parallel()
	temporary, dir := t.TempDir(), filepath.Join(t.TempDir(), "unused")
	p := stack.Start(t, "dev", devArgs(dir, "--ephemeral"), cleared([]string{"TMPDIR=" + temporary}))
	r := await(t, "", p)
	require.Contains(t, r.Log(), "Ctrl-C stops everything; nothing is kept.")
	folders, err := filepath.Glob(filepath.Join(temporary, "*", "dev.env"))
	require.NoError(t, err)
	require.Len(t, folders, 1)
	r.env = shell(t, folders[0])
	status, text := r.request(http.MethodPost, "/v1/chat/completions", chat("gpt-4o-mini"))
	require.Equal(t, http.StatusOK, status, text)
	r.stop(syscall.SIGTERM)
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoDirExists(t, dir)
}

const limited = `
version: 1
providers:
  house: {protocol: openai, base_url: "${TOLLGATE_SIM_URL}/v1", api_key_env: TOLLGATE_SIM_KEY}
models:
  small: {provider: house, upstream_model: gpt-4o-mini}
prices:
  - {provider: house, model: gpt-4o-mini, from: 2026-01-01, usd_per_million: {input: 0.15, cached_input: 0.075, output: 0.60}}
limits:
  - {name: app-requests, tier: app, budget: {requests: 3, per: total}}
  - {name: app-usd, tier: app, budget: {usd: 1, per: day}}
  - {name: key-log, tier: key, rate: {requests: 100, per: minute, algorithm: sliding_log}}
  - {name: key-bucket, tier: key, rate: {tokens: 100000, per: minute, algorithm: token_bucket}}
`

// Without redis-server the scripts run on the substitute, and judge the same.
func TestWithoutRedisServer(t *testing.T) {
	t.Parallel()
	r := start(t, t.TempDir(), []string{"PATH=" + t.TempDir()}, "--policy", write(t, "policy.yaml", limited))
	require.Contains(t, r.Log(), "(in-process: no redis-server was found, nothing of it is kept)")
	requireLimited(t, r)
	require.Contains(t, r.tollgate("ledger", "verify"), "ok ")
	r.stop(syscall.SIGTERM)
}

// requireLimited asks until the budget of three requests is used up.
func requireLimited(t *testing.T, r *running) {
	t.Helper()
	for range 3 {
		status, text := r.request(http.MethodPost, "/v1/chat/completions", chat("small"))
		require.Equal(t, http.StatusOK, status, text)
	}
	r.awaitRequests(3)
	status, text := r.request(http.MethodPost, "/v1/chat/completions", chat("small"))
	require.Equal(t, http.StatusTooManyRequests, status, text)
	var refusal struct {
		Tollgate struct {
			Reason    string
			LimitName string `json:"limit_name"`
			Limit     int
			Used      int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &refusal))
	require.Equal(t, "APP_QUOTA", refusal.Tollgate.Reason)
	require.Equal(t, "app-requests", refusal.Tollgate.LimitName)
	require.Equal(t, 3, refusal.Tollgate.Limit)
	require.Equal(t, 3, refusal.Tollgate.Used)
}

// nobody is a user without rights on every system.
const nobody = 65534

// Root runs it as root in all other tests; this is the run of an ordinary user.
func TestAsAnotherUser(t *testing.T) {
	t.Parallel()
	home, err := os.MkdirTemp("", "tollgate-user-*")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(home)) })
	dir, env, binary := filepath.Join(home, "data"), []string{}, stack.Binary(t)
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(home, nobody, nobody))
		env = append(env, fmt.Sprintf("%s=%d", asUserEnv, nobody), binaryEnv+"="+binary, "HOME="+home)
		binary, err = os.Executable()
		require.NoError(t, err)
	}
	r := await(t, dir, stack.StartProgram(t, binary, "dev", devArgs(dir), cleared(env)))
	info, err := os.Stat(filepath.Join(dir, "dev.env"))
	require.NoError(t, err)
	require.NotZero(t, info.Sys().(*syscall.Stat_t).Uid)
	status, text := r.request(http.MethodPost, "/v1/chat/completions", chat("gpt-4o-mini"))
	require.Equal(t, http.StatusOK, status, text)
	r.awaitRequests(1)
	r.stop(syscall.SIGTERM)
}

// With a provider's key at hand there is no simulator. Nothing is asked of the provider here.
func TestWithProviderKey(t *testing.T) {
	t.Parallel()
	const secret = "sk-for-nobody-000000000000"
	r := start(t, t.TempDir(), []string{"OPENAI_API_KEY=" + secret})
	require.Contains(t, r.Log(), "none: OPENAI_API_KEY is set")
	require.Empty(t, r.env["TOLLGATE_SIM_URL"])
	require.Contains(t, r.models(), "gpt-4o-mini")
	shown := r.tollgate("policy", "show")
	require.Contains(t, shown, "base_url: https://api.openai.com/v1\n")
	require.Contains(t, shown, "api_key_env: OPENAI_API_KEY\n")
	require.NotContains(t, shown, "SIM")
	require.NotContains(t, shown, "anthropic", "no provider's answers are made up beside a real one's")
	require.NoError(t, filepath.WalkDir(r.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		require.NotContains(t, string(text), secret, path)
		return err
	}))
	require.NotContains(t, r.Log(), secret)
	r.stop(syscall.SIGTERM)
}

// billed is the sum of the simulator's own books in nano-dollars.
func billed(t *testing.T, sim string) int64 {
	t.Helper()
	var totals struct {
		Requests    int
		CostNanoUSD int64 `json:"cost_nanousd,string"`
	}
	require.NoError(t, json.Unmarshal([]byte(get(t, sim+"/sim/totals")), &totals))
	require.Equal(t, 1, totals.Requests)
	return totals.CostNanoUSD
}
