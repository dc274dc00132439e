package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

// dialed is a connection to the gateway that speaks HTTP by hand.
func (w *world) dialed() (net.Conn, *bufio.Reader) {
	w.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	require.NoError(w, err)
	require.NoError(w, conn.SetDeadline(time.Now().Add(patience)))
	w.Cleanup(func() { _ = conn.Close() })
	return conn, bufio.NewReader(conn)
}

func (w *world) readAnswer(r *bufio.Reader) (status int, body string) {
	w.Helper()
	response, err := http.ReadResponse(r, nil)
	require.NoError(w, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(w, err)
	require.NoError(w, response.Body.Close())
	return response.StatusCode, string(text)
}

func rawRequest(body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nauthorization: bearer %s\r\nContent-Length: %d\r\n%s\r\n%s",
		chatPath, callerSecret, len(body), strings.Join(headers, "\r\n")+strings.Repeat("\r\n", min(1, len(headers))), body)
}

func TestPipelining(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	conn, r := w.dialed()
	one := rawRequest(chatBody(""))
	_, err := io.WriteString(conn, one+rawRequest("{")+one)
	require.NoError(t, err)
	for _, want := range []int{200, 400, 200} {
		status, _ := w.readAnswer(r)
		require.Equal(t, want, status)
	}
	w.events(4)
}

func TestExpectContinue(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" {
			t.Error("the provider was asked to expect")
		}
		plain(rw, r)
	})
	conn, r := w.dialed()
	body := chatBody("")
	_, err := io.WriteString(conn, strings.TrimSuffix(rawRequest(body, "Expect: 100-continue"), body))
	require.NoError(t, err)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
	_, err = r.ReadString('\n')
	require.NoError(t, err)
	_, err = io.WriteString(conn, body)
	require.NoError(t, err)
	status, _ := w.readAnswer(r)
	require.Equal(t, 200, status)

	// A caller that is refused does not send its body.
	_, err = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
	require.NoError(t, err)
	status, _ = w.readAnswer(r)
	require.Equal(t, 401, status)
}

// chunked is a body of unknown length.
type chunked struct{ io.Reader }

func TestChunkedUpload(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"fits":      {chatBody(""), 200},
		"largest":   {chatBody("") + strings.Repeat(" ", 1<<20-len(chatBody(""))), 200},
		"too large": {chatBody("") + strings.Repeat(" ", 1<<20-len(chatBody(""))+1), 413},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", w.url+chatPath, chunked{strings.NewReader(c.body)})
		require.NoError(t, err)
		r.Header.Set("X-Api-Key", callerSecret)
		response, err := w.client.Do(r)
		require.NoError(t, err, name)
		require.NoError(t, response.Body.Close())
		require.Equal(t, c.status, response.StatusCode, name)
	}
	require.Equal(t, 200, w.send("POST", chatPath, chatBody("")+strings.Repeat(" ", 1<<20-len(chatBody("")))).StatusCode, "largest with a length")
	w.events(6)
}

// Hop-by-hop headers end here, in both directions, those that Connection names included.
func TestHopByHop(t *testing.T) {
	t.Parallel()
	var sent http.Header
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		sent = r.Header
		rw.Header().Set("Connection", "x-their-hop")
		rw.Header().Set("X-Their-Hop", "1")
		rw.Header().Set("Proxy-Authenticate", "Basic")
		plain(rw, r)
	})
	conn, r := w.dialed()
	_, err := io.WriteString(conn, rawRequest(chatBody(""), "Connection: keep-alive, X-Hop", "X-Hop: 1", "TE: trailers", "Proxy-Authorization: Basic eA==", "Upgrade: h2c", "X-Forwarded-For: 10.0.0.1"))
	require.NoError(t, err)
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	for _, name := range []string{"Connection", "X-Hop", "Te", "Proxy-Authorization", "Upgrade", "X-Forwarded-For"} {
		require.Empty(t, sent.Get(name), name)
	}
	for _, name := range []string{"X-Their-Hop", "Proxy-Authenticate"} {
		require.Empty(t, response.Header.Get(name), name)
	}
}

// On shutdown an answer in progress finishes and is settled; new requests find nobody.
func TestShutdownWhileStreaming(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) {
		events(rw, firstChunk)
		<-proceed
		events(rw, lastChunk, usageChunk, doneChunk)
	})
	conn, r := w.dialed()
	_, err := io.WriteString(conn, rawRequest(chatBody(`,"stream":true`)))
	require.NoError(t, err)
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	stack.Eventually(t, func() error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			return nil
		}
		return fmt.Errorf("still accepts: %w", conn.Close())
	})
	require.Error(t, w.gateway.Ready())
	close(proceed)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, firstChunk+lastChunk+doneChunk, string(text))
	require.NoError(t, <-stopped)
	require.Equal(t, ledger.UsageReported, w.outcome().UsageState)
}

// What does not finish in time is cut, and is on record before Run returns: streams and plain answers that nobody can
// wait for any longer.
func TestShutdownCuts(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Stream") != "" {
			events(rw, firstChunk)
		}
		select {
		case <-r.Context().Done():
		case <-leave:
		}
	})
	t.Cleanup(func() { close(leave) })
	w.config.ShutdownTimeout = 50 * time.Millisecond
	w.run(roomy)
	for _, c := range []struct{ body, header string }{
		{chatBody(""), "X-Plain: 1"},
		{chatBody(`,"stream":true`), "X-Stream: 1"},
		{strings.Replace(chatBody(`,"stream":true`), "gpt-4o-mini", "patient", 1), "X-Stream: 1"},
	} {
		conn, _ := w.dialed()
		_, err := io.WriteString(conn, rawRequest(c.body, c.header))
		require.NoError(t, err)
	}
	w.events(3)
	stack.Eventually(t, func() error {
		if n := w.gateway.active.Load(); n != 3 {
			return fmt.Errorf("%d active", n)
		}
		return nil
	})
	err := w.stop()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, err.Error(), "do not end")
	require.NotContains(t, err.Error(), "flush")
	w.stop = func() error { return nil }
	found := w.events(6)
	require.Len(t, found[event.KindUsed], 3)
	for _, e := range found[event.KindUsed] {
		require.Equal(t, ledger.UsageEstimated, e.Outcome.UsageState)
	}
	require.Zero(t, w.outbox.Pending())
}

func TestStoppingGatewayRefuses(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	w.gateway.stopping.Store(true)
	a := w.chat("")
	require.Equal(t, 503, a.StatusCode)
	require.Equal(t, "SHUTTING_DOWN", w.problemOf(a).Tollgate.Reason)
	require.Equal(t, "1", a.Header.Get("Retry-After"))
	w.events(0)
}
