package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
	"tollgate/gateway"
	"tollgate/gateway/outbox"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

// gatewayAt runs a gateway in this process whose clock is off, before the provider, and returns its URL.
func gatewayAt(t *testing.T, s *system.System, policyText, provider string, off func() time.Duration) string {
	t.Helper()
	p, err := policy.Parse([]byte(policyText), func(name string) (string, bool) {
		return map[string]string{"TOLLGATE_SIM_URL": provider}[name], true
	})
	require.NoError(t, err)
	p.Providers["openai"].Keys[0].Env = ""
	client, err := lua.Connect(s.Redis.URL(0), lua.Options{Timeout: 30 * time.Second})
	require.NoError(t, err)
	nc, err := nats.Connect(s.NATS.ClientURL(), nats.ReconnectBufSize(-1), nats.Timeout(system.Patience))
	require.NoError(t, err)
	box, err := outbox.Open(outbox.Config{
		Dir: t.TempDir(), AckTimeout: 5 * time.Second, SyncEvery: 50 * time.Millisecond, SegmentBytes: 1 << 20, MaxBytes: 1 << 30,
	}, nc, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	g, err := gateway.New(gateway.Config{
		LimiterTimeout: 30 * time.Second, MaxBody: 1 << 20, DialTimeout: time.Minute, HeaderTimeout: time.Minute, ShutdownTimeout: 30 * time.Second,
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
	limits := fmt.Sprintf(`
  - {name: app-day, tier: app, budget: {requests: %d, per: day}}
  - {name: key-rate, tier: key, rate: {requests: 1000, per: minute, algorithm: token_bucket}}
`, budget)
	noon := system.Zone(t, time.Now(), 12*time.Hour)
	s := system.New(t, system.Options{Limits: limits, Settlers: 1, Timezone: noon})
	key := s.Key(system.App)
	s.AwaitCounters(system.App)
	// The day is planned when all but the gateways is there.
	midnight := time.Now().Add(25 * time.Second).Truncate(time.Second)
	days := strings.Replace(s.Policy(limits), "timezone: "+noon, "timezone: "+system.Zone(t, midnight, 0), 1)
	off := 2500 * time.Millisecond
	urls := []string{
		gatewayAt(t, s, days, s.Sim.URL, func() time.Duration { return -off }),
		gatewayAt(t, s, days, s.Sim.URL, func() time.Duration { return off }),
	}
	send := func(i int) system.Answer {
		return s.Send(t.Context(), urls[i%2], system.Request{Key: key, Path: "/v1/embeddings", Body: system.EmbeddingBody(2)})
	}
	for i := range urls {
		s.Eventually(system.Patience, "the gateway knows the key and judges", func() error {
			if a := send(i); !a.Passed() {
				return fmt.Errorf("%s", a)
			}
			return nil
		})
	}
	tally := system.Tally(system.Load(4*budget, 8, send))
	require.Less(t, time.Now(), midnight.Add(-time.Second), "the gateways took too long to start")
	require.Equal(t, map[string]int{"passed": budget - len(urls), "APP_QUOTA": 3*budget + len(urls)}, tally)

	// Until the day is over by Redis's clock both refuse; from then on both allow. A request is one of the new day exactly if
	// it came after midnight.
	var early, late []system.Answer
	for time.Now().Before(midnight.Add(3*time.Second)) || len(late) <= 2*budget {
		require.Less(t, time.Now(), midnight.Add(system.Patience), "%d requests after midnight", len(late))
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
	require.NotEmpty(t, early)
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
	limits := fmt.Sprintf("\n  - {name: app-day, tier: app, budget: {requests: %d, per: day}}\n", budget)
	s := system.New(t, system.Options{
		Limits: limits, Settlers: 1, Timezone: system.Zone(t, time.Now(), 23*time.Hour+30*time.Minute),
	})
	slow := newGate(t)
	slow.lead(t, s.Sim.URL)
	var off atomic.Int64
	url := gatewayAt(t, s, s.Policy(limits), slow.url, func() time.Duration { return time.Duration(off.Load()) })
	key := s.Key(system.App)
	began := time.Now()
	request := func() system.Request {
		return system.Request{Key: key, Path: "/v1/embeddings", Body: system.EmbeddingBody(2), Header: map[string]string{}}
	}
	send := func() system.Answer { return s.Send(t.Context(), url, request()) }
	s.Eventually(system.Patience, "the gateway knows the key and judges", func() error {
		if a := send(); !a.Passed() {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	for _, to := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
		release, err := slow.hold(t.Context(), s, url, request())
		require.NoError(t, err)
		off.Store(int64(to))
		require.NoError(t, release()) // nothing has shown the gateway Redis's clock since
		a := send()
		require.True(t, a.Passed(), "%s", a)
	}
	system.Load(budget, 4, func(int) system.Answer { return send() })
	s.Check()
	require.EqualValues(t, budget, billed(t, s))
	require.Equal(t, [][]any{{int64(budget)}}, s.Rows(`SELECT requests FROM budgets WHERE subject = 'app:shop'`), "one window")
	require.Empty(t, s.Rows(`SELECT event_id, occurred_at::text, now()::text FROM events WHERE kind IN ('reserved', 'used') AND occurred_at NOT BETWEEN $1 AND $2`,
		began.Add(-time.Second), time.Now().Add(time.Second)))
}
