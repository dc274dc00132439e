package outbox

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// mountSmallDisk puts a file system with little room in the folder. Without the right to, it says so, and limits of the process
// take its place.
func mountSmallDisk(t *testing.T, dir string) bool {
	t.Helper()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,nr_inodes=16")
	if errors.Is(err, syscall.EPERM) {
		return false
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return true
}
