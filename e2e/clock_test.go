package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/e2e/system"
	"tollgate/gateway"
	"tollgate/gateway/outbox"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

// gatewayAt runs a gateway in this process whose clock is off, and returns its URL.
func gatewayAt(t *testing.T, s *system.System, off func() time.Duration) string {
	t.Helper()
	text, err := os.ReadFile(s.PolicyFile)
	require.NoError(t, err)
	p, err := policy.Parse(text, func(name string) (string, bool) {
		return map[string]string{"TOLLGATE_SIM_URL": s.Sim.URL}[name], true
	})
	require.NoError(t, err)
	p.Providers["openai"].Keys[0].Env = ""
	client, err := lua.Connect(s.Redis.URL(0), lua.Options{Timeout: 5 * time.Second})
	require.NoError(t, err)
	nc, err := nats.Connect(s.NATS.ClientURL(), nats.ReconnectBufSize(-1))
	require.NoError(t, err)
	box, err := outbox.Open(outbox.Config{
		Dir: t.TempDir(), AckTimeout: 5 * time.Second, SyncEvery: 50 * time.Millisecond, SegmentBytes: 1 << 20, MaxBytes: 1 << 30,
	}, nc, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	g, err := gateway.New(gateway.Config{
		LimiterTimeout: 5 * time.Second, MaxBody: 1 << 20, DialTimeout: 5 * time.Second, HeaderTimeout: time.Minute, ShutdownTimeout: 30 * time.Second,
		RefusalsEvery: time.Second, ConfirmEvery: time.Second, MaxBodies: 1 << 30,
	}, gateway.Deps{
		Scripts: lua.New(client), NATS: nc, Outbox: box, Policy: p, Log: slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(), Now: func() time.Time { return time.Now().Add(off()) },
	})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, box.Close())
		nc.Close()
		require.NoError(t, client.Close())
	})
	return "http://" + listener.Addr().String()
}

// Gateways whose clocks are five seconds apart decide the same, also while a day turns over: the clock is Redis's. Each day
// passes exactly its budget, whichever gateway is asked first.
func TestClocksFiveSecondsApart(t *testing.T) {
	t.Parallel()
	const budget = 20
	stack.Binary(t) // built before the day is planned
	midnight := time.Now().Add(20 * time.Second).Truncate(time.Second)
	s := system.New(t, system.Options{
		Limits: fmt.Sprintf(`
  - {name: app-day, tier: app, budget: {requests: %d, per: day}}
  - {name: key-rate, tier: key, rate: {requests: 1000, per: minute, algorithm: token_bucket}}
`, budget), Settlers: 1, Timezone: system.Zone(t, midnight, 0),
	})
	off := 2500 * time.Millisecond
	urls := []string{gatewayAt(t, s, func() time.Duration { return -off }), gatewayAt(t, s, func() time.Duration { return off })}
	key := s.Key(system.App)
	send := func(i int) system.Answer {
		return s.Send(t.Context(), urls[i%2], system.Request{Key: key, Path: "/v1/embeddings", Body: system.EmbeddingBody(2)})
	}
	s.Eventually(10*time.Second, "both gateways know the key and have counters", func() error {
		for _, url := range urls {
			a := s.Send(t.Context(), url, system.Request{Key: key, Path: "/v1/embeddings", Body: `{"model":"none","input":"x"}`})
			if a.Status != http.StatusNotFound {
				return fmt.Errorf("%s", a)
			}
		}
		return nil
	})
	tally := system.Tally(system.Load(4*budget, 8, send))
	require.Less(t, time.Now(), midnight.Add(-time.Second), "the system took too long to start")
	require.Equal(t, map[string]int{"passed": budget, "APP_QUOTA": 3 * budget}, tally)

	// Until the day is over by Redis's clock both refuse; from then on both allow. A request is one of the new day exactly if
	// it came after midnight.
	var early, late []system.Answer
	for time.Now().Before(midnight.Add(3*time.Second)) || len(late) <= 2*budget {
		require.Less(t, time.Now(), midnight.Add(30*time.Second), "%d requests after midnight", len(late))
		for i := range urls {
			before := time.Now()
			a := send(i)
			switch after := time.Now(); {
			case after.Before(midnight):
				early = append(early, a)
			case before.After(midnight):
				late = append(late, a)
			}
		}
		time.Sleep(40 * time.Millisecond)
	}
	require.Greater(t, len(early), 10)
	require.Equal(t, map[string]int{"APP_QUOTA": len(early)}, system.Tally(early))
	for i, a := range late[:budget/2] {
		require.True(t, a.Passed(), "request %d after midnight: %s", i, a)
	}
	s.Check()
	require.EqualValues(t, 2*budget, billed(t, s))
	require.Equal(t, [][]any{{int64(budget)}, {int64(budget)}}, s.Rows(`SELECT requests FROM budgets WHERE subject = 'app:shop' ORDER BY window_start`))
	require.EqualValues(t, 1, s.Int(`SELECT count(*) FROM budgets WHERE window_start = $1`, midnight))
}

// The wall clock of a gateway is set an hour ahead, half an hour before midnight, and back, each time while requests are under
// way: every request counts in today's budget, and every event tells the time of Redis.
func TestWallClockIsSetDuringRequests(t *testing.T) {
	t.Parallel()
	const budget = 12
	s := system.New(t, system.Options{
		Limits:   fmt.Sprintf("\n  - {name: app-day, tier: app, budget: {requests: %d, per: day}}\n", budget),
		Settlers: 1, Timezone: system.Zone(t, time.Now(), 23*time.Hour+30*time.Minute),
	})
	var off atomic.Int64
	url := gatewayAt(t, s, func() time.Duration { return time.Duration(off.Load()) })
	key := s.Key(system.App)
	began := time.Now()
	send := func(latency string) system.Answer {
		return s.Send(t.Context(), url, system.Request{
			Key: key, Path: "/v1/embeddings", Body: system.EmbeddingBody(2), Header: map[string]string{"X-Sim-Latency": latency},
		})
	}
	s.Eventually(10*time.Second, "the gateway knows the key and judges", func() error {
		if a := send("0ms"); !a.Passed() {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	for _, to := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
		pending := func(want int64) {
			s.Eventually(5*time.Second, "nothing but the slow request is pending", func() error {
				if n := s.Int(`SELECT count(*) FROM reservations WHERE state = 'pending'`); n != want {
					return fmt.Errorf("%d pending", n)
				}
				return nil
			})
		}
		pending(0)
		slow := make(chan system.Answer, 1)
		go func() { slow <- send("1500ms") }()
		pending(1)
		off.Store(int64(to))
		a := <-slow // nothing has shown the gateway Redis's clock since
		require.True(t, a.Passed(), "%s", a)
		a = send("0ms")
		require.True(t, a.Passed(), "%s", a)
	}
	system.Load(budget, 4, func(int) system.Answer { return send("0ms") })
	s.Check()
	require.EqualValues(t, budget, billed(t, s))
	require.Equal(t, [][]any{{int64(budget)}}, s.Rows(`SELECT requests FROM budgets WHERE subject = 'app:shop'`), "one window")
	require.Empty(t, s.Rows(`SELECT event_id, occurred_at::text, now()::text FROM events WHERE kind IN ('reserved', 'used') AND occurred_at NOT BETWEEN $1 AND $2`,
		began.Add(-time.Second), time.Now().Add(time.Second)))
}
