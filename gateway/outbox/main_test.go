package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

func TestMain(m *testing.M) {
	if play := os.Getenv(childRole); play != "" {
		os.Exit(runChild(play))
	}
	stack.Main(m, stack.Options{})
}

// patience bounds every wait of a test.
const patience = stack.Patience

// testConfig gives up waiting for an acknowledgement soon. What must have one before its test goes on has patience for it.
func testConfig(dir string) Config {
	return Config{
		Dir: dir, Durability: DurabilityAck, AckTimeout: 500 * time.Millisecond, SyncEvery: 5 * time.Millisecond, SegmentBytes: 1 << 16, MaxBytes: 1 << 30,
	}
}

func dial(url string) (*nats.Conn, error) {
	return nats.Connect(url, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(time.Millisecond, time.Millisecond), nats.ReconnectBufSize(-1), nats.Timeout(patience),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := dial(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// away is a connection to a place where nobody listens.
func away(t testing.TB) *nats.Conn {
	t.Helper()
	return connect(t, "nats://"+stack.FreeAddr(t))
}

// logs collects what is logged; safe for concurrent use.
type opened struct {
	*Outbox
	t        testing.TB
	logs     *stack.Logs
	registry *prometheus.Registry
	once     sync.Once
	cancel   context.CancelFunc
	done     chan error
}

// open opens an outbox that is closed at the latest when the test ends.
func open(t testing.TB, config Config, nc *nats.Conn) *opened {
	t.Helper()
	o := &opened{t: t, logs: &stack.Logs{}, registry: prometheus.NewRegistry()}
	var err error
	o.Outbox, err = Open(config, nc, slog.New(slog.NewTextHandler(o.logs, nil)), o.registry)
	require.NoError(t, err)
	t.Cleanup(o.end)
	return o
}

// start opens an outbox and runs it.
func start(t testing.TB, config Config, nc *nats.Conn) *opened {
	t.Helper()
	o := open(t, config, nc)
	o.run()
	return o
}

func (o *opened) run() {
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel, o.done = cancel, make(chan error, 1)
	go func() { o.done <- o.Run(ctx) }()
}

func (o *opened) end() {
	o.once.Do(func() {
		if o.cancel != nil {
			o.cancel()
			require.NoError(o.t, <-o.done)
		}
		require.NoError(o.t, o.Close())
	})
}

func (o *opened) flush() {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(o.t, o.Flush(ctx))
}

func (o *opened) gauge(name string) float64 {
	o.t.Helper()
	families, err := o.registry.Gather()
	require.NoError(o.t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	o.t.Fatalf("no metric %s", name)
	return 0
}

// reserved is a valid event; padding makes it as much larger.
func reserved(padding int) *event.Event {
	now := time.Now().UTC()
	id := event.NewReservationID(now)
	r := event.Reservation{
		ID: id, Key: "k_1", Plan: "free", Provider: "openai", ModelRequested: "m", Model: "m", Endpoint: "/v1/chat/completions", Attempt: 1,
		Held: ledger.Amounts{Requests: 1, Tokens: 100}, ReservedAt: now, Deadline: now.Add(time.Minute), OnExpiry: event.ExpiryCharge,
	}
	if padding > 0 {
		r.Flags = []string{strings.Repeat("x", padding)}
	}
	return &event.Event{
		V: event.Version, ID: event.ID(id, event.KindReserved), Kind: event.KindReserved, App: "checkout", OccurredAt: now, Reservation: &r,
	}
}

// world is a NATS server with the stream.
type world struct {
	t        testing.TB
	nats     *services.NATS
	storeDir string // of nats
	nc       *nats.Conn
	js       jetstream.JetStream
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, storeDir: t.TempDir()}
	var err error
	w.nats, err = services.StartNATS(t.Context(), services.NATSConfig{StoreDir: w.storeDir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.nats.Stop(context.Background())) })
	w.nc = connect(t, w.nats.ClientURL())
	w.js, err = jetstream.New(w.nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	return w
}

// shutdown stops the server, and returns when its connection knows.
func (w *world) shutdown() {
	w.t.Helper()
	require.NoError(w.t, w.nats.Shutdown(w.t.Context()))
	stack.Eventually(w.t, func() error {
		if w.nc.IsConnected() {
			return errors.New("connected")
		}
		return nil
	})
}

func (w *world) createStream() {
	w.t.Helper()
	stack.Eventually(w.t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := w.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: event.Stream, Subjects: []string{event.Subjects}, Storage: jetstream.FileStorage, Duplicates: 10 * time.Minute, AllowDirect: true,
		})
		return err
	})
}

func streamed(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	w.createStream()
	return w
}

// arrived reads the whole stream. No event may be there twice and no sequence number may stand for two.
func (w *world) arrived() map[uint64]string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := w.js.Stream(ctx, event.Stream)
	require.NoError(w.t, err)
	info, err := stream.Info(ctx)
	require.NoError(w.t, err)
	bySequence, seen := map[uint64]string{}, map[string]bool{}
	for i := info.State.FirstSeq; info.State.Msgs > 0 && i <= info.State.LastSeq; i++ {
		msg, err := stream.GetMsg(ctx, i)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // a test deleted it
		}
		require.NoError(w.t, err)
		l := labelOf(msg.Data)
		id, _, _ := strings.Cut(msg.Header.Get(jetstream.MsgIDHeader), lostMark)
		require.Equal(w.t, l.id, id)
		require.False(w.t, seen[l.id], "event %s is in the stream twice", l.id)
		require.Empty(w.t, bySequence[l.sequence], "sequence %d stands for two events", l.sequence)
		seen[l.id], bySequence[l.sequence] = true, l.id
	}
	return bySequence
}

// requireAll requires that exactly the sequence numbers 1 to n have arrived, each with its event.
func (w *world) requireAll(n uint64, ids map[uint64]string) {
	w.t.Helper()
	arrived := w.arrived()
	require.Len(w.t, arrived, int(n))
	for i := uint64(1); i <= n; i++ {
		require.NotEmpty(w.t, arrived[i], "sequence %d is missing", i)
		if id, ok := ids[i]; ok {
			require.Equal(w.t, id, arrived[i], "sequence %d", i)
		}
	}
}

func segmentFiles(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := listSegments(dir)
	require.NoError(t, err)
	return paths
}

func mustRecord(t testing.TB, o *opened, n int) map[uint64]string {
	t.Helper()
	ids := map[uint64]string{}
	for range n {
		e := reserved(0)
		require.NoError(t, o.Record(context.Background(), e))
		ids[e.Sequence] = e.ID
	}
	return ids
}

func mustAppend(t testing.TB, o *opened, n, padding int) map[uint64]string {
	t.Helper()
	ids := map[uint64]string{}
	for range n {
		e := reserved(padding)
		require.NoError(t, o.Append(e))
		ids[e.Sequence] = e.ID
	}
	return ids
}

func pendingIs(o *opened, n int) func() error {
	return func() error {
		if got := o.Pending(); got != n {
			return fmt.Errorf("%d events pending, want %d", got, n)
		}
		return nil
	}
}

// confirmedThrough says that Postgres holds everything up to the sequence.
func confirmedThrough(sequence uint64) event.Confirmation {
	return event.Confirmation{Through: sequence, Settled: true}
}
