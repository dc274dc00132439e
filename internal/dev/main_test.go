package dev_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// asUserEnv makes the test binary become the user it names (a number) and then run the binary of binaryEnv.
const (
	asUserEnv = "DEV_TEST_AS_USER"
	binaryEnv = "DEV_TEST_BINARY"
)

func TestMain(m *testing.M) {
	if user := os.Getenv(asUserEnv); user != "" {
		fmt.Fprintln(os.Stderr, becomeAndRun(user))
		os.Exit(125)
	}
	stack.Main(m, stack.Options{})
}

func becomeAndRun(user string) error {
	id, err := strconv.Atoi(user)
	if err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(id); err != nil {
		return err
	}
	if err := syscall.Setuid(id); err != nil {
		return err
	}
	binary := os.Getenv(binaryEnv)
	return syscall.Exec(binary, append([]string{binary}, os.Args[1:]...), os.Environ())
}

// patience bounds every wait: a start makes a whole database, and the machine may be busy.
const patience = stack.Patience

// running is a `tollgate dev` that is ready.
type running struct {
	*stack.Process
	t   *testing.T
	dir string
	env map[string]string // dev.env, as a shell reads it
}

// devArgs are the arguments of a run in dir on any free ports.
func devArgs(dir string, more ...string) []string {
	return append([]string{"dev", "--data", dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, more...)
}

// cleared keeps what a developer's own environment holds away from a run, and makes it wait for a Redis that a busy machine
// slows down.
func cleared(env []string) []string {
	return append([]string{"OPENAI_API_KEY=", "TOLLGATE_LIMITER_TIMEOUT=1m"}, env...)
}

func start(t *testing.T, dir string, env []string, more ...string) *running {
	t.Helper()
	return await(t, dir, stack.Start(t, "dev", devArgs(dir, more...), cleared(env)))
}

func await(t *testing.T, dir string, p *stack.Process) *running {
	t.Helper()
	r := &running{Process: p, t: t, dir: dir}
	eventually(t, func() error {
		select {
		case <-p.Done():
			t.Fatalf("dev ended by itself:\n%s", p.Log())
		default:
		}
		if !strings.Contains(p.Log(), "Ctrl-C stops everything") {
			return fmt.Errorf("dev is not ready yet:\n%s", p.Log())
		}
		return nil
	})
	if dir != "" {
		r.env = shell(t, filepath.Join(dir, "dev.env"))
	}
	return r
}

// refused runs a dev that must give up, and returns what it said.
func refused(t *testing.T, env, args []string) string {
	t.Helper()
	p := stack.Start(t, "refused dev", args, cleared(env))
	require.Equal(t, 1, p.Wait(patience), p.Log())
	requireNoneLeft(t, descendants(t, p.PID()))
	return p.Log()
}

// eventually polls until check has no error.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			require.NoError(t, check(), "after %s", patience)
			return
		}
	}
}

// shell reads a file of assignments as a shell does, strictly.
func shell(t *testing.T, path string) map[string]string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-euc", `set -a; . "$1"; env`, "sh", path)
	cmd.Env = []string{}
	out, err := cmd.Output()
	require.NoError(t, err)
	vars := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		vars[name] = value
	}
	delete(vars, "PWD")
	delete(vars, "SHLVL")
	delete(vars, "_")
	delete(vars, "OLDPWD")
	return vars
}

// pairs is dev.env as the environment of another process.
func (r *running) pairs() []string {
	var pairs []string
	for name, value := range r.env {
		pairs = append(pairs, name+"="+value)
	}
	return pairs
}

// request sends with the demo key and returns status and body. It is sent again while counters are rebuilt, as SDKs do: a killed
// NATS may have forgotten an acknowledgement, and what it covers is waited for until it has come again.
func (r *running) request(method, path, body string) (status int, text string) {
	r.t.Helper()
	eventually(r.t, func() (err error) {
		status, text, err = r.try(method, path, body)
		require.NoError(r.t, err)
		if strings.Contains(text, `"reason":"REBUILDING"`) {
			return errors.New(text)
		}
		return nil
	})
	return status, text
}

func (r *running) try(method, path, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, r.env["TOLLGATE_URL"]+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer "+r.env["TOLLGATE_API_KEY"])
	if strings.HasPrefix(path, "/v1/messages") {
		request.Header.Set("Anthropic-Version", "2023-06-01")
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func chat(model string) string {
	return `{"model": "` + model + `", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}`
}

// models lists what the policy in force lets callers ask for.
func (r *running) models() []string {
	r.t.Helper()
	status, text := r.request(http.MethodGet, "/v1/models", "")
	require.Equal(r.t, http.StatusOK, status, text)
	var list struct{ Data []struct{ ID string } }
	require.NoError(r.t, json.Unmarshal([]byte(text), &list))
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names
}

// requests is how many requests finance sees, and what they cost together in nano-dollars.
func (r *running) requests() (n int, nanousd int64, err error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.env["DATABASE_URL"])
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `
SELECT count(*), (coalesce(sum(cost_usd), 0) * 1000000000)::bigint FROM finance.requests WHERE settled_at IS NOT NULL`).Scan(&n, &nanousd)
	return n, nanousd, err
}

func (r *running) awaitRequests(want int) {
	r.t.Helper()
	eventually(r.t, func() error {
		n, _, err := r.requests()
		if err == nil && n != want {
			err = fmt.Errorf("%d requests in finance.requests, want %d", n, want)
		}
		return err
	})
}

// stop sends the signal and checks that the run ends well and leaves no process behind.
func (r *running) stop(signal syscall.Signal) {
	r.t.Helper()
	children := descendants(r.t, r.PID())
	require.NotEmpty(r.t, children, "Postgres at least is a child")
	require.NoError(r.t, syscall.Kill(r.PID(), signal))
	require.Equal(r.t, 0, r.Wait(patience), r.Log())
	requireNoneLeft(r.t, children)
}

// tollgate runs another command against the run and returns what it printed.
func (r *running) tollgate(args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), stack.Binary(r.t), args...)
	cmd.Env = append(os.Environ(), r.pairs()...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(r.t, err, "%s\n%s%s", args, out, &stderr)
	return string(out)
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
