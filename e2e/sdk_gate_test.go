package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// gateHeader names the hold that a request waits in, between gateway and simulator.
const gateHeader = "X-Gate"

// eventually is for goroutines beside the test's.
func eventually(check func() error) error {
	for end := time.Now().Add(system.Patience); ; time.Sleep(20 * time.Millisecond) {
		if err := check(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// gate stands before the simulator and keeps requests in flight for exactly as long as a test wants. It is safe for concurrent use.
type gate struct {
	url    string
	target atomic.Pointer[url.URL]

	mu    sync.Mutex // guards holds
	holds map[string]*hold
}

// hold is one request that is kept in flight.
type hold struct {
	arrived chan struct{} // closed when the request is at the gate
	open    chan struct{} // closed to let it through
}

// newGate starts a gate; it leads nowhere until lead is called, and ends with the test.
func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{holds: map[string]*hold{}}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(g.target.Load()) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := r.Header.Get(gateHeader); id != "" {
			g.mu.Lock()
			h := g.holds[id]
			g.mu.Unlock()
			close(h.arrived)
			select {
			case <-h.open:
			case <-r.Context().Done():
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	g.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	return g
}

func (g *gate) lead(t *testing.T, target string) {
	t.Helper()
	to, err := url.Parse(target)
	require.NoError(t, err)
	g.target.Store(to)
}

// hold sends a request and returns when it is in flight. release lets it end, and returns when its answer is there and nothing is
// held for it any more.
func (g *gate) hold(ctx context.Context, s *system.System, gatewayURL string, r system.Request) (release func() error, err error) {
	h := &hold{arrived: make(chan struct{}), open: make(chan struct{})}
	g.mu.Lock()
	id := fmt.Sprint(len(g.holds) + 1)
	g.holds[id] = h
	g.mu.Unlock()
	r.Header[gateHeader] = id
	answer := make(chan system.Answer, 1)
	go func() { answer <- s.Send(ctx, gatewayURL, r) }()
	select {
	case <-h.arrived:
	case a := <-answer:
		return nil, fmt.Errorf("the request that should stay in flight: %s", a)
	case <-time.After(system.Patience):
		return nil, errors.New("the request that should stay in flight did not reach the simulator")
	}
	return func() error {
		close(h.open)
		a := <-answer
		if !a.Passed() {
			return fmt.Errorf("the request that was in flight: %s", a)
		}
		return eventually(func() error { return s.Released(ctx, a.ID) })
	}, nil
}
