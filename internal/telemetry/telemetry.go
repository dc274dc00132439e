// Package telemetry makes the logger and the metrics registry that a process hands to its parts.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Config says how a process logs.
type Config struct {
	Level string `env:"TOLLGATE_LOG_LEVEL" envDefault:"info"` // debug, info, warn, error
}

// NewLogger writes JSON lines to w. It errors on a level that does not exist.
func NewLogger(w io.Writer, c Config) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, fmt.Errorf("TOLLGATE_LOG_LEVEL: %w", err)
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})), nil
}

// NewRegistry has the metrics of the Go runtime and of the process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
