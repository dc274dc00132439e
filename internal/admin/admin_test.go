package admin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/admin"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

// serve runs a server and returns its address, a stop, and the channel of Run's result.
func serve(t *testing.T, s *admin.Server) (url string, stop context.CancelFunc, done <-chan error) {
	t.Helper()
	s.Log, s.Stop = slog.New(slog.DiscardHandler), 2*time.Minute
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	return "http://" + listener.Addr().String(), stop, ended
}

func ask(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_things_total", Help: "Things."})
	registry.MustRegister(counter)
	counter.Add(2)
	state := make(chan error, 1)
	state <- errors.New("the key directory has not been read yet")
	url, stop, done := serve(t, &admin.Server{Metrics: registry, Ready: func(context.Context) error {
		select {
		case err := <-state:
			return err
		default:
			return nil
		}
	}})
	for _, row := range []struct {
		path   string
		status int
		want   string
	}{
		{"/readyz", http.StatusServiceUnavailable, "not ready: the key directory has not been read yet\n"},
		{"/readyz", http.StatusOK, "ready\n"},
		{"/healthz", http.StatusOK, "ok\n"},
		{"/metrics", http.StatusOK, "# HELP tollgate_things_total Things.\n# TYPE tollgate_things_total counter\ntollgate_things_total 2\n"},
		{"/admin/v1/apps", http.StatusNotFound, "404 page not found"},
	} {
		status, text := ask(t, url+row.path)
		require.Equal(t, row.status, status, row.path)
		require.Equal(t, row.want, text, row.path)
	}
	stop()
	require.NoError(t, <-done)
}

// Metrics that contradict each other are an error, never half an answer.
func TestMetricsThatCannotBeGathered(t *testing.T) {
	t.Parallel()
	gatherers := prometheus.Gatherers{}
	for i := range 2 {
		registry := prometheus.NewRegistry()
		registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "tollgate_thing", Help: fmt.Sprint(i)}))
		gatherers = append(gatherers, registry)
	}
	url, stop, done := serve(t, &admin.Server{Metrics: gatherers, Ready: func(context.Context) error { return nil }})
	status, _ := ask(t, url+"/metrics")
	require.Equal(t, http.StatusInternalServerError, status)
	stop()
	require.NoError(t, <-done)
}

// A stop waits for the answer in progress.
func TestStopFinishesAnswers(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	url, stop, done := serve(t, &admin.Server{Metrics: prometheus.NewRegistry(), Ready: func(context.Context) error {
		close(asked)
		<-release
		return nil
	}})
	answer := make(chan string, 1)
	go func() {
		response, err := http.Get(url + "/readyz")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		answer <- fmt.Sprint(string(text), err)
	}()
	<-asked
	stop()
	select {
	case err := <-done:
		t.Fatalf("stopped before the answer was complete: %v", err)
	default:
	}
	close(release)
	require.Equal(t, "ready\n<nil>", <-answer)
	require.NoError(t, <-done)
	http.DefaultClient.CloseIdleConnections()
}

func TestListenerThatFails(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	s := &admin.Server{Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
	require.ErrorIs(t, s.Run(t.Context(), listener), net.ErrClosed)
}
