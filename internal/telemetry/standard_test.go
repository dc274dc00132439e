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
	"strings"
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

// answerUnsolicited answers a request with a body that its status has not, and waits until the client closes.
func answerUnsolicited(t *testing.T, conn net.Conn) {
	defer conn.Close()
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err == nil {
		_, err = fmt.Fprintf(conn, "HTTP/1.1 304 Not Modified\r\nContent-Length: 40\r\n\r\n%s", request.Header.Get("Authorization"))
	}
	if err != nil {
		t.Error(err)
	}
	_, _ = io.Copy(io.Discard, conn)
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
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			answerUnsolicited(t, conn)
		}
	})
	transport := &http.Transport{}
	// A connection whose writer stands still for 50 ms is not kept, and so reports nothing: then another is made.
	told := func() bool { return strings.Contains(logs.String(), "Unsolicited response") }
	for until := time.Now().Add(2 * time.Minute); !told() && time.Now().Before(until); {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", key)
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		for n := 0; n < 1000 && !told(); n++ {
			time.Sleep(time.Millisecond)
		}
		transport.CloseIdleConnections()
	}
	require.True(t, told())
	require.NoError(t, listener.Close())
	served.Wait()

	log.Printf("protocol error: %q", key)
	log.Printf("odd line\n%s", key)
	require.NotContains(t, logs.String(), key)
	require.Contains(t, logs.String(), `"begins":"Unsolicited response received on idle HTTP channel"`)
	require.Contains(t, logs.String(), `"begins":"protocol error:"`)
}
