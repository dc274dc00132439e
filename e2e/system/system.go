// Package system runs the whole of Tollgate for a test: Postgres, Redis and NATS, the provider simulator, gateways and settlers,
// each of ours a process of the built binary, and checks that the books agree in the end.
//
// What a test starts ends with the test. Check is called at the end of every run, after the traffic has stopped: it waits
// until nothing is in flight and then holds the state of Redis, the ledger and the simulator's books against the invariants.
package system

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/dev/services"
)

// Options of a system.
type Options struct {
	// Limits is the policy's list of limits, as YAML with two blanks before each dash.
	Limits string
	// Providers and Models are further entries of these sections of the policy, as YAML with two blanks before each name, and
	// Sections are further sections; "" for none.
	Providers, Models, Sections string
	// Degraded is the policy's section of that name, as YAML on one line; "" is one that allows nothing while Redis is away, and
	// does not mind how slow it is: with everything on two processors, all is slow now and then.
	Degraded string
	// TTL of reservations; 0 means 15 minutes. At least a second.
	TTL time.Duration
	// Timezone of the policy; "" means one where it is about noon now, so that no day turns over in the test.
	Timezone string
	// Gateways and Settlers are how many of each are started.
	Gateways, Settlers int
	// Env is added to the environment of every process.
	Env []string
	// OwnPostgres gives the system a Postgres that the test may kill.
	OwnPostgres bool
	// Proxied gives every gateway and settler a link of its own to each server: Part.Links.
	Proxied bool
	// Pushed makes the gateways follow the policy that is pushed instead of reading it from a file.
	Pushed bool
	// Prepared says that the databases come with the app and its keys.
	Prepared bool
}

// Patience is how long a test waits for what must happen.
const Patience = stack.Patience

// System is a running Tollgate. Its methods fail the test, so they are for the test's goroutine, except where they say so.
type System struct {
	Redis    *services.Redis
	Postgres *services.Postgres // nil unless Options.OwnPostgres
	NATS     *services.NATS
	Sim      *Sim
	Gateways []*Part
	Settlers []*Part

	DatabaseURL string
	PolicyFile  string
	RedisClient *redis.Client
	Pool        *pgxpool.Pool
	JetStream   jetstream.JetStream

	t         testing.TB
	redisAddr atomic.Value // of the present Redis
	options   Options
	env       []string

	client *http.Client
}

// Part is one gateway or settler process, or the simulator's.
type Part struct {
	*stack.Process

	URL   string // of the data plane; "" for a settler
	Admin string // base URL of the admin plane; "" for the simulator

	// Links are the part's ways to the servers by Link… name; nil unless Options.Proxied.
	Links map[string]*stack.Link

	system *System
	args   []string
	env    []string
}

// New starts a system with one app "shop" and returns when every part is ready. Keys are made with Key.
func New(t testing.TB, o Options) *System {
	t.Helper()
	if o.TTL == 0 {
		o.TTL = 15 * time.Minute
	}
	if o.Degraded == "" {
		o.Degraded = "{breaker: {latency: 1m}, local: {requests_per_second: 0, tokens_per_minute: 0}}"
	}
	if o.Timezone == "" {
		o.Timezone = Zone(t, time.Now(), 12*time.Hour)
	}
	s := &System{t: t, options: o}
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}, Timeout: 5 * time.Minute}
	t.Cleanup(s.client.CloseIdleConnections)
	s.startServers()
	s.startSim()
	s.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
	s.WritePolicy(o.Limits)
	if o.Pushed {
		s.CLI("policy", "push", s.PolicyFile)
	}
	for range o.Settlers {
		s.newSettler().Launch()
	}
	if !o.Prepared {
		s.CLI("app", "create", App)
	}
	for range o.Gateways {
		s.newGateway().Launch()
	}
	for _, p := range slices.Concat(s.Settlers, s.Gateways) {
		p.WaitReady(p.Admin + "/readyz")
	}
	for _, g := range s.Gateways {
		s.Producer(g)
	}
	return s
}

// App is the app that every system begins with.
const App = "shop"

func (s *System) startServers() {
	t := s.t
	s.Redis, s.NATS = stack.NewRedis(t), stack.NATS(t)
	if s.options.OwnPostgres {
		s.Postgres, s.DatabaseURL = stack.NewPostgres(t)
	} else {
		s.DatabaseURL = stack.Postgres(t)
	}
	options, err := redis.ParseURL(s.Redis.URL(0))
	require.NoError(t, err)
	// The system's own client follows a failover by itself.
	options.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.redisAddr.Load().(string))
	}
	s.redisAddr.Store(options.Addr)
	// A command that is late is not made twice.
	options.PoolSize, options.DialTimeout, options.ReadTimeout = 4, Patience, Patience
	s.RedisClient = redis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, s.RedisClient.Close()) })
	config, err := pgxpool.ParseConfig(s.DatabaseURL)
	require.NoError(t, err)
	config.MaxConns = 4
	s.Pool, err = pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(s.Pool.Close)
	nc, err := nats.Connect(s.NATS.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.Timeout(Patience))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	s.JetStream, err = jetstream.New(nc, jetstream.WithDefaultTimeout(Patience))
	require.NoError(t, err)
}

func (s *System) startSim() {
	addr := stack.FreeAddr(s.t)
	s.Sim = &Sim{URL: "http://" + addr, client: s.client}
	s.Sim.Process = stack.Start(s.t, "simulator", []string{"provider-sim", "--listen", addr}, nil)
	s.Sim.WaitReady(s.Sim.URL + "/sim/totals")
	zones := os.Getenv("ZONEINFO")
	s.env = append([]string{
		"DATABASE_URL=" + s.DatabaseURL, "REDIS_URL=" + s.Redis.URL(0), "NATS_URL=" + s.NATS.ClientURL(),
		"TOLLGATE_SIM_URL=" + s.Sim.URL, "TOLLGATE_SIM_KEY=sim-e2e", "ZONEINFO=" + zones,
		// Two processors run everything here: a decision may wait for its turn, and exactness must not depend on it.
		"TOLLGATE_LIMITER_TIMEOUT=30s", "TOLLGATE_PUBLISH_TIMEOUT=5s", "TOLLGATE_CONFIRM_EVERY=1s", "TOLLGATE_UPSTREAM_DIAL_TIMEOUT=1m",
		"TOLLGATE_SETTLER_SWEEP_EVERY=200ms", "TOLLGATE_SETTLER_SWEEP_GRACE=300ms", "TOLLGATE_SETTLER_ACK_WAIT=3s",
		"TOLLGATE_SETTLER_REBUILD_EVERY=200ms",
	}, s.options.Env...)
}

// Policy is the text of a policy with these limits.
func (s *System) Policy(limits string) string {
	o := &s.options
	return fmt.Sprintf(`version: 1
timezone: %s
providers:
  openai: {protocol: openai, base_url: "${TOLLGATE_SIM_URL}/v1", api_key_env: TOLLGATE_SIM_KEY}
%s
models:
  gpt-4o: {provider: openai}
  gpt-4o-mini: {provider: openai}
  gpt-3.5-turbo-instruct: {provider: openai}
  text-embedding-3-small: {provider: openai}
%s
reservations: {ttl: %s, expired: charge}
degraded: %s
%s
limits:
%s`, o.Timezone, o.Providers, o.Models, o.TTL, o.Degraded, o.Sections, limits)
}

// WritePolicy puts a policy with these limits into PolicyFile.
func (s *System) WritePolicy(limits string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.PolicyFile, []byte(s.Policy(limits)), 0o600))
}

// AddGateway starts one more gateway and waits until it is ready. env is added to its environment.
func (s *System) AddGateway(env ...string) *Part {
	s.t.Helper()
	g := s.newGateway(env...)
	g.Start()
	return g
}

func (s *System) newGateway(env ...string) *Part {
	s.t.Helper()
	data, admin := stack.FreeAddr(s.t), stack.FreeAddr(s.t)
	args := []string{"gateway", "--listen", data, "--admin", admin, "--data", filepath.Join(s.t.TempDir(), "gateway")}
	if !s.options.Pushed {
		args = append(args, "--policy", s.PolicyFile)
	}
	g := &Part{URL: "http://" + data, Admin: "http://" + admin, system: s, args: args}
	g.env = append(s.linked(g, true), env...)
	s.Gateways = append(s.Gateways, g)
	return g
}

// AddSettler starts one more settler and waits until it is ready.
func (s *System) AddSettler() *Part {
	s.t.Helper()
	p := s.newSettler()
	p.Start()
	return p
}

func (s *System) newSettler() *Part {
	s.t.Helper()
	admin := stack.FreeAddr(s.t)
	p := &Part{Admin: "http://" + admin, system: s, args: []string{"settler", "--admin", admin}}
	p.env = s.linked(p, false)
	s.Settlers = append(s.Settlers, p)
	return p
}

// Start runs the part and waits until it is ready: at first, and again after Kill or Term, with the same folder and addresses.
func (p *Part) Start() {
	p.system.t.Helper()
	p.Launch()
	p.WaitReady(p.Admin + "/readyz")
}

// Launch is Start without the wait: for a part that cannot be ready before a server is back.
func (p *Part) Launch() {
	p.system.t.Helper()
	p.Process = stack.Start(p.system.t, p.args[0], p.args, p.env)
}

// CLI runs the binary with args, requires that it succeeds and returns its standard output.
func (s *System) CLI(args ...string) string {
	s.t.Helper()
	out, err := s.TryCLI(args...)
	require.NoError(s.t, err, "tollgate %s", strings.Join(args, " "))
	return out
}

// TryCLI runs the binary with args and returns its standard output; the error holds what it said on standard error.
func (s *System) TryCLI(args ...string) (string, error) {
	s.t.Helper()
	var out, problem strings.Builder
	c := exec.CommandContext(s.t.Context(), stack.Binary(s.t), args...)
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), s.env...), &out, &problem
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, problem.String())
	}
	return out.String(), nil
}

// Key makes an API key of the app and returns its secret.
func (s *System) Key(app string, args ...string) string {
	s.t.Helper()
	return strings.TrimSpace(s.CLI(append([]string{"key", "create", "--app", app}, args...)...))
}

// KnownKey is Key, returned once every gateway knows it and can judge the app.
func (s *System) KnownKey(app string, args ...string) string {
	s.t.Helper()
	secret := s.Key(app, args...)
	s.AwaitKey(secret)
	if len(s.Settlers) > 0 {
		s.AwaitCounters(app)
	}
	return secret
}

// AwaitKey returns once every gateway knows the key.
func (s *System) AwaitKey(secret string) {
	s.t.Helper()
	for _, g := range s.Gateways {
		s.Eventually(Patience, "the gateway knows the key", func() error {
			req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, g.URL+"/v1/models", nil)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+secret)
			res, err := s.client.Do(req)
			if err != nil {
				return err
			}
			if res.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d", res.StatusCode)
			}
			return joinClose(err, res.Body)
		})
	}
}

// Eventually polls until probe returns nil, and fails the test when it has not within limit.
func (s *System) Eventually(limit time.Duration, what string, probe func() error) time.Duration {
	s.t.Helper()
	start := time.Now()
	for {
		last := time.Since(start) >= limit // there is one probe at least that begins after the limit
		err := probe()
		if err == nil {
			return time.Since(start)
		}
		if last {
			require.NoError(s.t, err, "%s: not within %s", what, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Int is the result of an SQL query that yields one number.
func (s *System) Int(query string, args ...any) (n int64) {
	s.t.Helper()
	require.NoError(s.t, s.Pool.QueryRow(s.t.Context(), query, args...).Scan(&n), query)
	return n
}

// Rows is the result of an SQL query as text, a slice a row.
func (s *System) Rows(query string, args ...any) [][]any {
	s.t.Helper()
	rows, err := s.Pool.Query(s.t.Context(), query, args...)
	require.NoError(s.t, err, query)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	require.NoError(s.t, err, query)
	return found
}
