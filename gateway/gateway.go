package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"tollgate/gateway/admission"
	"tollgate/gateway/outbox"
	"tollgate/gateway/provider"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
	"tollgate/lua"
)

// Deps are the parts a gateway stands on. They stay the caller's and must outlive Run.
type Deps struct {
	Scripts *lua.Scripts
	NATS    *nats.Conn
	Outbox  *outbox.Outbox
	Policy  *policy.Policy
	Dir     string // the gateway's own folder, for large bodies on their way; "" is the system's for temporary files
	// FollowPolicy takes every policy that is pushed into force, beginning with the one that stands.
	FollowPolicy bool
	Log          *slog.Logger
	Registry     prometheus.Registerer
	Now          func() time.Time // the local clock; nil is time.Now
}

// Gateway serves the data plane. It is safe for concurrent use.
type Gateway struct {
	config    Config
	log       *slog.Logger
	scripts   *lua.Scripts
	nc        *nats.Conn
	directory *admission.Directory
	control   *admission.Control
	admission *admission.Admission
	clock     *admission.Clock
	outbox    *outbox.Outbox
	learner   *admission.Learner
	transport *http.Transport
	upstreams atomic.Pointer[map[string]*provider.Upstream] // of the policy in force, by provider
	trusted   []netip.Prefix                                // proxies
	bodies    *bodies
	metrics   *metrics
	refusals  *refusals
	remaining *remaining
	stopping  atomic.Bool
	active    atomic.Int64  // requests being served
	drains    chan struct{} // one element for each stream that is read on without its caller
	// work ends when answers in progress are cut at the end of a shutdown. It stands here because upstream calls outlive
	// the context of the request they are made for.
	work    context.Context
	cutWork context.CancelFunc
	follow  bool
	js      jetstream.JetStream
	filler  *filler
	waits   waits

	presentOnce atomic.Bool // settlers have been told of this gateway
	owesPolicy  atomic.Bool // the policy in force is not on record
}

// New binds a gateway to its parts. It errors when a provider's secret is missing, when prices contradict each other, or when a trusted proxy has no address.
func New(config Config, d Deps) (*Gateway, error) {
	trusted, err := config.trustedProxies()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if err := provider.LoadVocabularies(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	js, err := jetstream.New(d.NATS)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	kept, err := newBodies(d.Dir, config.MaxBodies)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	clock := admission.NewClock(d.Now)
	g := &Gateway{
		config: config, log: d.Log, scripts: d.Scripts, nc: d.NATS, clock: clock, outbox: d.Outbox,
		learner: admission.NewLearner(learnedPairs), directory: admission.NewDirectory(js, d.Log),
		transport: provider.NewTransport(config.timeouts()),
		trusted:   trusted, bodies: kept, metrics: newMetrics(d.Registry), refusals: newRefusals(clock.Now()),
		remaining: newRemaining(d.Registry), follow: d.FollowPolicy, js: js, drains: make(chan struct{}, config.Drains),
		waits: usualWaits,
	}
	g.control = admission.NewControl(d.NATS, js, g.delivered)
	g.filler = newFiller(d.NATS, func(on bool) { g.metrics.setDegraded(componentLedger, on) }, d.Log)
	g.work, g.cutWork = context.WithCancel(context.Background())
	g.admission = admission.New(admission.Parts{
		Scripts: d.Scripts, Keys: g.directory, Control: g.control, Clock: clock, Timeout: config.LimiterTimeout,
		Metrics: admission.NewMetrics(d.Registry), Degraded: func(on bool) { g.metrics.setDegraded(componentRedis, on) }, Log: d.Log,
	})
	d.Registry.MustRegister(g.admission.Breaker(), keyMetrics{g})
	return g, g.setPolicy(d.Policy)
}

// learnedPairs is for how many pairs of app and model estimates are corrected: about 5 MB when all are there.
const learnedPairs = 10_000

// setPolicy takes a policy into force whole, or errors and leaves the running one. What is known of providers' keys stays.
func (g *Gateway) setPolicy(p *policy.Policy) error {
	upstreams, err := connect(p, g.transport)
	if err != nil {
		return err
	}
	before := g.upstreams.Load()
	for name, u := range upstreams {
		u.Timeouts = g.config.timeouts()
		if before != nil && (*before)[name] != nil {
			u.Adopt((*before)[name])
		}
	}
	if err := g.admission.SetPolicy(p, upstreams); err != nil {
		return err
	}
	g.upstreams.Store(&upstreams)
	g.remaining.forget()
	return nil
}

// connect makes an upstream of every provider, with its secrets from the environment or files.
func connect(p *policy.Policy, transport http.RoundTripper) (map[string]*provider.Upstream, error) {
	upstreams := map[string]*provider.Upstream{}
	var problems []error
	for name, pr := range p.Providers {
		secrets := make([]string, len(pr.Keys))
		for i := range pr.Keys {
			var err error
			if secrets[i], err = secretOfKey(&pr.Keys[i]); err != nil {
				problems = append(problems, fmt.Errorf("provider %s (line %d): %w", name, pr.Keys[i].Line, err))
			}
		}
		upstreams[name] = provider.NewUpstream(pr, transport, secrets...)
	}
	return upstreams, errors.Join(problems...)
}

func secretOfKey(key *policy.ProviderKey) (string, error) {
	switch {
	case key.File != "":
		text, err := os.ReadFile(key.File)
		if err != nil {
			return "", fmt.Errorf("api_key_file: %w", err)
		}
		return strings.TrimSpace(string(text)), nil
	case key.Env != "":
		secret := os.Getenv(key.Env)
		if secret == "" {
			return "", fmt.Errorf("api_key_env: the environment variable %s is not set", key.Env)
		}
		return secret, nil
	default:
		return "", nil
	}
}

// Ready tells why requests cannot be served yet, nil when they can.
func (g *Gateway) Ready() error {
	switch {
	case g.stopping.Load():
		return errors.New("the gateway is stopping")
	case !isClosed(g.directory.Ready()):
		return errors.New("the key directory has not been read yet")
	default:
		return nil
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Run serves on the listener until ctx ends, then stops in order: no new requests, answers in progress finish, events are
// flushed. It returns when every goroutine of the gateway has ended.
func (g *Gateway) Run(ctx context.Context, listener net.Listener) error {
	// What finishes requests must outlive the signal that ends the accepting of new ones.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	subscription, barriers, err := g.hearBarriers()
	if err != nil {
		return err
	}
	defer func() { _ = subscription.Unsubscribe() }() // the connection may have been closed
	background, work := errgroup.WithContext(work)
	background.Go(func() error { return g.outbox.Run(work) })
	background.Go(func() error { return g.directory.Run(work) })
	background.Go(func() error { return g.admission.Run(work) })
	background.Go(func() error { return g.confirmations(work) })
	background.Go(func() error { return g.serveBarriers(work, barriers) })
	background.Go(func() error { return g.recordRefusalsEvery(work) })
	background.Go(func() error { return g.filler.run(work) })

	g.awaitDirectory(ctx)
	background.Go(func() error { return g.stayPresent(work) })
	g.filler.before(ctx, g.admission.Policy(), g.waits.fill)
	g.filler.follow(g.admission.Policy())
	g.announce()
	g.readPushed(ctx)
	background.Go(func() error { return g.followPushed(work) })
	server := &http.Server{
		Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 3 * time.Minute,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	g.log.Info("gateway is serving", "address", listener.Addr().String(), "policy", g.admission.Policy().Revision, "producer", g.outbox.Producer())

	select {
	case <-ctx.Done():
	case <-work.Done():
	case err = <-served:
		served <- err
	}
	return errors.Join(g.stop(server, served), func() error {
		stopWork()
		return background.Wait()
	}())
}

// awaitDirectory gives keys and grants a moment to arrive, so that the first callers are not refused without them.
func (g *Gateway) awaitDirectory(ctx context.Context) {
	if err := g.present(ctx); err != nil {
		g.log.Warn("generation is not known yet", "error", err)
	}
	late := time.After(5 * time.Second)
	for _, ready := range []<-chan struct{}{g.directory.Ready(), g.admission.GrantsReady()} {
		select {
		case <-ready:
		case <-ctx.Done():
			return
		case <-late:
			g.log.Warn("keys or grants have not been read yet, they are unknown until they have")
			return
		}
	}
}

// announce records which policy this gateway judges by. While nothing can be recorded, because the disk is full, it is owed.
func (g *Gateway) announce() {
	g.owesPolicy.Store(false)
	now := g.clock.Now()
	projection := g.admission.Policy().Projection(now)
	e := &event.Event{
		V: event.Version, ID: event.ID(event.NewReservationID(now), event.KindPolicy), Kind: event.KindPolicy, App: "platform",
		OccurredAt: now, Policy: &projection,
	}
	if err := g.outbox.Append(e); err != nil {
		g.owesPolicy.Store(true)
		g.log.Error("policy event is not recorded and tried again, until then budget limits in finance views may be old", "error", err)
	}
}

func (g *Gateway) stop(server *http.Server, served <-chan error) error {
	g.stopping.Store(true)
	ctx, cancel := context.WithTimeoutCause(context.Background(), g.config.ShutdownTimeout, errors.New("shutdown: time is up"))
	defer cancel()
	end, _ := ctx.Deadline()
	steps := []struct {
		name string
		run  func(context.Context) error
	}{
		{"finish answers in progress", server.Shutdown},
		{"cut what did not finish", func(ctx context.Context) error { return g.cut(ctx, server) }},
		{"record refusals", func(context.Context) error { return g.recordRefusals() }},
		{"flush events", g.outbox.Flush},
	}
	var problems []error
	for _, step := range steps {
		if err := step.run(ctx); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", step.name, err))
		}
		if least := time.Now().Add(g.waits.cut); end.Before(least) {
			ctx, cancel = context.WithDeadlineCause(context.Background(), least, errors.New("shutdown: time is up"))
			defer cancel()
		}
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		problems = append(problems, err)
	}
	g.transport.CloseIdleConnections()
	return errors.Join(problems...)
}

// cut ends what is still being served, and waits until each such request is on record.
func (g *Gateway) cut(ctx context.Context, server *http.Server) error {
	err := server.Close()
	g.cutWork()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for g.active.Load() > 0 {
		select {
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("%d requests do not end: %w", g.active.Load(), context.Cause(ctx)))
		case <-ticker.C:
		}
	}
	return err
}
