package stack

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/internal/dev/services"
)

func TestSweepRemovesWhatKilledTestsLeft(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	leave := func(name string, age time.Duration) *os.File {
		dir := filepath.Join(temp, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "postgres"), 0o755))
		owner, err := os.Create(filepath.Join(dir, ownerFile))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, owner.Close()) })
		then := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(owner.Name(), then, then))
		return owner
	}
	leave("tollgate-test-dead", time.Hour)
	leave("tollgate-test-young", 0)
	leave("another-old", time.Hour)
	alive := leave("tollgate-test-alive", time.Hour)
	require.NoError(t, syscall.Flock(int(alive.Fd()), syscall.LOCK_EX))

	sweep()

	require.NoDirExists(t, filepath.Join(temp, "tollgate-test-dead"))
	for _, name := range []string{"tollgate-test-young", "tollgate-test-alive", "another-old"} {
		require.DirExists(t, filepath.Join(temp, name))
	}
}

func TestMissingRedisServerIsAnError(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := startRedis(t.Context(), services.RedisConfig{DataDir: t.TempDir()})
	require.ErrorContains(t, err, "redis-server is not installed")
}
