package command

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// servePprof serves profiles of this process where TOLLGATE_PPROF names an address of loopback, for `tollgate bench`; without
// it, nothing is served. The caller must call stop.
func servePprof(log *slog.Logger) (stop func(), err error) {
	var config struct {
		Address string `env:"TOLLGATE_PPROF"`
	}
	if err := readEnv(&config); err != nil {
		return nil, err
	}
	if config.Address == "" {
		return func() {}, nil
	}
	host, _, err := net.SplitHostPort(config.Address)
	if err != nil {
		return nil, fmt.Errorf("TOLLGATE_PPROF: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, errors.New("TOLLGATE_PPROF: must be an address of loopback, profiles are for nobody else")
	}
	listener, err := listen(config.Address, "TOLLGATE_PPROF")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Warn("profiles are served", "address", listener.Addr().String())
	return func() {
		if err := errors.Join(server.Close(), <-served); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("profiles were not served to the end", "error", err)
		}
	}, nil
}
