package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// whole is a stream as the client expects it.
var whole = strings.Repeat("data: {\"choices\":[]}\n\n", streamChunks) + "data: {\"usage\":{}}\n\ndata: [DONE]\n\n"

// serve answers as the path says.
func serve(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
	flush := func() { w.(http.Flusher).Flush() }
	switch r.Header.Get("Authorization") {
	case "Bearer plain":
		io.WriteString(w, `{"usage":{}}`+"\n")
	case "Bearer stream":
		for part := range strings.SplitAfterSeq(whole, "\n\n") {
			io.WriteString(w, part)
			flush()
		}
	case "Bearer cut": // a proxy that hides the cut: the stream ends cleanly, without [DONE]
		io.WriteString(w, strings.TrimSuffix(whole, "data: [DONE]\n\n"))
		flush()
	case "Bearer broken":
		io.WriteString(w, whole[:100])
		flush()
		panic(http.ErrAbortHandler)
	case "Bearer short": // less than Content-Length says
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"usage":{}}`)
		flush()
		panic(http.ErrAbortHandler)
	case "Bearer large":
		fmt.Fprintf(w, `{"usage":%q}`, strings.Repeat("x", 100_000))
	default:
		http.Error(w, "no such key", http.StatusUnauthorized)
	}
}

func startServer(t *testing.T, handler http.HandlerFunc) (address string) {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = nil
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestClientTakesOnlyWholeAnswers(t *testing.T) {
	t.Parallel()
	address := startServer(t, serve)
	for _, c := range []struct {
		key      string
		streamed bool
		problem  string
	}{
		{"plain", false, ""},
		{"large", false, ""},
		{"stream", true, ""},
		{"cut", true, "without [DONE]"},
		{"broken", true, "broke off"},
		{"short", false, "broke off"},
		{"nobody", false, "status 401: no such key"},
		{"plain", true, "without [DONE]"},
	} {
		t.Run(fmt.Sprintf("%s/%t", c.key, c.streamed), func(t *testing.T) {
			t.Parallel()
			operations, err := run(t.Context(), address, []caller{{key: c.key, user: "u"}},
				Load{Streamed: c.streamed, Connections: 2}, 50*time.Millisecond)
			require.NotEmpty(t, operations)
			for _, op := range operations {
				require.Equal(t, c.problem != "", op.failed)
				require.LessOrEqual(t, op.start, op.first)
				require.LessOrEqual(t, op.first, op.end)
			}
			if c.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.problem)
		})
	}
}

func TestClientKeepsItsConnection(t *testing.T) {
	t.Parallel()
	addresses := make(chan string, 1000)
	address := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		addresses <- r.RemoteAddr
		serve(w, r)
	})
	c := newClient(address)
	defer c.close()
	for range 10 {
		first, err := c.do(request(address, caller{key: "stream"}, true))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), first, 10*time.Minute)
		require.Equal(t, whole, string(c.body))
	}
	close(addresses)
	seen := map[string]bool{}
	for a := range addresses {
		seen[a] = true
	}
	require.Len(t, seen, 1)
}

func TestProxyPassesAnswersOn(t *testing.T) {
	t.Parallel()
	upstream := startServer(t, serve)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeProxy(ctx, listener, "http://"+upstream) }()
	c := newClient(listener.Addr().String())
	_, err = c.do(request(upstream, caller{key: "stream"}, true))
	require.NoError(t, err)
	require.Equal(t, whole, string(c.body))
	_, err = c.do(request(upstream, caller{key: "broken"}, true))
	require.ErrorContains(t, err, "broke off", "a cut stream must not look complete")
	c.close()
	cancel()
	require.NoError(t, <-served)
}
