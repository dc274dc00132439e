//go:build !linux

package outbox

import "testing"

// mountSmallDisk needs Linux.
func mountSmallDisk(*testing.T, string) bool { return false }
