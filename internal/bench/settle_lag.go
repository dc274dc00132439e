package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/lua"
)

// maxLagP99 is what the lag is held against.
const maxLagP99 = 250 * time.Millisecond

// Lag is a run of RunLag. The lag of an event is from when it was due on the stream until its settler acknowledged it, which it
// does once Postgres has committed it and Redis was told.
type Lag struct {
	Rate    int           `json:"requests_per_second"`
	Length  time.Duration `json:"duration_ns"`
	Warmup  time.Duration `json:"warmup_ns"`
	Events  int           `json:"events"` // after the warm-up
	Lag     Spread        `json:"lag_ms"` // of those
	Cold    Spread        `json:"lag_warming_up_ms"`
	Foreign float64       `json:"foreign_cores"`
}

// RunLag publishes the events of so many requests a second, whatever becomes of those before them, and measures how long each
// needs until it is settled by one settler. Those due within the warm-up, on empty tables and cold caches, are told apart. Every
// single lag goes to the file raw, "" for none.
func RunLag(ctx context.Context, rate int, warmup, length time.Duration, raw string, out io.Writer) (result *Lag, err error) {
	if rate < 1 || rate > 20_000 || warmup < 0 || length <= 0 || warmup+length > time.Minute {
		return nil, errors.New("--rate, --warmup, --duration: from 1 to 20000 requests a second, for at most a minute in all")
	}
	file, err := openRaw(raw, "due_us,lag_us")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.close()) }()
	b, err := newBacklog(int(float64(rate) * (warmup + length).Seconds()))
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "starting Postgres, Redis, NATS and a settler …")
	s, err := startSteps(ctx, Options{}, nil, servers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	client, err := lua.Connect(s.redisURL, lua.Options{Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	run := settleRun{system: s, backlog: b, options: Options{Env: settlerEnv}}
	if _, err := run.startSettlers(ctx, 1, lua.New(client)); err != nil {
		return nil, err
	}
	before, err := take(s.pids)
	if err != nil {
		return nil, err
	}
	due, lags, err := s.pace(ctx, b.messages, float64(eventsPerRequest*rate))
	if err != nil {
		return nil, err
	}
	after, err := take(s.pids)
	if err != nil {
		return nil, err
	}
	for i := range lags {
		if err := file.line(fmt.Sprintf("%d,%d\n", due[i].Microseconds(), lags[i].Microseconds())); err != nil {
			return nil, err
		}
	}
	warm := sort.Search(len(due), func(i int) bool { return due[i] >= warmup })
	result = &Lag{
		Rate: rate, Length: length, Warmup: warmup, Events: len(lags) - warm, Lag: spread(lags[warm:]), Cold: spread(lags[:warm]),
		Foreign: after.foreign(before),
	}
	return result, run.check(ctx)
}

// pace publishes the messages on an empty stream at a fixed rate and waits until each is acknowledged. It returns when each was
// due, and how long after that it was.
func (s *system) pace(ctx context.Context, messages []*nats.Msg, perSecond float64) (due, lags []time.Duration, err error) {
	due, settled := make([]time.Duration, len(messages)), make([]time.Duration, len(messages))
	for i := range due {
		due[i] = time.Duration(float64(i) / perSecond * float64(time.Second))
	}
	start := time.Now()
	var mu sync.Mutex // guards settled and left
	left, done := len(messages), make(chan struct{})
	// Whoever acknowledges sends a message that anyone may listen to; its subject names the event's place in the stream.
	subscription, err := s.nc.Subscribe("$JS.ACK."+event.Stream+"."+consumerName+".>", func(m *nats.Msg) {
		place, err := placeOf(m.Subject)
		if err != nil || string(m.Data) != "+ACK" && len(m.Data) > 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if i := place - 1; i < len(settled) && settled[i] == 0 {
			settled[i] = time.Since(start)
			if left--; left == 0 {
				close(done)
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, subscription.Unsubscribe()) }()
	if err := errors.Join(subscription.SetPendingLimits(-1, -1), s.nc.Flush()); err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(s.nc, jetstream.WithPublishAsyncMaxPending(len(messages)))
	if err != nil {
		return nil, nil, err
	}
	for i, m := range messages {
		if !sleepUntil(ctx, start.Add(due[i])) {
			return nil, nil, context.Cause(ctx)
		}
		if _, err := js.PublishMsgAsync(m); err != nil {
			return nil, nil, fmt.Errorf("publish: %w", err)
		}
	}
	select {
	case <-done:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-time.After(settleLimit):
		return nil, nil, fmt.Errorf("events are not settled within %v", settleLimit)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := range settled {
		settled[i] -= due[i]
	}
	return due, settled, nil
}

// placeOf reads the stream's sequence, from 1, out of $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.….
func placeOf(subject string) (int, error) {
	parts := strings.Split(subject, ".")
	if len(parts) < 9 {
		return 0, fmt.Errorf("subject %s acknowledges nothing", subject)
	}
	return strconv.Atoi(parts[5])
}

// Print writes the figures for people.
func (l *Lag) Print(out io.Writer) error {
	verdict := "met    "
	if l.Lag.P99 > float64(maxLagP99.Milliseconds()) {
		verdict = "NOT MET"
	}
	_, err := fmt.Fprintf(out, `
%d events, two a request, at %d requests a second for %s after a warm-up of %s. Others used %.2f cores.
from the stream to Postgres and Redis, ms: p50 %.0f, p95 %.0f, p99 %.0f, max %.0f
while warming up, on empty tables:         p50 %.0f, p95 %.0f, p99 %.0f, max %.0f

%s  lag at p99 %.0f ms, at most %d
`, l.Events, l.Rate, l.Length, l.Warmup, l.Foreign, l.Lag.P50, l.Lag.P95, l.Lag.P99, l.Lag.Max,
		l.Cold.P50, l.Cold.P95, l.Cold.P99, l.Cold.Max, verdict, l.Lag.P99, maxLagP99.Milliseconds())
	return err
}
