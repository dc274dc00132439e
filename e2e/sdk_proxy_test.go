package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// attempt is one request of an SDK, with the gateway's answer to it.
type attempt struct {
	asked    time.Time // it arrived
	answered time.Time // the answer's header was there, and was not sent on yet
	retry    string    // how many the SDK says it has made before
	status   int
	header   http.Header
	body     []byte // of an answer that is no success
}

// attempts are those of one call.
type attempts struct {
	url   string        // that the call is made to
	first chan struct{} // closed with the first answer
	pass  chan struct{} // closed to let the first answer go on to the SDK

	mu    sync.Mutex // guards what follows
	all   []attempt
	ended bool
}

// end returns the attempts that have been answered. An SDK that makes another later, because its caller could not stop it, does
// not reach the gateway any more. Where there was no answer at all, those who wait for the first wait no longer.
func (a *attempts) end() []attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	if len(a.all) == 0 {
		close(a.first)
	}
	return a.all
}

func (a *attempts) hasEnded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// counter stands between SDKs and the gateway and notes every attempt. It is safe for concurrent use.
type counter struct {
	url string

	mu    sync.Mutex // guards calls
	calls map[string]*attempts
}

type attemptKey struct{}

// newCounter starts one before the gateway at target; it ends with the test.
func newCounter(t *testing.T, target string) *counter {
	t.Helper()
	to, err := url.Parse(target)
	require.NoError(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	c := &counter{calls: map[string]*attempts{}}
	proxy := &httputil.ReverseProxy{
		Transport:      transport,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: c.answered,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		c.mu.Lock()
		call := c.calls[id]
		c.mu.Unlock()
		if call == nil || call.hasEnded() {
			http.Error(w, "no such call", http.StatusNotFound)
			return
		}
		one := &attempt{asked: time.Now(), retry: r.Header.Get("X-Stainless-Retry-Count")}
		ctx := context.WithValue(r.Context(), attemptKey{}, func(res *http.Response) error { return call.add(one, res) })
		r = r.Clone(ctx)
		r.URL.Path, r.URL.RawPath = "/"+path, ""
		proxy.ServeHTTP(w, r)
	}))
	c.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections() // of callers that still wait
		server.Close()
		transport.CloseIdleConnections()
	})
	return c
}

func (c *counter) answered(res *http.Response) error {
	return res.Request.Context().Value(attemptKey{}).(func(*http.Response) error)(res)
}

// begin makes the place where the attempts of one call are noted.
func (c *counter) begin() *attempts {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := fmt.Sprint(len(c.calls) + 1)
	a := &attempts{url: c.url + "/" + id, first: make(chan struct{}), pass: make(chan struct{})}
	c.calls[id] = a
	return a
}

func (a *attempts) add(one *attempt, res *http.Response) error {
	one.status, one.header = res.StatusCode, res.Header.Clone()
	if res.StatusCode != http.StatusOK {
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		one.body, res.Body = body, io.NopCloser(bytes.NewReader(body))
	}
	if a.note(one) {
		select {
		case <-a.pass:
		case <-res.Request.Context().Done():
		}
	}
	return nil
}

// note reports whether it was the first answer.
func (a *attempts) note(one *attempt) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	one.answered = time.Now()
	a.all = append(a.all, *one)
	if first = len(a.all) == 1; first {
		close(a.first)
	}
	return first
}
