package services_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"tollgate/internal/dev/services"
)

// helperEnv makes the test binary start services in the directory it names and then wait to be killed.
const helperEnv = "SERVICES_TEST_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		os.Exit(helper(dir))
	}
	goleak.VerifyTestMain(m)
}

// helper prints "ready" and the process ids of the services, ends them when its standard input ends, and prints "stopped".
func helper(dir string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := func() error {
		postgres, err := services.StartPostgres(ctx, services.PostgresConfig{DataDir: filepath.Join(dir, "postgres")})
		if err != nil {
			return err
		}
		redis, err := services.StartRedis(ctx, services.RedisConfig{DataDir: filepath.Join(dir, "redis"), AOF: true})
		if err != nil {
			return err
		}
		fmt.Println("ready", postgres.PID(), redis.PID())
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		}
		if err := postgres.Stop(ctx); err != nil {
			return err
		}
		return redis.Stop(ctx)
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("stopped")
	return 0
}

// stopAtEnd stops a service with the test and requires that its process is gone.
func stopAtEnd(t *testing.T, pid func() int, stop func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		last := pid()
		require.NoError(t, stop(ctx))
		require.NoError(t, stop(ctx), "Stop is idempotent")
		if last != 0 {
			require.True(t, ended(last), "process %d is left", last)
		}
	})
}

func ended(pid int) bool {
	err := syscall.Kill(pid, 0)
	if err != nil {
		return true
	}
	// A zombie whose new parent has not reaped it yet has ended too.
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

// takePort returns a port that another listener has.
func takePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l.Addr().(*net.TCPAddr).Port
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	tests := map[string]func(dir string, port int, flag string) error{
		"postgres": func(dir string, port int, flag string) error {
			_, err := services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: dir, Port: port, PortFlag: flag})
			return err
		},
		"redis": func(dir string, port int, flag string) error {
			_, err := services.StartRedis(t.Context(), services.RedisConfig{DataDir: dir, Port: port, PortFlag: flag})
			return err
		},
		"nats": func(dir string, port int, flag string) error {
			_, err := services.StartNATS(t.Context(), services.NATSConfig{StoreDir: dir, Port: port, PortFlag: flag})
			return err
		},
	}
	for name, start := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := takePort(t)
			err := start(t.TempDir(), port, "--"+name+"-port")
			var taken *services.PortTakenError
			require.ErrorAs(t, err, &taken)
			require.Equal(t, fmt.Sprintf("127.0.0.1:%d", port), taken.Addr)
			require.ErrorContains(t, err, taken.Addr)
			require.ErrorContains(t, err, "--"+name+"-port")
		})
	}
}

func TestDirectoryInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := services.StartNATS(t.Context(), services.NATSConfig{StoreDir: dir})
	require.NoError(t, err)
	stopAtEnd(t, func() int { return 0 }, first.Stop)
	_, err = services.StartNATS(t.Context(), services.NATSConfig{StoreDir: dir})
	require.ErrorIs(t, err, services.ErrDirInUse)
	require.ErrorContains(t, err, dir)
}

// helperProcess is the test binary run as helper.
type helperProcess struct {
	*exec.Cmd
	in   io.Closer
	out  *bufio.Scanner
	pids []int // of its services
}

// runHelper starts the helper as another user (nil: as this one) and waits until its services are ready.
func runHelper(t *testing.T, dir string, as *syscall.Credential) *helperProcess {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	// The test binary lies in a folder that only its owner may enter.
	binary := filepath.Join(dir, "helper")
	text, err := os.ReadFile(self)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(binary, text, 0o755))

	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), helperEnv+"="+dir)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	out := bufio.NewScanner(stdout)
	require.True(t, out.Scan(), "the helper ended")
	words := strings.Fields(out.Text())
	if words[0] != "ready" {
		for out.Scan() {
			t.Log(out.Text())
		}
		require.NoError(t, cmd.Wait())
		t.Fatalf("helper: %v", words)
	}
	h := &helperProcess{Cmd: cmd, in: stdin, out: out}
	for _, word := range words[1:] {
		pid, err := strconv.Atoi(word)
		require.NoError(t, err)
		h.pids = append(h.pids, pid)
	}
	return h
}

func TestServicesDieWithTheirParentAndStartAgain(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	helper := runHelper(t, dir, nil)
	for _, pid := range helper.pids {
		require.False(t, ended(pid))
	}
	require.NoError(t, helper.Process.Kill())
	require.Error(t, helper.Wait())

	// Without a pause: the new server finds the lock file of the old one, which may still be ending.
	postgres, err := services.StartPostgres(t.Context(), services.PostgresConfig{DataDir: filepath.Join(dir, "postgres")})
	require.NoError(t, err)
	stopAtEnd(t, postgres.PID, postgres.Stop)
	redis, err := services.StartRedis(t.Context(), services.RedisConfig{DataDir: filepath.Join(dir, "redis"), AOF: true})
	require.NoError(t, err)
	stopAtEnd(t, redis.PID, redis.Stop)
	for _, pid := range helper.pids {
		require.Eventually(t, func() bool { return ended(pid) }, 2*time.Minute, 10*time.Millisecond)
	}
}

func TestServicesRunWithoutRoot(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	var as *syscall.Credential
	if os.Geteuid() == 0 {
		const nobody = 65534
		as = &syscall.Credential{Uid: nobody, Gid: nobody}
		require.NoError(t, os.Chown(dir, nobody, nobody))
	}
	helper := runHelper(t, dir, as)
	if as != nil {
		info, err := os.Stat(filepath.Join(dir, "postgres", "data"))
		require.NoError(t, err)
		require.Equal(t, as.Uid, info.Sys().(*syscall.Stat_t).Uid)
	}
	require.NoError(t, helper.in.Close())
	require.True(t, helper.out.Scan())
	require.Equal(t, "stopped", helper.out.Text())
	require.NoError(t, helper.Wait())
	for _, pid := range helper.pids {
		require.True(t, ended(pid))
	}
}

// openDir is a directory that every user may enter, which TMPDIR may not be.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "services-test-*")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}
