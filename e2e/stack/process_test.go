package stack_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// serverEnv makes the test binary serve HTTP at the address it names until SIGTERM.
const serverEnv = "STACK_TEST_SERVER"

func serve(addr string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if os.Getenv("TOLLGATE_LEAK") != "" {
		fmt.Println("the environment was passed on")
		return 9
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Addr: addr, Handler: mux}
	go func() {
		<-ctx.Done()
		_ = server.Shutdown(context.Background()) // ListenAndServe reports below.
	}()
	fmt.Println("serving")
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		fmt.Println(err)
		return 1
	}
	fmt.Println("bye")
	return 4
}

func startServer(t *testing.T) (p *stack.Process, ready string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	addr := stack.FreeAddr(t)
	p = stack.StartProgram(t, self, "server", nil, []string{serverEnv + "=" + addr})
	ready = "http://" + addr + "/readyz"
	p.WaitReady(ready)
	return p, ready
}

func TestProcessEndsOnTerm(t *testing.T) {
	t.Parallel()
	p, _ := startServer(t)
	p.WaitLog("serving")
	require.Positive(t, p.RSS())
	require.Less(t, p.CPU(), time.Minute)
	require.Equal(t, 4, p.Term())
	require.Contains(t, p.Log(), "bye")
}

func TestProcessIsPausedAndKilled(t *testing.T) {
	t.Parallel()
	p, ready := startServer(t)
	client := &http.Client{Timeout: 200 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	p.Pause()
	_, err := client.Get(ready)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	p.Resume()
	p.WaitReady(ready)
	p.Kill()
	require.Equal(t, -1, p.Wait(time.Minute))
	require.ErrorIs(t, syscall.Kill(p.PID(), 0), syscall.ESRCH)
}

func TestEnvironmentOfProcesses(t *testing.T) {
	t.Setenv("TOLLGATE_LEAK", "1")
	p, _ := startServer(t)
	require.Equal(t, 4, p.Term())
}

func TestBinaryIsBuiltOnce(t *testing.T) {
	t.Parallel()
	path := stack.Binary(t)
	require.Equal(t, path, stack.Binary(t))
	out, err := exec.Command("go", "version", "-m", path).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "tollgate")
	p := stack.Start(t, "tollgate", []string{"no-such-command"}, nil)
	p.Wait(time.Minute)
}

func TestOwnServersSurviveKill(t *testing.T) {
	t.Parallel()
	server, url := stack.NewPostgres(t)
	_, err := connect(t, url).Exec(t.Context(), "INSERT INTO marks VALUES (1)")
	require.NoError(t, err)
	require.NoError(t, server.Kill())
	require.NoError(t, server.Restart(t.Context()))
	require.Equal(t, 1, count(t, connect(t, url)))

	redisServer := stack.NewRedis(t)
	require.NoError(t, redisClient(t, redisServer.URL(0)).Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, redisServer.Kill())
	require.NoError(t, redisServer.Restart(t.Context()))
	require.Equal(t, "v", redisClient(t, redisServer.URL(0)).Get(t.Context(), "k").Val())
}
