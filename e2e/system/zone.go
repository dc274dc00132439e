package system

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Zone makes a time zone in which the clock shows timeOfDay at the instant, to the second, and returns its name for a policy.
// The folder that ZONEINFO names must exist: see UseZones.
func Zone(t testing.TB, instant time.Time, timeOfDay time.Duration) string {
	t.Helper()
	seconds := int64(timeOfDay/time.Second) - instant.UTC().Unix()%86400
	// Offsets stay within half a day, as real ones do.
	switch {
	case seconds > 43200:
		seconds -= 86400
	case seconds < -43200:
		seconds += 86400
	}
	name := fmt.Sprintf("Test_%d", seconds+86400)
	folder := os.Getenv("ZONEINFO")
	require.NotEmpty(t, folder, "UseZones must be called by TestMain")
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err == nil {
		return name
	}
	// In one step: another test process may want the same zone.
	temporary, err := os.CreateTemp(folder, "new-*")
	require.NoError(t, err)
	_, err = temporary.Write(zoneFile(int32(seconds)))
	require.NoError(t, errors.Join(err, temporary.Close()))
	require.NoError(t, os.Rename(temporary.Name(), path))
	return name
}

// UseZones makes the folder from which this process and its children read the zones of Zone. It must run before the first
// time zone is loaded. The folder is shared by all test processes and stays.
func UseZones() error {
	folder := filepath.Join(os.TempDir(), "tollgate-test-zones")
	return errors.Join(os.MkdirAll(folder, 0o755), os.Setenv("ZONEINFO", folder))
}

// zoneFile is a TZif file (RFC 8536, version 1) of one offset for all time.
func zoneFile(offset int32) []byte {
	b := append([]byte("TZif"), make([]byte, 16)...)
	for _, count := range []uint32{0, 0, 0, 0, 1, 4} { // ut, std, leap, transitions, types, characters
		b = binary.BigEndian.AppendUint32(b, count)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(offset))
	return append(b, 0, 0, 'T', 'S', 'T', 0)
}
