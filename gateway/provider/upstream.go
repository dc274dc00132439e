package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tollgate/ledger/policy"
)

// Upstream is one provider's HTTP end. It is safe for concurrent use.
type Upstream struct {
	Name     string
	BaseURL  string // with /v1, without a slash at the end
	Timeouts Timeouts
	Clock    func() time.Time // by which keys rest; nil is time.Now
	keys     []*Key
	client   *http.Client
	speaks   protocol
	api      policy.API
	version  string // of Azure's dated routes
}

// NewTransport makes the connection pool that upstreams share, and bounds the phases of a call that are its own. It never asks for
// compression: what cannot be read cannot be metered.
func NewTransport(t Timeouts) *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: t.Dial, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   t.TLS,
		ResponseHeaderTimeout: t.Header,
		ForceAttemptHTTP2:     true,
		// A connection that died unnoticed, behind a firewall say, would take every request on it along.
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		MaxIdleConns:        2048,
		MaxIdleConnsPerHost: 1024, // as many as are in flight at a time: a burst that ends leaves its connections for the next
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		WriteBufferSize:     16 << 10,
		ReadBufferSize:      16 << 10,
	}
}

// NewUpstream binds a provider and its keys, in the policy's order, to the pool.
func NewUpstream(p *policy.Provider, transport http.RoundTripper, secrets ...string) *Upstream {
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	u := &Upstream{
		Name: p.Name, BaseURL: p.BaseURL, client: &http.Client{Transport: transport, CheckRedirect: noRedirect},
		speaks: protocols[p.Protocol], api: p.API, version: p.APIVersion,
	}
	for i, secret := range secrets {
		k := &Key{Name: policy.DefaultKey, secret: secret, weight: 1, health: &health{}}
		if i < len(p.Keys) {
			k.Name, k.weight = p.Keys[i].Name, p.Keys[i].Weight
		}
		u.keys = append(u.keys, k)
	}
	return u
}

// Target is what a request is sent to: a path of the caller's API, below the provider's base URL.
type Target struct {
	Method string
	Path   string // escaped
	Query  string
	Model  string // the provider's name for it, "" where the request is of none
}

// url is where the target is found with this provider.
func (u *Upstream) url(to Target) string {
	path := strings.TrimPrefix(to.Path, u.speaks.version)
	if u.api == policy.APIAzure && u.version != "" {
		return u.azureURL(path, to)
	}
	url := u.BaseURL + path
	if to.Query != "" {
		url += "?" + to.Query
	}
	return url
}

// azureURL is an address of Azure's dated API: what is made by a model is below its deployment, and each request names a version.
// Its undated API is addressed as OpenAI's is.
func (u *Upstream) azureURL(path string, to Target) string {
	query := "api-version=" + url.QueryEscape(u.version)
	if to.Query != "" {
		query += "&" + to.Query
	}
	if to.Model != "" && !strings.HasPrefix(path, "/responses") {
		path = "/deployments/" + url.PathEscape(to.Model) + path
	}
	return u.BaseURL + "/openai" + path + "?" + query
}

// authorize sets the provider's key.
func (u *Upstream) authorize(header http.Header, key *Key) {
	if u.api == policy.APIAzure {
		header.Set("Api-Key", key.secret)
		return
	}
	u.speaks.authorize(header, key.secret)
}

// Payload is a body to send, in memory or in a file. It may be sent any number of times.
type Payload struct {
	io.ReaderAt
	Size int64
}

// Bytes is a payload in memory, which must not change any more.
func Bytes(body []byte) Payload { return Payload{bytes.NewReader(body), int64(len(body))} }

func (p Payload) reader() io.ReadCloser {
	if p.Size == 0 {
		return http.NoBody
	}
	return io.NopCloser(io.NewSectionReader(p, 0, p.Size))
}

// Now is the time by which its keys rest.
func (u *Upstream) Now() time.Time {
	if u.Clock == nil {
		return time.Now()
	}
	return u.Clock()
}

// Send sends a request once and returns its answer, whatever its status; the caller closes the body, which ends the call. The key
// learns how it fared. Every error is a *SendError.
func (u *Upstream) Send(ctx context.Context, key *Key, to Target, header http.Header, body Payload) (*http.Response, error) {
	sent := u.Now()
	key.begin(to.Model, sent)
	callCtx, cancel := context.WithCancelCause(ctx)
	end := func() {
		cancel(nil)
		key.end()
	}
	if total := u.Timeouts.Total; total > 0 {
		timer := time.AfterFunc(total, func() { cancel(&TimeoutError{PhaseTotal, total}) })
		end = func() {
			timer.Stop()
			cancel(nil)
			key.end()
		}
	}
	response, err := u.send(callCtx, key, to, header, body)
	if err != nil {
		if cause := context.Cause(callCtx); cause != nil && ctx.Err() == nil {
			err.Err = fmt.Errorf("provider %s: %w", u.Name, cause)
		}
		key.unanswered(to.Model, ctx.Err() != nil, u.Now(), u.Timeouts.Down)
		end()
		return nil, err
	}
	key.answered(to.Model, response.StatusCode, response.Header, sent, u.Now(), u.Timeouts.Down)
	answer := &answerBody{ReadCloser: response.Body, ctx: callCtx, idle: u.Timeouts.Idle, close: sync.OnceFunc(end)}
	if answer.idle > 0 {
		answer.late = time.AfterFunc(time.Hour, func() { cancel(&TimeoutError{PhaseIdle, answer.idle}) })
		answer.late.Stop()
	}
	response.Body = answer
	decode(response)
	return response, nil
}

func (u *Upstream) send(ctx context.Context, key *Key, to Target, header http.Header, body Payload) (*http.Response, *SendError) {
	var wrote atomic.Bool
	var kept atomic.Pointer[time.Time] // since when the provider has the whole request, without a word of an answer
	var phase atomic.Value
	phase.Store(PhaseConnect)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeStart: func() { phase.Store(PhaseTLS) },
		WroteHeaders: func() {
			wrote.Store(true)
			phase.Store(PhaseFirstByte)
		},
		WroteRequest: func(written httptrace.WroteRequestInfo) {
			if now := time.Now(); written.Err == nil {
				kept.Store(&now)
			}
		},
		GotFirstResponseByte: func() { kept.Store(nil) },
	})
	request, err := http.NewRequestWithContext(ctx, to.Method, u.url(to), body.reader())
	if err != nil {
		return nil, &SendError{Err: fmt.Errorf("provider %s: %w", u.Name, err)}
	}
	request.ContentLength = body.Size
	request.GetBody = func() (io.ReadCloser, error) { // for the transport to send it again
		if since := kept.Load(); since != nil && time.Since(*since) > refusedWithin {
			return nil, errMaybeServed
		}
		return body.reader(), nil
	}
	request.Header = header
	u.authorize(request.Header, key)
	response, err := u.client.Do(request)
	if err != nil {
		err = u.Timeouts.timed(err, phase.Load().(Phase))
		return nil, &SendError{Err: fmt.Errorf("provider %s: %w", u.Name, err), Sent: wrote.Load()}
	}
	return response, nil
}

// refusedWithin is how soon a provider that has a whole request tells that it did not begin with it. One that has kept it for longer may
// have served it.
const refusedWithin = time.Second

// errMaybeServed is why a request is not sent again whose HTTP/2 stream the provider has reset: net/http would, also after
// PROTOCOL_ERROR, which says nothing of what was done before it.
var errMaybeServed = errors.New("the stream was reset after the request had been taken")

// Headers that never cross the gateway: hop-by-hop ones, credentials, what would let a caller move its spend to another account of
// the provider, and Google's mask of fields, which could hide the usage.
var notForwarded = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Authorization": true, "X-Api-Key": true, "Api-Key": true, "X-Goog-Api-Key": true, "Cookie": true, "Host": true, "Content-Length": true,
	"Accept-Encoding": true, "Expect": true, "Forwarded": true, "X-Real-Ip": true,
	"Openai-Organization": true, "Openai-Project": true, "Anthropic-Workspace-Id": true, "X-Goog-User-Project": true,
	"X-Goog-Fieldmask": true,
}

var notReturned = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Connection": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Set-Cookie": true,
	"Openai-Organization": true, "Openai-Project": true, "Anthropic-Organization-Id": true,
}

// notReturnedPrefixes begin the names of what the gateway says in its own name: no provider can say it. Their own rate limits
// are the gateway's, not the caller's.
var notReturnedPrefixes = []string{
	"X-Tollgate-", "X-Ratelimit", "X-Rate-Limit", "Ratelimit", "Anthropic-Ratelimit", "Anthropic-Priority", "Anthropic-Fast",
}

// ForwardHeader is the header to send upstream for a caller's request.
func ForwardHeader(from http.Header) http.Header {
	to := make(http.Header, len(from)+2)
	named := connectionNamed(from)
	for name, values := range from {
		if notForwarded[name] || named[name] || strings.HasPrefix(name, "X-Tollgate-") || strings.HasPrefix(name, "X-Forwarded-") {
			continue
		}
		// net/http takes an idempotency key as leave to send a POST again by itself. Sent in lower case it reaches the
		// provider and stays unseen by the transport.
		if name == "Idempotency-Key" || name == "X-Idempotency-Key" {
			name = strings.ToLower(name)
		}
		to[name] = values
	}
	to["Accept-Encoding"] = []string{"identity"}
	return to
}

// ReturnHeader copies a provider's header to the caller's answer, without its rate limits. How long to wait passes, on an error
// of the provider's it is the caller's only advice; but not a wait of nothing, which makes SDKs come back at once.
func ReturnHeader(to, from http.Header) {
	named := connectionNamed(from)
	for name, values := range from {
		if notReturned[name] || named[name] || hasPrefix(name, notReturnedPrefixes) {
			continue
		}
		if (name == "Retry-After" || name == "Retry-After-Ms") && noWait(values) {
			continue
		}
		to[name] = values
	}
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// noWait reports whether a wait is told as a number that is none.
func noWait(values []string) bool {
	n, err := strconv.ParseFloat(strings.TrimSpace(values[0]), 64)
	return err == nil && !(n > 0)
}

func connectionNamed(h http.Header) map[string]bool {
	var named map[string]bool
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if named == nil {
				named = map[string]bool{}
			}
			named[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	return named
}
