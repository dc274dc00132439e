package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/gateway/outbox"
	"tollgate/internal/dev/services"
	"tollgate/ledger/event"
	"tollgate/ledger/keys"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

const (
	patience       = stack.Patience
	app            = "checkout"
	callerSecret   = "tg-caller-secret"
	upstreamSecret = "sk-provider-secret"
	chatPath       = "/v1/chat/completions"
)

// world is one gateway with its services, its provider, and a caller.
type world struct {
	testing.TB
	redis    *redis.Client
	scripts  *lua.Scripts
	nats     *services.NATS
	nc       *nats.Conn
	js       jetstream.JetStream
	keys     jetstream.KeyValue
	provider *httptest.Server
	keyFile  string
	config   Config
	gateway  *Gateway
	outbox   *outbox.Outbox
	registry *prometheus.Registry
	logs     *stack.Logs
	url      string
	client   *http.Client
	follow   bool
	fills    func(*event.Fill) string // answers to requests to fill budgets, "" for none; nil fills them all
	prepare  func(*Gateway)           // what is set before the gateway runs; nil sets nothing
	stop     func() error
}

// begin prepares a world whose gateway does not run yet.
func begin(t testing.TB, provider http.HandlerFunc) *world {
	t.Helper()
	stack.AwayFromMidnight(t, time.UTC)
	w := &world{TB: t, nats: stack.NATS(t), provider: httptest.NewServer(provider), registry: prometheus.NewRegistry(), logs: &stack.Logs{}}
	t.Cleanup(w.provider.Close)
	w.config = Config{
		LimiterTimeout: patience, MaxBody: 1 << 20, DialTimeout: patience, HeaderTimeout: patience, ShutdownTimeout: patience,
		RefusalsEvery: 10 * time.Millisecond, ConfirmEvery: time.Second, MaxBodies: 1 << 30,
		CallerTimeout: patience, DrainTimeout: patience, Drains: 16,
	}
	w.keyFile = filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(w.keyFile, []byte(upstreamSecret+"\n"), 0o600))
	require.NoError(t, os.WriteFile(w.keyFile+"-b", []byte(upstreamSecret+"-b\n"), 0o600))
	var err error
	w.redis, err = lua.Connect(stack.Redis(t), lua.Options{Timeout: patience})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.redis.Close()) })
	w.limiter(w.redis)
	for _, slot := range []string{lua.SharedSlot, app} {
		require.NoError(t, w.scripts.Rebuild(t.Context(), lua.RebuildCall{Slot: slot, Generation: "1"}))
	}
	w.nc, err = nats.Connect(w.nats.ClientURL(), nats.ReconnectBufSize(-1), nats.Timeout(patience))
	require.NoError(t, err)
	t.Cleanup(w.nc.Close)
	w.js, err = jetstream.New(w.nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	_, err = w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: event.Stream, Subjects: []string{event.Subjects}, AllowDirect: true})
	require.NoError(t, err)
	control, err := w.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: event.ControlBucket})
	require.NoError(t, err)
	_, err = control.PutString(t.Context(), event.GenerationKey, "1")
	require.NoError(t, err)
	_, err = w.nc.Subscribe(event.FillSubject, w.answerFill)
	require.NoError(t, err)
	w.keys, err = w.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: keys.Bucket})
	require.NoError(t, err)
	w.key(callerSecret, keys.Record{KeyID: "k_1", App: app})
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 32}
	t.Cleanup(transport.CloseIdleConnections)
	w.client = &http.Client{Transport: transport, Timeout: patience}
	return w
}

// limiter has the gateway ask Redis through the client. Its slots do not lapse while this process stands still.
func (w *world) limiter(client *redis.Client) {
	w.scripts = lua.New(client)
	w.scripts.KeepLeases(time.Hour)
}

// proxied has the gateway ask Redis through a link of its own. The client does without timeouts: LimiterTimeout is the one.
func (w *world) proxied() *stack.Link {
	w.Helper()
	link := stack.Proxy(w, w.redis.Options().Addr)
	client, err := lua.Connect(fmt.Sprintf("redis://%s/%d", link.Addr, w.redis.Options().DB), lua.Options{Timeout: patience})
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, client.Close()) })
	w.limiter(client)
	return link
}

// frozen has the keys of providers rest by a clock that stands still until it is moved.
func (w *world) frozen() (move func(time.Duration)) {
	var passed atomic.Int64
	begun := time.Now()
	w.prepare = func(g *Gateway) {
		for _, u := range *g.upstreams.Load() {
			u.Clock = func() time.Time { return begun.Add(time.Duration(passed.Load())) }
		}
	}
	return func(d time.Duration) { passed.Add(int64(d)) }
}

// answerFill is the settler that fills budgets.
func (w *world) answerFill(m *nats.Msg) {
	answer := event.FillDone
	if w.fills != nil {
		request, err := event.DecodeFill(m.Data)
		if err != nil {
			w.Error(err)
			return
		}
		answer = w.fills(request)
	}
	if answer != "" {
		if err := m.Respond([]byte(answer)); err != nil {
			w.Error(err)
		}
	}
}

func (w *world) key(secret string, r keys.Record) {
	w.Helper()
	data, err := r.Encode()
	require.NoError(w, err)
	_, err = w.keys.Put(context.Background(), keys.Hash(secret), data)
	require.NoError(w, err)
}

// rules parses a policy with the given limits.
func (w *world) rules(limits string) *policy.Policy {
	w.Helper()
	text := fmt.Sprintf(`version: 1
providers:
  openai: {protocol: openai, base_url: "%[1]s/v1", api_key_file: "%[2]s"}
  patient: {protocol: openai, base_url: "%[1]s/v1", api_key_file: "%[2]s", on_disconnect: drain}
  anthropic: {protocol: anthropic, base_url: "%[1]s/v1", api_key_file: "%[2]s"}
  steady: {protocol: anthropic, base_url: "%[1]s/v1", api_key_file: "%[2]s", on_disconnect: drain}
  google: {protocol: gemini, base_url: "%[1]s/v1beta", api_key_file: "%[2]s"}
  many: {protocol: openai, base_url: "%[1]s/v1", keys: [{name: a, api_key_file: "%[2]s"}, {name: b, api_key_file: "%[2]s-b"}]}
  calm: {protocol: gemini, base_url: "%[1]s/v1beta", api_key_file: "%[2]s", on_disconnect: drain}
models:
  gpt-4o-mini: {provider: openai}
  fast: {provider: openai, upstream_model: gpt-4o-mini}
  patient: {provider: patient, upstream_model: gpt-4o-mini}
  unpriced: {provider: openai, upstream_model: in-house}
  text-embedding-3-small: {provider: openai}
  claude: {provider: anthropic, upstream_model: claude-sonnet-4-6}
  steady: {provider: steady, upstream_model: claude-sonnet-4-6}
  gemini-2.5-flash: {provider: google}
  calm: {provider: calm, upstream_model: gemini-2.5-flash}
  gpt-4o-transcribe: {provider: openai}
  omni-moderation-latest: {provider: openai}
  quick: {provider: google, upstream_model: gemini-2.5-flash}
  many: {provider: many, upstream_model: gpt-4o-mini}
  twin: {provider: many, upstream_model: gpt-4o-mini}
prices:
  - {provider: patient, model: gpt-4o-mini, from: 2020-01-01, usd_per_million: {input: 0.15, output: 0.60}}
  - {provider: many, model: gpt-4o-mini, from: 2020-01-01, usd_per_million: {input: 0.15, output: 0.60}}
  - {provider: steady, model: claude-sonnet-4-6, from: 2020-01-01, usd_per_million: {input: 3, output: 15}}
limits:
%[3]s`, w.provider.URL, w.keyFile, limits)
	p, err := policy.Parse([]byte(text), nil)
	require.NoError(w, err, text)
	// A Redis that is slow because everything is must not open the breaker.
	p.Degraded.Breaker.Latency = patience
	return p
}

const roomy = `  - {name: app-day, tier: app, budget: {requests: 1000000, per: day}}
`

// run starts the gateway; it ends with the test at the latest.
func (w *world) run(limits string) *world {
	w.Helper()
	log := slog.New(slog.NewJSONHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	w.outbox, err = outbox.Open(outbox.Config{
		Dir: w.TempDir(), AckTimeout: patience, SyncEvery: 10 * time.Millisecond, SegmentBytes: 1 << 20, MaxBytes: 1 << 30,
	}, w.nc, log, w.registry)
	require.NoError(w, err)
	w.gateway, err = New(w.config, Deps{
		Scripts: w.scripts, NATS: w.nc, Outbox: w.outbox, Policy: w.rules(limits), FollowPolicy: w.follow, Log: log, Registry: w.registry,
	})
	require.NoError(w, err)
	require.Equal(w, usualWaits, w.gateway.waits)
	w.gateway.waits = waits{fill: patience, pushed: patience, owners: patience, cut: patience}
	if w.prepare != nil {
		w.prepare(w.gateway)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w, err)
	w.url = "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.gateway.Run(ctx, listener) }()
	w.stop = sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-done, w.outbox.Close())
	})
	w.Cleanup(func() {
		require.NoError(w, w.stop())
		require.NotContains(w, w.logs.String(), callerSecret)
		require.NotContains(w, w.logs.String(), upstreamSecret)
	})
	stack.Eventually(w, func() error {
		if g := w.gateway.control.Generation(); g != "1" {
			return fmt.Errorf("the gateway knows generation %q", g)
		}
		return w.gateway.Ready()
	})
	return w
}

func start(t testing.TB, limits string, provider http.HandlerFunc) *world {
	t.Helper()
	return begin(t, provider).run(limits)
}

type answer struct {
	*http.Response
	body string
	err  error // of reading the body
}

// send sends a request with the caller's key; headers are names and values in turn.
func (w *world) send(method, path, body string, headers ...string) answer {
	w.Helper()
	return w.sendContext(context.Background(), method, path, body, headers...)
}

func (w *world) sendContext(ctx context.Context, method, path, body string, headers ...string) answer {
	w.Helper()
	r, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	require.NoError(w, err)
	r.Header.Set("Authorization", "Bearer "+callerSecret)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := w.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	text, err := io.ReadAll(response.Body)
	require.NoError(w, response.Body.Close())
	require.NotContains(w, string(text), upstreamSecret)
	require.NotContains(w, fmt.Sprint(response.Header), upstreamSecret)
	return answer{response, string(text), err}
}

func (w *world) chat(more string, headers ...string) answer {
	w.Helper()
	return w.send(http.MethodPost, chatPath, chatBody(more), headers...)
}

// chatBody is 20 estimated input tokens or so, and an output bound of 10.
func chatBody(more string) string {
	return `{"model":"gpt-4o-mini","messages":[{"role":"user","content":"Say hello."}],"max_tokens":10` + more + `}`
}

// problemOf reads an error answer.
func (w *world) problemOf(a answer) (p struct {
	Type      string
	RequestID string `json:"request_id"`
	Error     struct {
		Message, Type, Code string
		Param               *string
	}
	Tollgate struct {
		Reason, Layer, Subject, Unit string
		LimitName                    string `json:"limit_name"`
		Limit, Used, Held, Needed    json.Number
		ResetsAt                     time.Time `json:"resets_at"`
		RetryAfterS                  int64     `json:"retry_after_s"`
		Options                      []option
	}
},
) {
	w.Helper()
	require.NoError(w, a.err)
	require.Equal(w, "application/json", a.Header.Get("Content-Type"))
	require.NoError(w, json.Unmarshal([]byte(a.body), &p), a.body)
	require.NotEmpty(w, p.Error.Message)
	return p
}

// events waits until the stream has n events of reservations, extensions left out, and returns them by kind, in order of arrival.
func (w *world) events(n int) map[event.Kind][]*event.Event {
	w.Helper()
	var found map[event.Kind][]*event.Event
	stack.Eventually(w, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		stream, err := w.js.Stream(ctx, event.Stream)
		if err != nil {
			return err
		}
		found = map[event.Kind][]*event.Event{}
		count := 0
		for i := uint64(1); i <= stream.CachedInfo().State.LastSeq; i++ {
			msg, err := stream.GetMsg(ctx, i)
			if err != nil {
				return err
			}
			e, err := event.Decode(msg.Data)
			if err != nil {
				return err
			}
			if e.Reservation != nil && e.Kind != event.KindExtended {
				found[e.Kind] = append(found[e.Kind], e)
				count++
			}
		}
		if count != n {
			return fmt.Errorf("%d events, want %d", count, n)
		}
		return nil
	})
	return found
}

// outcome is that of the only request.
func (w *world) outcome() *event.Outcome {
	w.Helper()
	found := w.events(2)
	require.Len(w, found[event.KindReserved], 1)
	require.Len(w, found[event.KindUsed], 1)
	require.Equal(w, found[event.KindReserved][0].Reservation.ID, found[event.KindUsed][0].Reservation.ID)
	return found[event.KindUsed][0].Outcome
}

func (w *world) released() *event.Release {
	w.Helper()
	found := w.events(2)
	require.Len(w, found[event.KindReserved], 1)
	require.Len(w, found[event.KindReleased], 1)
	return found[event.KindReleased][0].Release
}

// plain answers every request with the text, which reports 12 tokens in and 5 out.
const plainAnswer = `{"id":"chatcmpl-1","model":"gpt-4o-mini-2024-07-18","choices":[{"message":{"content":"Hello."}}],"usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17}}`

func plain(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, plainAnswer)
}
