package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tollgate/internal/dev/services"
	"tollgate/internal/dev/services/child"
	"tollgate/internal/sim"
	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
	"tollgate/migrations"
	"tollgate/settler/directory"
)

//go:embed policy.yaml
var gatewayPolicy []byte

const (
	startLimit = time.Minute
	stopGrace  = 15 * time.Second
	database   = "tollgate"
)

// system is every part, each a process of its own, on free ports of loopback, with its data in one temporary folder.
type system struct {
	program string // this program, to run parts of it
	dir     string
	policy  []byte
	env     []string
	pids    map[string]int
	own     map[string]*child.Process
	stops   []func(context.Context) error

	postgres *services.Postgres
	store    *pg.Store
	nc       *nats.Conn
	js       jetstream.JetStream
	consumer jetstream.Consumer // the settler's, once awaitSettled has found it
	callers  []caller

	sim, proxy, gateway         string            // host:port
	admin, debug                map[string]string // by part, host:port; debug only with profiles
	databaseURL, redisURL, nats string
}

// A step starts a part.
type step = func(*system, context.Context, Options) error

// servers are what every other part needs.
var servers = []step{(*system).startPostgres, (*system).startRedis, (*system).startNATS}

// start starts everything, the bare proxy only where it is wanted, with gateways that follow the policy; on an error what has
// been started is stopped again.
func start(ctx context.Context, o Options, policy []byte, proxy bool) (*system, error) {
	steps := append(slices.Clone(servers), (*system).startSim)
	if proxy {
		steps = append(steps, (*system).startProxy)
	}
	return startSteps(ctx, o, policy, append(steps, (*system).makeKeys, (*system).startSettler, (*system).startGateway))
}

func startSteps(ctx context.Context, o Options, policy []byte, steps []step) (s *system, err error) {
	s = &system{
		policy: policy, pids: map[string]int{partLoad: os.Getpid()}, own: map[string]*child.Process{}, env: environment(),
		admin: map[string]string{}, debug: map[string]string{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop(ctx))
		}
	}()
	if s.program, err = os.Executable(); err != nil {
		return s, err
	}
	if s.dir, err = os.MkdirTemp("", "tollgate-bench-"); err != nil {
		return s, err
	}
	s.onStop(func(context.Context) error { return os.RemoveAll(s.dir) })
	for _, step := range steps {
		if err := step(s, ctx, o); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *system) onStop(run func(context.Context) error) { s.stops = append(s.stops, run) }

// stop ends every part, last started first.
func (s *system) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), time.Minute, errors.New("bench: parts did not stop in time"))
	defer cancel()
	var problems []error
	for _, run := range slices.Backward(s.stops) {
		problems = append(problems, run(ctx))
	}
	s.stops = nil
	return errors.Join(problems...)
}

// environment is this process's without what configures Tollgate: figures must not depend on it.
func environment() []string {
	ours := []string{"TOLLGATE_", "DATABASE_URL", "REDIS_URL", "NATS_URL"}
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc(ours, func(prefix string) bool { return strings.HasPrefix(v, prefix) })
	})
}

func (s *system) startPostgres(ctx context.Context, _ Options) error {
	p, err := services.StartPostgres(ctx, services.PostgresConfig{DataDir: filepath.Join(s.dir, partPostgres), Fsync: true})
	if err != nil {
		return err
	}
	s.onStop(p.Stop)
	s.pids[partPostgres], s.postgres = p.PID(), p
	return s.openLedger(ctx, database)
}

// openLedger makes an empty ledger in a database of its own, for the parts that are started from now on.
func (s *system) openLedger(ctx context.Context, name string) error {
	if err := s.postgres.CreateDatabase(ctx, name); err != nil {
		return err
	}
	s.databaseURL = s.postgres.URL(name)
	if err := migrations.Up(ctx, s.databaseURL); err != nil {
		return err
	}
	store, err := pg.Open(ctx, s.databaseURL, 2)
	if err != nil {
		return err
	}
	s.store = store
	s.onStop(func(context.Context) error {
		store.Close()
		return nil
	})
	return nil
}

func (s *system) startRedis(ctx context.Context, _ Options) error {
	r, err := services.StartRedis(ctx, services.RedisConfig{DataDir: filepath.Join(s.dir, partRedis), AOF: true})
	if err != nil {
		return err
	}
	s.onStop(r.Stop)
	if r.InProcess {
		return errors.New("no redis-server is installed: a substitute would be measured instead")
	}
	s.pids[partRedis], s.redisURL = r.PID(), r.URL(0)
	return nil
}

func (s *system) startNATS(ctx context.Context, o Options) error {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	s.nats = "nats://" + address
	env, err := s.profiled(partNATS, o)
	if err != nil {
		return err
	}
	if err := s.run(partNATS, env, "bench", "nats", "--store", filepath.Join(s.dir, partNATS), "--listen", address); err != nil {
		return err
	}
	err = s.await(ctx, partNATS, func() error {
		s.nc, err = nats.Connect(s.nats, nats.Name("tollgate-bench"))
		return err
	})
	if err != nil {
		return err
	}
	s.onStop(func(context.Context) error {
		s.nc.Close()
		return nil
	})
	s.js, err = jetstream.New(s.nc)
	return err
}

func (s *system) startSim(ctx context.Context, _ Options) (err error) {
	if s.sim, err = freeAddress(); err != nil {
		return err
	}
	if err := s.run(partSim, nil, "provider-sim", "--listen", s.sim); err != nil {
		return err
	}
	return s.await(ctx, partSim, func() error { return s.setSim(ctx, 0) })
}

func (s *system) startProxy(ctx context.Context, _ Options) (err error) {
	if s.proxy, err = freeAddress(); err != nil {
		return err
	}
	if err := s.run(partProxy, nil, "bench", "proxy", "--listen", s.proxy, "--upstream", "http://"+s.sim); err != nil {
		return err
	}
	return s.await(ctx, partProxy, func() error {
		conn, err := net.Dial("tcp", s.proxy)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// makeKeys makes the apps and keys that the connections speak for, and puts them where the gateway finds them.
func (s *system) makeKeys(ctx context.Context, o Options) error {
	for i := range o.Keys {
		app := fmt.Sprintf("app-%d", i%o.Apps)
		if i < o.Apps {
			if err := s.store.CreateApp(ctx, app, ""); err != nil {
				return err
			}
		}
		secret := keys.NewSecret()
		if err := s.store.CreateKey(ctx, pg.Key{ID: keys.NewID(), App: app, Hash: keys.Hash(secret), Name: "bench"}); err != nil {
			return err
		}
		s.callers = append(s.callers, caller{key: secret, user: fmt.Sprintf("user-%d", i)})
	}
	return directory.NewSync(s.store, s.js).Run(ctx)
}

func (s *system) startSettler(ctx context.Context, o Options) error {
	return s.addSettler(ctx, o, partSettler)
}

func (s *system) addSettler(ctx context.Context, o Options, part string) error {
	env := []string{"DATABASE_URL=" + s.databaseURL, "REDIS_URL=" + s.redisURL, "NATS_URL=" + s.nats}
	return s.startService(ctx, o, part, env, "settler")
}

func (s *system) startGateway(ctx context.Context, o Options) (err error) {
	s.gateway, err = s.addGateway(ctx, o, partGateway, s.redisURL)
	return err
}

// addGateway starts a gateway and returns its address.
func (s *system) addGateway(ctx context.Context, o Options, part, redisURL string) (address string, err error) {
	file := filepath.Join(s.dir, part+".yaml")
	if err := os.WriteFile(file, s.policy, 0o600); err != nil {
		return "", err
	}
	if address, err = freeAddress(); err != nil {
		return "", err
	}
	// All parts and the load share this machine: a decision may have to wait for a processor.
	env := []string{
		"TOLLGATE_LIMITER_TIMEOUT=250ms", "REDIS_URL=" + redisURL, "NATS_URL=" + s.nats,
		providerURL + "=http://" + s.sim, "TOLLGATE_BENCH_PROVIDER_KEY=bench",
	}
	return address, s.startService(ctx, o, part, env,
		"gateway", "--listen", address, "--policy", file, "--data", filepath.Join(s.dir, part))
}

// providerURL is the variable by which a policy names the simulator.
const providerURL = "TOLLGATE_BENCH_PROVIDER_URL"

// startService starts a part with an admin plane and waits until it says that it is ready.
func (s *system) startService(ctx context.Context, o Options, part string, env []string, args ...string) error {
	admin, err := freeAddress()
	if err != nil {
		return err
	}
	s.admin[part] = admin
	profiled, err := s.profiled(part, o)
	if err != nil {
		return err
	}
	if err := s.run(part, slices.Concat(env, profiled, o.Env), append(args, "--admin", admin)...); err != nil {
		return err
	}
	return s.await(ctx, part, func() error { return call(ctx, http.MethodGet, "http://"+admin+"/readyz", "") })
}

// profiled is the environment that makes a part serve profiles, where they are wanted.
func (s *system) profiled(part string, o Options) (env []string, err error) {
	if o.Profile == "" {
		return nil, nil
	}
	s.debug[part], err = freeAddress()
	return []string{"TOLLGATE_PPROF=" + s.debug[part]}, err
}

// run starts a part that is a command of this program.
func (s *system) run(part string, env []string, args ...string) error {
	p, err := child.Start(child.Config{
		Path: s.program, Args: args, Env: append(slices.Clone(s.env), env...), LogPath: filepath.Join(s.dir, part+".log"),
	})
	if err != nil {
		return err
	}
	s.onStop(func(ctx context.Context) error { return p.Stop(ctx, stopGrace, syscall.SIGTERM) })
	s.pids[part], s.own[part] = p.PID(), p
	return nil
}

// end stops a part that run has started, and forgets it.
func (s *system) end(ctx context.Context, part string) error {
	err := s.own[part].Stop(ctx, stopGrace, syscall.SIGTERM)
	delete(s.pids, part)
	delete(s.own, part)
	return err
}

// await asks a starting part until it answers or ends.
func (s *system) await(ctx context.Context, part string, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-s.own[part].Done():
			return fmt.Errorf("%s ended:\n%s", part, s.own[part].LogTail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%w), its log ends with:\n%s", part, err, s.own[part].LogTail(20))
		case <-ticker.C:
		}
	}
}

// setSim sets how the simulator answers, and empties its books.
func (s *system) setSim(ctx context.Context, latency time.Duration) error {
	settings := fmt.Sprintf(`{"latency": %q, "prompt_tokens": %d, "completion_tokens": %d, "chunks": %d}`,
		latency, promptTokens, outputTokens, streamChunks)
	if err := call(ctx, http.MethodPost, "http://"+s.sim+"/sim/control", settings); err != nil {
		return err
	}
	return call(ctx, http.MethodPost, "http://"+s.sim+"/sim/reset", "")
}

// books is what the simulator has billed since it was last set.
func (s *system) books(ctx context.Context) (records []sim.Record, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.sim+"/sim/books", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	err = json.NewDecoder(response.Body).Decode(&records)
	return records, errors.Join(err, response.Body.Close())
}

func call(ctx context.Context, method, url, body string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s", method, url, response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// freeAddress is one that nobody listens on at the moment.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
