package settler

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger/pg"
	"tollgate/lua"
	"tollgate/settler/directory"
	"tollgate/settler/rebuild"
	"tollgate/settler/sweep"
)

// Deps are the parts a settler stands on. They stay the caller's and must outlive Run. Store needs a connection for each
// worker and eight more.
type Deps struct {
	Store    *pg.Store
	Scripts  *lua.Scripts // with a timeout of a second or so: the next batch waits for a write-back
	NATS     *nats.Conn
	Log      *slog.Logger
	Registry prometheus.Registerer
	Now      func() time.Time // nil is time.Now
}

// Settler settles events. It is safe for concurrent use.
type Settler struct {
	config   Config
	store    *pg.Store
	scripts  *lua.Scripts
	nc       *nats.Conn
	js       jetstream.JetStream
	log      *slog.Logger
	metrics  *metrics
	now      func() time.Time
	messages []chan jetstream.Msg // by worker
	seed     maphash.Seed
	spread   atomic.Int64 // until when all workers get messages, in Unix nanoseconds
	rebuild  *rebuild.Rebuilder
	sweep    *sweep.Sweeper
	keys     *directory.Sync
	granted  chan struct{} // holds one element when gateways must be told of grants

	generations *rebuild.Generations
	barrier     *rebuild.Barrier

	mu    sync.Mutex      // guards what follows
	dirty map[string]bool // apps whose last write-back Redis did not take
	lost  time.Time       // when a write-back last found that Redis had lost what it held
	ready bool
}

// New binds a settler to its parts. It errors on a configuration that Validate refuses.
func New(config Config, d Deps) (*Settler, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("settler: %w", err)
	}
	js, err := jetstream.New(d.NATS)
	if err != nil {
		return nil, fmt.Errorf("settler: %w", err)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	s := &Settler{
		config: config, store: d.Store, scripts: d.Scripts, nc: d.NATS, js: js, log: d.Log, metrics: newMetrics(d.Registry),
		now: d.Now, seed: maphash.MakeSeed(), dirty: map[string]bool{},
		keys: directory.NewSync(d.Store, js), granted: make(chan struct{}, 1),
	}
	for range config.Workers {
		s.messages = append(s.messages, make(chan jetstream.Msg, max(1, config.Batch/config.Workers)))
	}
	s.store.Guard()
	s.generations = rebuild.NewGenerations(js, config.Replicas, d.Now)
	s.barrier = rebuild.NewBarrier(d.NATS, js, config.Replicas, config.PresenceWait, d.Now)
	s.rebuild = rebuild.New(rebuild.Parts{
		Store: d.Store, Scripts: d.Scripts, Generations: s.generations, Barrier: s.barrier, Settled: s.awaitSettled,
		Refresh: s.markDirty, Log: d.Log, Now: d.Now,
	})
	s.sweep = sweep.New(d.Store, d.Scripts, js, s.rebuild.Quiet, config.SweepGrace, d.Log, d.Now)
	return s, nil
}

// renewEvery is far more often than marks lapse.
const renewEvery = 24 * time.Hour

// Ready tells why nothing is settled yet, nil when events are.
func (s *Settler) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return errors.New("the settler is waiting for Postgres or NATS")
	}
	return nil
}

func (s *Settler) setReady(ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = ready
}

// Run settles until ctx ends; then the batches in work are finished and everything else is left on the stream. It returns
// when all goroutines have ended; its error is nil after a stop that was asked for. Services that are away are waited for.
func (s *Settler) Run(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return ignoreStop(ctx, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.consume(ctx) })
	for _, messages := range s.messages {
		group.Go(func() error { return s.work(ctx, messages) })
	}
	group.Go(func() error { return s.every(ctx, "position", positionEvery, s.keepPosition) })
	group.Go(func() error { return s.every(ctx, "failover", s.config.RebuildEvery, s.rebuild.Failover) })
	group.Go(func() error { return s.serveRebuilds(ctx) })
	group.Go(func() error { return s.serveHandRebuilds(ctx) })
	group.Go(func() error { return s.compare(ctx) })
	group.Go(func() error { return s.serveConfirmations(ctx) })
	group.Go(func() error { return s.serveFills(ctx) })
	group.Go(func() error { return s.every(ctx, "refresh", s.config.RebuildEvery, s.refreshDirty) })
	group.Go(func() error { return s.every(ctx, "parked", parkedEvery, s.parkedReader()) })
	group.Go(func() error { return s.every(ctx, "sweep", s.config.SweepEvery, s.sweepOnce) })
	group.Go(func() error { return s.every(ctx, "directory", s.config.DirectoryEvery, s.keys.Run) })
	group.Go(func() error { return s.tellGrants(ctx) })
	group.Go(func() error { return s.every(ctx, "lag", time.Second, s.measureLag) })
	group.Go(func() error { return s.every(ctx, "gaps", s.config.GapAge/4+time.Millisecond, s.gapReporter()) })
	group.Go(func() error { return s.every(ctx, "renew", renewEvery, s.renew) })
	group.Go(func() error { return s.every(ctx, "partitions", time.Hour, s.ensurePartitions) })
	group.Go(func() error { return s.every(ctx, "seal", sealLook, s.sealer()) })
	return ignoreStop(ctx, group.Wait())
}

// prepare makes what every part relies on, waiting for Postgres and NATS.
func (s *Settler) prepare(ctx context.Context) error {
	for {
		err := s.ensure(ctx)
		if err == nil {
			s.setReady(true)
			s.log.Info("settler is settling", "workers", s.config.Workers, "batch", s.config.Batch)
			return nil
		}
		s.log.Warn("settler waits", "error", err)
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (s *Settler) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("prepare: took more than 30 s"))
	defer cancel()
	if err := s.generations.Ensure(ctx); err != nil {
		return err
	}
	if _, _, err := s.recognize(ctx); err != nil {
		return err
	}
	if err := s.store.EnsurePartitions(ctx, s.now()); err != nil {
		return err
	}
	if _, err := s.ensureConsumer(ctx); err != nil {
		return err
	}
	if err := s.barrier.Ensure(ctx); err != nil {
		return err
	}
	apps, err := s.store.Apps(ctx)
	if err != nil {
		return err
	}
	for _, app := range apps {
		s.markDirty(app)
	}
	return nil
}

// every runs work at once and then at the interval, until ctx ends. Its errors are logged and do not stop anything.
func (s *Settler) every(ctx context.Context, name string, interval time.Duration, work func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := work(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("periodic work failed", "work", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (s *Settler) sweepOnce(ctx context.Context) error { return s.sweep.Once(ctx) }

func (s *Settler) ensurePartitions(ctx context.Context) error {
	err := s.store.EnsurePartitions(ctx, s.now())
	missing, counted := s.store.MissingPartitions(ctx, s.now())
	if counted == nil {
		s.metrics.partitions.Set(float64(missing))
	}
	return errors.Join(err, counted)
}

// ignoreStop drops the errors that a stop that was asked for causes.
func ignoreStop(ctx context.Context, err error) error {
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
