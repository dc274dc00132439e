package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for until := time.Now().Add(deadline); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(until) { // goleak gives a goroutine that is ending half a second
			fmt.Fprintln(os.Stderr, "goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// deadline is for whatever must happen: far longer than it takes, also where this process stands still for a while.
const deadline = 2 * time.Minute

// start runs a simulator on a free port until the test ends, and returns its URL.
func start(t testing.TB, cfg Config) (*Server, string) {
	t.Helper()
	require.NoError(t, cfg.Validate())
	cfg.ShutdownTimeout = deadline
	ctx, cancel := context.WithCancel(t.Context())
	s, url, stopped := runUntil(ctx, t, cfg)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-stopped)
	})
	return s, url
}

// httpClient is a client of its own, so that its idle connections end with the test.
func httpClient(t testing.TB) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: deadline}
}

func sdk(t testing.TB, url, key string) openai.Client {
	t.Helper()
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey(key), option.WithAdminAPIKey("admin"),
		option.WithMaxRetries(0), option.WithHTTPClient(httpClient(t)))
}

// do sends a body to a path, with header names and values in turn, and returns the answer, its body to be closed by the test.
func do(t testing.TB, method, url, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewBufferString(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := httpClient(t).Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, answer.Body.Close()) })
	return answer
}

// text reads an answer to its end and requires that it has one.
func text(t testing.TB, answer *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(body)
}

func decode[T any](t testing.TB, body string) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(body), &v), body)
	return v
}

// onlyRecord waits until one request is in the books.
func onlyRecord(t testing.TB, s *Server) Record {
	t.Helper()
	require.Eventually(t, func() bool { return s.Totals().Requests == 1 }, deadline, time.Millisecond)
	records := s.Books(0)
	require.Len(t, records, 1)
	return records[0]
}

const hello = `{"model":"gpt-4o-mini","messages":[{"role":"user","content":"Say hello."}]}`

// streamed is a streamed request that asks for usage and carries a directive.
func streamed(directive string) string {
	return `{"model":"gpt-4o-mini","stream":true,"stream_options":{"include_usage":true},` +
		`"messages":[{"role":"user","content":"Say hello. ` + directive + `"}]}`
}

// runUntil runs a simulator until ctx ends; what Run returned then comes through the channel.
func runUntil(ctx context.Context, t testing.TB, cfg Config) (*Server, string, <-chan error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := New(cfg)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx, listener) }()
	return s, "http://" + listener.Addr().String(), stopped
}
