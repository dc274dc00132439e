package provider

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/policy"
)

const secret = "sk-upstream-secret"

// provide starts a provider and returns an upstream of its own pool.
func provide(t *testing.T, header time.Duration, serve http.HandlerFunc) (*Upstream, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(serve)
	transport := NewTransport(Timeouts{Dial: time.Minute, Header: header})
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	return NewUpstream(&policy.Provider{Name: "openai", Protocol: policy.ProtocolOpenAI, BaseURL: server.URL + "/v1"}, transport, secret), server
}

func send(u *Upstream, header http.Header) (*http.Response, error) {
	return u.Send(context.Background(), u.keys[0], Target{Method: http.MethodPost, Path: Chat.Path}, ForwardHeader(header), Bytes([]byte(`{"a":1}`)))
}

func TestSend(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	u, _ := provide(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusTeapot)
	})
	response, err := send(u, http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer tg-caller"}})
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusTeapot, response.StatusCode)
	require.Equal(t, "/v1/chat/completions", got.URL.String())
	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, []string{"Bearer " + secret}, got.Header["Authorization"])
	require.Equal(t, []string{"identity"}, got.Header["Accept-Encoding"])
	require.Equal(t, `{"a":1}`, string(body))
}

func TestSendRefused(t *testing.T) {
	t.Parallel()
	u, server := provide(t, time.Minute, nil)
	server.Close()
	_, err := send(u, nil)
	var failed *SendError
	require.ErrorAs(t, err, &failed)
	require.False(t, failed.Sent)
	require.False(t, failed.Timeout())
	require.NotContains(t, err.Error(), secret)
	u.BaseURL = "http://%zz"
	_, err = send(u, nil)
	require.ErrorAs(t, err, &failed)
	require.False(t, failed.Sent)
}

func TestSendTimesOut(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	u, _ := provide(t, 20*time.Millisecond, func(http.ResponseWriter, *http.Request) { <-leave })
	defer close(leave)
	_, err := send(u, nil)
	var failed *SendError
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.Sent)
	require.True(t, failed.Timeout())
}

func TestSendCancelled(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	u, _ := provide(t, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // then the server notices that the client left
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := u.Send(ctx, u.keys[0], Target{Method: http.MethodPost, Path: Chat.Path}, http.Header{}, Bytes([]byte("{}")))
	var failed *SendError
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, failed.Sent)
}

// A provider that takes a request and closes a connection that was used before gets it once, also when the caller's headers
// would have net/http send it again.
func TestSendOnce(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	u, _ := provide(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		require.Equal(t, "k1", r.Header.Get("Idempotency-Key"), "it reaches the provider all the same")
		if calls.Add(1) == 1 {
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		_ = conn.Close()
	})
	header := http.Header{"Idempotency-Key": {"k1"}, "X-Idempotency-Key": {"k2"}}
	response, err := send(u, header)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	_, err = send(u, header)
	var failed *SendError
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.Sent)
	require.Equal(t, int64(2), calls.Load())
}

func TestRedirectIsAnAnswer(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	u, _ := provide(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	response, err := send(u, nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusTemporaryRedirect, response.StatusCode)
	require.Equal(t, int64(1), calls.Load())
}

func TestForwardHeader(t *testing.T) {
	t.Parallel()
	from := http.Header{}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding",
		"Upgrade", "Authorization", "X-Api-Key", "Api-Key", "Cookie", "Host", "Content-Length", "Accept-Encoding", "Expect", "Forwarded", "X-Real-Ip",
		"OpenAI-Organization", "OpenAI-Project", "Anthropic-Workspace-Id", "X-Tollgate-User", "X-Tollgate-Request-Id", "X-Forwarded-For", "X-Forwarded-Host",
		"X-Goog-User-Project", "X-Goog-FieldMask",
	} {
		from.Set(name, "secret")
	}
	from["Connection"] = []string{"close, x-hop", " X-Other-Hop "}
	from.Set("X-Hop", "secret")
	from.Set("X-Other-Hop", "secret")
	from.Set("Content-Type", "application/json")
	from["X-Many"] = []string{"1", "2"}
	from.Set("Idempotency-Key", "k")
	require.Equal(t, http.Header{
		"Content-Type": {"application/json"}, "X-Many": {"1", "2"}, "idempotency-key": {"k"}, "Accept-Encoding": {"identity"},
	}, ForwardHeader(from))
}

func TestReturnHeader(t *testing.T) {
	t.Parallel()
	from := http.Header{}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
		"Set-Cookie", "OpenAI-Organization", "OpenAI-Project", "X-RateLimit-Remaining-Requests", "RateLimit", "RateLimit-Policy", "RateLimit-Reset",
		"X-Rate-Limit-Reset", "Anthropic-Organization-Id", "Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Input-Tokens-Reset",
		"Anthropic-Priority-Output-Tokens-Limit", "Anthropic-Fast-Input-Tokens-Remaining",
		"X-Tollgate-Request-Id", "X-Tollgate-Model",
	} {
		from.Set(name, "theirs")
	}
	from["Connection"] = []string{"x-hop"}
	from.Set("X-Hop", "theirs")
	from.Set("Retry-After", "3")
	from.Set("X-Request-Id", "r")
	to := http.Header{"X-Tollgate-Request-Id": {"ours"}, "X-Ratelimit-Remaining-Requests": {"9"}}
	ReturnHeader(to, from)
	require.Equal(t, http.Header{
		"X-Tollgate-Request-Id": {"ours"}, "X-Ratelimit-Remaining-Requests": {"9"}, "Retry-After": {"3"}, "X-Request-Id": {"r"},
	}, to)
}

// What a provider says of waiting is passed on, unless it is that there is nothing to wait for.
func TestReturnedWaits(t *testing.T) {
	t.Parallel()
	for value, passed := range map[string]bool{
		"3": true, "0.5": true, " 1 ": true, "Wed, 21 Oct 2026 07:28:00 GMT": true, "soon": true,
		"0": false, "-1": false, "0.0": false, "-0": false, "NaN": false,
	} {
		for _, name := range []string{"Retry-After", "Retry-After-Ms"} {
			to := http.Header{}
			ReturnHeader(to, http.Header{name: {value}})
			require.Equal(t, passed, to.Get(name) != "", "%s: %s", name, value)
		}
	}
}

func TestAnthropicKey(t *testing.T) {
	t.Parallel()
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	transport := NewTransport(Timeouts{Dial: time.Minute, Header: time.Minute})
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	u := NewUpstream(&policy.Provider{Name: "claude", Protocol: policy.ProtocolAnthropic, BaseURL: server.URL + "/v1"}, transport, secret)
	header := ForwardHeader(http.Header{
		"X-Api-Key": {"tg-caller"}, "Authorization": {"Bearer tg-caller"}, "Anthropic-Version": {"2023-06-01"}, "Anthropic-Beta": {"a-1", "b-2"},
	})
	response, err := u.Send(t.Context(), u.keys[0], Target{Method: http.MethodPost, Path: CountTokens.Path}, header, Bytes([]byte("{}")))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "/v1/messages/count_tokens", got.URL.String())
	require.Equal(t, []string{secret}, got.Header["X-Api-Key"])
	require.Empty(t, got.Header["Authorization"])
	require.Equal(t, []string{"2023-06-01"}, got.Header["Anthropic-Version"])
	require.Equal(t, []string{"a-1", "b-2"}, got.Header["Anthropic-Beta"])
}

// The pool speaks HTTP/1.1 to plain addresses, asks for no compression and follows the proxy settings.
func TestTransport(t *testing.T) {
	t.Parallel()
	transport := NewTransport(Timeouts{Dial: time.Minute, Header: 2 * time.Second})
	require.True(t, transport.DisableCompression)
	require.Equal(t, 2*time.Second, transport.ResponseHeaderTimeout)
	require.NotNil(t, transport.Proxy)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conn, err := transport.DialContext(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, listener.Close())
}

// Where a request goes and how it shows its key, by what the policy says of the provider.
func TestTargets(t *testing.T) {
	t.Parallel()
	chat := Target{http.MethodPost, Chat.Path, "", "gpt 4"}
	for name, c := range map[string]struct {
		provider policy.Provider
		to       Target
		url      string
		header   string
	}{
		"OpenAI":       {policy.Provider{Protocol: policy.ProtocolOpenAI, BaseURL: "https://a/v1"}, chat, "https://a/v1/chat/completions", "Authorization"},
		"Groq":         {policy.Provider{Protocol: policy.ProtocolOpenAI, BaseURL: "https://a/openai/v1"}, chat, "https://a/openai/v1/chat/completions", "Authorization"},
		"DeepSeek":     {policy.Provider{Protocol: policy.ProtocolOpenAI, BaseURL: "https://a"}, chat, "https://a/chat/completions", "Authorization"},
		"Azure, dated": {policy.Provider{Protocol: policy.ProtocolOpenAI, BaseURL: "https://a", API: policy.APIAzure, APIVersion: "2024-10-21"}, chat, "https://a/openai/deployments/gpt%204/chat/completions?api-version=2024-10-21", "Api-Key"},
		"Azure, dated, responses": {
			policy.Provider{Protocol: policy.ProtocolOpenAI, BaseURL: "https://a", API: policy.APIAzure, APIVersion: "preview"},
			Target{http.MethodPost, Responses.Path, "", "gpt-5"},
			"https://a/openai/responses?api-version=preview", "Api-Key",
		},
		"Azure": {policy.Provider{Protocol: policy.ProtocolOpenAI, BaseURL: "https://a/openai/v1", API: policy.APIAzure}, chat, "https://a/openai/v1/chat/completions", "Api-Key"},
		"Gemini": {
			policy.Provider{Protocol: policy.ProtocolGemini, BaseURL: "https://a/v1beta"},
			Target{http.MethodPost, GeminiModels + "g:streamGenerateContent", "alt=sse", "g"},
			"https://a/v1beta/models/g:streamGenerateContent?alt=sse", "X-Goog-Api-Key",
		},
	} {
		u := NewUpstream(&c.provider, nil, secret)
		require.Equal(t, c.url, u.url(c.to), name)
		header := http.Header{}
		u.authorize(header, u.keys[0])
		require.Len(t, header, 1, name)
		require.Contains(t, header.Get(c.header), secret, name)
	}
}
