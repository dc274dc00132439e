package settler_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/lua"
	"tollgate/migrations"
	"tollgate/settler"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{Migrate: migrations.Up}) }

const app = "checkout"

// patience bounds every wait of a test, and every call that it makes itself.
const patience = stack.Patience

func testConfig() settler.Config {
	return settler.Config{
		Batch: 100, Linger: 5 * time.Millisecond, Workers: 2, AckWait: 30 * time.Second, MaxAckPending: 1000, MaxAge: time.Hour, Replicas: 1,
		SweepEvery: 50 * time.Millisecond, SweepGrace: 100 * time.Millisecond, RebuildEvery: 50 * time.Millisecond,
		PresenceWait: 20 * time.Millisecond, CompareEvery: time.Hour, DirectoryEvery: 50 * time.Millisecond, GapAge: 100 * time.Millisecond,
	}
}

// world is one ledger with its three services and what a gateway would do to them.
type world struct {
	testing.TB
	databaseURL string
	store       *pg.Store
	redisURL    string
	redis       *redis.Client
	scripts     *lua.Scripts
	nats        *services.NATS
	settlers    *lua.Scripts // those that settlers run
	storeDir    string       // of nats
	nc          *nats.Conn
	js          jetstream.JetStream
	numbering   sync.Mutex // guards the sequence where requests run beside each other
	sequence    uint64
	metrics     *prometheus.Registry
}

type parts struct {
	databaseURL, redisURL string
	redisTimeout          time.Duration // of settlers; 0 means that they wait for as long as their work may take
}

func newWorld(t testing.TB, p parts) *world {
	t.Helper()
	stack.AwayFromMidnight(t, time.UTC)
	w := &world{TB: t, databaseURL: p.databaseURL, redisURL: p.redisURL, storeDir: t.TempDir(), metrics: prometheus.NewRegistry()}
	var err error
	w.nats, err = services.StartNATS(t.Context(), services.NATSConfig{StoreDir: w.storeDir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.nats.Stop(context.Background())) })
	if w.databaseURL == "" {
		w.databaseURL = stack.Postgres(t)
	}
	if w.redisURL == "" {
		w.redisURL = stack.Redis(t)
	}
	w.store, err = pg.Open(t.Context(), w.databaseURL, 12)
	require.NoError(t, err)
	t.Cleanup(w.store.Close)
	require.NoError(t, w.store.CreateApp(t.Context(), app, "paid"))
	w.redis = w.connect(patience)
	w.scripts = lua.New(w.redis)
	w.settlers = lua.New(w.connect(cmp.Or(p.redisTimeout, 30*time.Second)))
	w.nc, err = nats.Connect(w.nats.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(w.nc.Close)
	w.js, err = jetstream.New(w.nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	return w
}

func (w *world) connect(timeout time.Duration) *redis.Client {
	w.Helper()
	client, err := lua.Connect(w.redisURL, lua.Options{Timeout: timeout})
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, client.Close()) })
	return client
}

// settle runs a settler until stop is called, at the latest at the end of the test.
func (w *world) settle() (stop func()) {
	w.Helper()
	return w.settleWith(testConfig())
}

func (w *world) settleWith(config settler.Config) (stop func()) {
	w.Helper()
	w.metrics = prometheus.NewRegistry()
	s, err := settler.New(config, settler.Deps{
		Store: w.store, Scripts: w.settlers, NATS: w.nc, Log: slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Registry: w.metrics,
	})
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(w, <-done)
		}
	}
	w.Cleanup(stop)
	w.eventually(func() error { return s.Ready() })
	return stop
}

// eventually polls until check has no error.
func (w *world) eventually(check func() error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			require.NoError(w, err)
		case <-ticker.C:
		}
	}
}

func counters() []ledger.Counter {
	return []ledger.Counter{
		{Tier: ledger.TierPlatform, Family: "platform", Subject: "platform", Period: ledger.PeriodDay, Window: ledger.Calendar{}.Window(ledger.PeriodDay, time.Now())},
		{Tier: ledger.TierApp, Family: "app", Subject: "app:" + app, Period: ledger.PeriodTotal},
	}
}

func newReservation(deadline time.Duration) event.Reservation {
	now := time.Now().UTC()
	return event.Reservation{
		ID: event.NewReservationID(now), Key: "k_1", Plan: "paid", Provider: "openai", ModelRequested: "m", Model: "m", Endpoint: "/v1/chat/completions",
		Attempt: 1, Held: ledger.Amounts{Requests: 1, Tokens: 100, NanoUSD: 1000}, Counters: counters(), ReservedAt: now,
		Deadline: now.Add(deadline), OnExpiry: event.ExpiryCharge, PolicyRevision: "1",
	}
}

// reserve holds the amounts in Redis, as a gateway does.
func (w *world) reserve(r event.Reservation) {
	w.Helper()
	w.eventually(func() error {
		d, err := w.scripts.Reserve(context.Background(), &lua.ReserveCall{
			ID: r.ID, App: app, Generation: w.generation(), TTL: time.Until(r.Deadline), Need: r.Held, Counters: r.Counters,
			Budgets: []lua.Budget{{Counter: 0, Unit: ledger.UnitUSD, Limit: 1 << 60}, {Counter: 1, Unit: ledger.UnitUSD, Limit: 1 << 60}},
		})
		if err == nil && d.Status != lua.StatusAllowed && d.Status != lua.StatusHeld {
			err = fmt.Errorf("reserve: status %d", d.Status)
		}
		return err
	})
}

// amounts reads used and held nano-dollars of both counters, by asking for more than there could ever be.
func (w *world) amounts() (platform, own lua.BudgetState, err error) {
	d, err := w.scripts.Reserve(context.Background(), &lua.ReserveCall{
		ID: event.NewReservationID(time.Now()), App: app, Generation: w.generation(), TTL: time.Minute, Need: ledger.Amounts{NanoUSD: 1}, Counters: counters(),
		Budgets: []lua.Budget{{Counter: 0, Unit: ledger.UnitUSD, Limit: 0}, {Counter: 1, Unit: ledger.UnitUSD, Limit: 0}},
	})
	if err == nil && d.Status != lua.StatusRefused {
		err = fmt.Errorf("probe: status %d", d.Status)
	}
	if err != nil {
		return lua.BudgetState{}, lua.BudgetState{}, err
	}
	return d.Budgets[0], d.Budgets[1], nil
}

// awaitRedis waits until both counters show the amounts.
func (w *world) awaitRedis(used, held int64) {
	w.Helper()
	want := lua.BudgetState{Used: used, Held: held}
	w.eventually(func() error {
		platform, own, err := w.amounts()
		if err == nil && (platform != want || own != want) {
			err = fmt.Errorf("platform %+v, app %+v, want %+v", platform, own, want)
		}
		return err
	})
}

func (w *world) event(kind event.Kind, r event.Reservation) *event.Event {
	w.numbering.Lock()
	defer w.numbering.Unlock()
	w.sequence++
	e := &event.Event{
		V: event.Version, ID: event.ID(r.ID, kind), Kind: kind, App: app, OccurredAt: time.Now().UTC(), Producer: "gw-1", Sequence: w.sequence, Reservation: &r,
	}
	if kind == event.KindUsed {
		e.Outcome = &event.Outcome{
			Usage: ledger.Usage{Input: 40, Output: 10}, UsageState: ledger.UsageReported, Cost: 500, Status: 200, Finish: ledger.ReasonOK,
			Components: []event.Component{{Class: ledger.ClassInput, Tokens: 40, Cost: 500}},
		}
	}
	if kind == event.KindReleased {
		e.Release = &event.Release{Reason: ledger.ReasonUpstreamFailed}
	}
	return e
}

func (w *world) publish(events ...*event.Event) {
	w.Helper()
	for _, e := range events {
		body, err := e.Encode()
		require.NoError(w, err)
		w.send(e.Subject(), e.ID, body)
	}
}

// record publishes an event of the reservation. It is safe for concurrent use.
func (w *world) record(ctx context.Context, kind event.Kind, r event.Reservation) error {
	e := w.event(kind, r)
	body, err := e.Encode()
	if err != nil {
		return err
	}
	_, err = w.js.Publish(ctx, e.Subject(), body, jetstream.WithMsgID(e.ID))
	return err
}

// send publishes until the stream has the message: it may be away for a while.
func (w *world) send(subject, id string, body []byte) {
	w.Helper()
	w.eventually(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := w.js.Publish(ctx, subject, body, jetstream.WithMsgID(id))
		return err
	})
}

// ask repeats a question until somebody answers it: a settler that has just begun may not listen yet.
func (w *world) ask(subject, question string) string {
	w.Helper()
	var answer string
	w.eventually(func() error {
		reply, err := w.nc.Request(subject, []byte(question), patience)
		if err == nil {
			answer = string(reply.Data)
		}
		return err
	})
	return answer
}

// askRebuild asks for a slot's marks, as gateways do, until they stand.
func (w *world) askRebuild(slots ...string) {
	w.Helper()
	for _, slot := range slots {
		w.eventually(func() error {
			if answer := w.ask(event.RebuildSubject, slot); answer != "ok" {
				return fmt.Errorf("rebuild %s: %s", slot, answer)
			}
			return nil
		})
	}
}

// state is a reservation's state in the ledger, "" when it is unknown.
func (w *world) state(id string) (string, error) {
	return w.scan(`SELECT coalesce((SELECT state FROM reservations WHERE reservation_id = $1), '')`, id)
}

func (w *world) scan(query string, args ...any) (string, error) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.databaseURL)
	if err != nil {
		return "", err
	}
	defer func() { require.NoError(w, conn.Close(ctx)) }()
	var text string
	err = conn.QueryRow(ctx, query, args...).Scan(&text)
	return text, err
}

func (w *world) awaitState(id, want string) {
	w.Helper()
	w.eventually(func() error {
		got, err := w.state(id)
		if err == nil && got != want {
			err = fmt.Errorf("reservation %s is %q, want %q", id, got, want)
		}
		return err
	})
}

// awaitSettled waits until what is on the stream is settled, all of it: an ending may be settled before its opening.
func (w *world) awaitSettled() {
	w.Helper()
	end := w.end()
	w.eventually(func() error { return w.settledThrough(end) })
}

// end is the sequence of the last message on the stream.
func (w *world) end() uint64 {
	w.Helper()
	stream, err := w.js.Stream(context.Background(), event.Stream)
	require.NoError(w, err)
	return stream.CachedInfo().State.LastSeq
}

func (w *world) settledThrough(end uint64) error {
	consumer, err := w.js.Consumer(context.Background(), event.Stream, "settler")
	if err != nil {
		return err
	}
	if floor := consumer.CachedInfo().AckFloor.Stream; floor < end {
		return fmt.Errorf("settled up to %d of %d", floor, end)
	}
	return nil
}

// requireVerified wants every invariant to hold, save one, once all that was published is settled.
func (w *world) requireVerified(except string) {
	w.Helper()
	w.awaitSettled()
	var checks []pg.Check
	w.eventually(func() (err error) { // a connection may be of before Postgres was away
		checks, err = w.store.Verify(context.Background())
		return err
	})
	for _, c := range checks {
		require.True(w, c.OK || c.Name == except, "%s: %d %s", c.Name, c.Figure, c.Meaning)
	}
}

// metric is the sum of a metric's values, of a histogram's observations, over its labels.
func (w *world) metric(name string) float64 {
	w.Helper()
	families, err := w.metrics.Gather()
	require.NoError(w, err)
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}
