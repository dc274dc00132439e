// Package admin is the HTTP admin plane of a process: its health, its readiness and its metrics.
package admin

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server answers on the admin address. Ready tells why the process cannot serve yet, nil when it can.
type Server struct {
	Metrics prometheus.Gatherer
	Ready   func(context.Context) error
	Log     *slog.Logger
	Stop    time.Duration // what a request may still take when Run ends; 0 is five seconds
}

// Handler has every route of the admin plane.
func (s *Server) Handler() http.Handler {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.GET("/healthz", func(c *gin.Context) { c.String(http.StatusOK, "ok\n") })
	router.GET("/readyz", func(c *gin.Context) {
		if err := s.Ready(c.Request.Context()); err != nil {
			c.String(http.StatusServiceUnavailable, "not ready: %s\n", err)
			return
		}
		c.String(http.StatusOK, "ready\n")
	})
	router.GET("/metrics", gin.WrapH(promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{})))
	return router
}

// Run serves until ctx ends and every request has been answered, or Stop has passed.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cmp.Or(s.Stop, 5*time.Second), errors.New("admin: requests did not end in time"))
	defer cancel()
	err := server.Shutdown(stop)
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}
