package telemetry_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/internal/telemetry"
)

// lines is a log that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A 304 has no body: what a provider sends all the same is reported by net/http as unsolicited, in its words.
func TestStandardLoggerKeepsQuiet(t *testing.T) {
	const key = "sk-echoed-0123456789"
	var logs lines
	logger, err := telemetry.NewLogger(&logs, telemetry.Config{Level: "info"})
	require.NoError(t, err)
	telemetry.TakeStandard(logger)
	defer func() {
		log.SetOutput(os.Stderr)
		log.SetFlags(log.LstdFlags)
	}()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err == nil {
			_, err = fmt.Fprintf(conn, "HTTP/1.1 304 Not Modified\r\nContent-Length: 40\r\n\r\n%s", request.Header.Get("Authorization"))
		}
		served <- err
		_, _ = io.Copy(io.Discard, conn) // until the client closes
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", key)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.NoError(t, <-served)
	require.Eventually(t, func() bool { return bytes.Contains([]byte(logs.String()), []byte("Unsolicited response")) }, 10*time.Second, time.Millisecond)
	require.NoError(t, listener.Close())

	log.Printf("protocol error: %q", key)
	log.Printf("odd line\n%s", key)
	require.NotContains(t, logs.String(), key)
	require.Contains(t, logs.String(), `"begins":"Unsolicited response received on idle HTTP channel"`)
	require.Contains(t, logs.String(), `"begins":"protocol error:"`)
}
