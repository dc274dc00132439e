package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/gateway/provider"
	"tollgate/internal/dev/services"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/keys"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

const (
	patience = stack.Patience
	app      = "checkout"
)

// world is an admission on real Redis and NATS; the test plays the settler.
type world struct {
	testing.TB
	*Admission
	redis    *redis.Client
	client   *redis.Client // the admission's own
	url      string
	nats     *services.NATS
	nc       *nats.Conn
	js       jetstream.JetStream
	registry *prometheus.Registry
	logs     *stack.Logs
	log      *slog.Logger
}

type settings struct {
	redisURL string                  // "" is the real one
	through  func(url string) string // another way to the real one
	now      func() time.Time
	timeout  time.Duration
	unmarked bool // no slot has its mark
}

func newWorld(t testing.TB, s settings, limits string) *world {
	t.Helper()
	stack.AwayFromMidnight(t, time.UTC)
	w := &world{TB: t, url: stack.Redis(t), nats: stack.NATS(t), registry: prometheus.NewRegistry(), logs: &stack.Logs{}}
	w.log = slog.New(slog.NewTextHandler(w.logs, nil))
	if s.redisURL == "" {
		s.redisURL = w.url
	}
	if s.through != nil {
		s.redisURL = s.through(w.url)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.timeout == 0 {
		s.timeout = patience
	}
	var err error
	w.redis, err = lua.Connect(w.url, lua.Options{Timeout: patience})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.redis.Close()) })
	w.client, err = lua.Connect(s.redisURL, lua.Options{Timeout: s.timeout})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.client.Close()) })
	w.nc, err = nats.Connect(w.nats.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.Timeout(patience),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(t, err)
	t.Cleanup(w.nc.Close)
	w.js, err = jetstream.New(w.nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	w.generation("1")
	if !s.unmarked {
		w.mark("1")
	}
	control := NewControl(w.nc, w.js, func(context.Context) error { return nil })
	require.NoError(t, control.Refresh(t.Context()))
	scripts := lua.New(w.client)
	scripts.KeepLeases(time.Hour) // also while this process stands still
	w.Admission = New(Parts{
		Scripts: scripts, Keys: NewDirectory(w.js, w.log), Control: control, Clock: NewClock(s.now), Timeout: s.timeout,
		Metrics: NewMetrics(w.registry), Degraded: func(bool) {}, Log: w.log,
	})
	w.rebuildTimeout = patience
	require.NoError(t, w.SetPolicy(w.rules(limits), map[string]*provider.Upstream{}))
	return w
}

func (w *world) generation(g string) {
	w.Helper()
	bucket, err := w.js.CreateOrUpdateKeyValue(w.Context(), jetstream.KeyValueConfig{Bucket: event.ControlBucket})
	require.NoError(w, err)
	_, err = bucket.PutString(w.Context(), event.GenerationKey, g)
	require.NoError(w, err)
}

// mark rebuilds both slots, empty.
func (w *world) mark(g string) {
	w.Helper()
	for _, slot := range []string{lua.SharedSlot, app} {
		require.NoError(w, lua.New(w.redis).Rebuild(w.Context(), lua.RebuildCall{Slot: slot, Generation: g}))
	}
}

func (w *world) rules(limits string) *policy.Policy {
	w.Helper()
	p, err := policy.Parse(fmt.Appendf(nil, `version: 1
providers:
  openai: {protocol: openai, base_url: "http://127.0.0.1:1/v1"}
models:
  gpt-4o-mini: {provider: openai}
  unpriced: {provider: openai, upstream_model: in-house}
apps:
  planned: {plan: paid}
plans:
  free: {}
  paid: {}
%s`, limits), nil)
	require.NoError(w, err)
	// A Redis that is slow because everything is must not open the breaker.
	p.Degraded.Breaker.Latency = patience
	return p
}

func ask() *Ask {
	return &Ask{
		Caller: Caller{App: app, Key: "k_1", Plan: "free"}, User: "eve", Model: "gpt-4o-mini", Endpoint: "/v1/chat/completions", EndpointKind: "chat",
		Protocol: policy.ProtocolOpenAI, Estimate: estimate(20, 80),
	}
}

// estimate is one that is the same for every model.
func estimate(input, output ledger.Tokens) func(string) (ledger.Tokens, ledger.Tokens) {
	return func(string) (ledger.Tokens, ledger.Tokens) { return input, output }
}

// run serves what goes on beside requests until the test ends.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		require.NoError(w, <-done)
	})
}

func (w *world) reserve(a *Ask) *Verdict {
	w.Helper()
	v, err := w.Admit(context.Background(), a)
	require.NoError(w, err)
	w.Recorded(v)
	return v
}

// state is everything that Redis holds, marks left out.
func (w *world) state() []string {
	w.Helper()
	keys, err := w.redis.Keys(context.Background(), "*").Result()
	require.NoError(w, err)
	var found []string
	for _, key := range keys {
		if len(key) < 5 || key[len(key)-5:] != ":mark" {
			found = append(found, key)
		}
	}
	return found
}

func (w *world) putKey(secret string, r keys.Record) {
	w.Helper()
	data, err := r.Encode()
	require.NoError(w, err)
	stack.Eventually(w, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		bucket, err := w.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: keys.Bucket})
		if err != nil {
			return err
		}
		_, err = bucket.Put(ctx, keys.Hash(secret), data)
		return err
	})
}

// follow runs the directory until the test ends.
func (w *world) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.keys.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		require.NoError(w, <-done)
	})
}

func (w *world) awaitKey(secret string, want func(keys.Record) bool) {
	w.Helper()
	stack.Eventually(w, func() error {
		if r, ok := w.keys.Find(secret); !ok || !want(r) {
			return fmt.Errorf("record %+v, known %v", r, ok)
		}
		return nil
	})
}

func rebuildCall(slot string) lua.RebuildCall { return lua.RebuildCall{Slot: slot, Generation: "1"} }

func redisAddress(url string) (string, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return "", err
	}
	return options.Addr, nil
}

func configSet(t testing.TB, url, name, value string) error {
	t.Helper()
	options, err := redis.ParseURL(url)
	require.NoError(t, err)
	options.DialTimeout, options.ReadTimeout = patience, patience
	client := redis.NewClient(options)
	return errors.Join(client.ConfigSet(context.Background(), name, value).Err(), client.Close())
}
