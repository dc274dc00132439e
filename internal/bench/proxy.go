package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
)

// ServeProxy is the bare proxy that Tollgate is compared with: gin and httputil.ReverseProxy, nothing parsed, nobody asked. It
// serves on listener, which it closes, until ctx ends.
//
// The body is read into memory first, as every gateway does that looks into it: passed straight through, an upstream that
// answers at once has its streams cut.
func ServeProxy(ctx context.Context, listener net.Listener, upstream string) error {
	target, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	transport := &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		BufferPool:    &buffers{},
	}
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.POST("/v1/*path", func(c *gin.Context) {
		body, err := readBody(c.Request)
		if err != nil {
			c.Status(http.StatusBadRequest)
			return
		}
		c.Request.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(c.Writer, c.Request)
	})
	server := &http.Server{Handler: router, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	err = server.Close()
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

func readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength < 0 {
		return io.ReadAll(r.Body)
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

// buffers makes the proxy reuse its copy buffers.
type buffers struct{ pool sync.Pool }

// Get returns a buffer of 32 KiB.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

// Put takes a buffer back.
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
