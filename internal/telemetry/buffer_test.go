package telemetry

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestBufferKeepsOrderAndLosesNothing(t *testing.T) {
	t.Parallel()
	var out lockedBuffer
	buffer := NewBuffer(&out)
	log, err := NewLogger(buffer, Config{Level: "info"})
	require.NoError(t, err)

	log.Warn("first")
	require.Contains(t, out.String(), `"msg":"first"`, "a warning is written at once")
	log.Info("second")
	require.Eventually(t, func() bool { return bytes.Contains([]byte(out.String()), []byte(`"msg":"second"`)) }, 2*time.Minute, 5*time.Millisecond)
	log.Info("third")
	require.NoError(t, buffer.Close())
	require.Regexp(t, `(?s)first.*second.*third`, out.String())
}
