package dev

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/gateway"
	"tollgate/gateway/outbox"
	"tollgate/internal/admin"
	"tollgate/internal/telemetry"
	"tollgate/ledger/keys"
	"tollgate/ledger/pg"
	"tollgate/ledger/policy"
	"tollgate/lua"
	"tollgate/settler"
	"tollgate/settler/directory"
)

// presenceWait is how long a settler here gives gateways to show that they are there.
const presenceWait = time.Second

// readyTimeout bounds the wait for a part of our own to serve.
const readyTimeout = 30 * time.Second

func (s *system) startSettler(ctx context.Context) error {
	var config settler.Config
	if err := telemetry.ReadEnv(&config); err != nil {
		return err
	}
	// The one gateway starts after its settler and shows its presence before it judges: nobody else is waited for, as long as callers
	// wait for their counters.
	config.PresenceWait = min(config.PresenceWait, presenceWait)
	client, err := lua.Connect(s.redis.URL(0), lua.Options{Timeout: time.Second, PoolSize: 8})
	if err != nil {
		return err
	}
	s.onStop("settler's Redis connections", func(context.Context) error { return client.Close() })
	registry := prometheus.NewRegistry() // the process itself is in the gateway's
	part, err := settler.New(config, settler.Deps{
		Store: s.store, Scripts: lua.New(client), NATS: s.nc, Log: s.log.With("part", "settler"), Registry: registry,
	})
	if err != nil {
		return err
	}
	s.settlerMetrics = registry
	s.background("settler", part.Run)
	return awaitReady(ctx, part.Ready)
}

func awaitReady(ctx context.Context, ready func() error) error {
	deadline := time.Now().Add(readyTimeout)
	for {
		err := ready()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// demoApp owns the key that a run prints.
const demoApp = "demo"

// makeDemoKey finds the demo key of an earlier run in the data folder or makes one.
func (s *system) makeDemoKey(ctx context.Context) error {
	if err := s.store.CreateApp(ctx, demoApp, ""); err != nil && !errors.Is(err, pg.ErrAppExists) {
		return err
	}
	var err error
	if s.demoKey, err = keptSecret(filepath.Join(s.dir, "demo-key")); err != nil {
		return err
	}
	key := pg.Key{ID: keys.NewID(), App: demoApp, Hash: keys.Hash(s.demoKey), Name: "demo"}
	if err := s.store.CreateKey(ctx, key); err != nil && !errors.Is(err, pg.ErrKeyExists) {
		return err
	}
	js, err := jetstream.New(s.nc)
	if err != nil {
		return err
	}
	return directory.NewSync(s.store, js).Run(ctx)
}

// makeAdminToken finds the admin token of an earlier run in the data folder or makes one.
func (s *system) makeAdminToken(context.Context) error {
	var err error
	s.adminToken, err = keptSecret(filepath.Join(s.dir, "admin-token"))
	return err
}

// keptSecret reads a secret from its file, making both when there is none.
func keptSecret(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if secret := strings.TrimSpace(string(text)); secret != "" {
		return secret, nil
	}
	secret := keys.NewSecret()
	return secret, os.WriteFile(path, []byte(secret+"\n"), 0o600)
}

// limiterTimeout is longer than a gateway's usual one: here everything shares one machine, and whoever uses it is at work on it.
const limiterTimeout = 250 * time.Millisecond

func (s *system) startGateway(ctx context.Context) error {
	var config gateway.Config
	boxConfig := outbox.Config{}
	if err := errors.Join(telemetry.ReadEnv(&config), telemetry.ReadEnv(&boxConfig)); err != nil {
		return err
	}
	if os.Getenv("TOLLGATE_LIMITER_TIMEOUT") == "" {
		config.LimiterTimeout = limiterTimeout
	}
	boxConfig.Dir = filepath.Join(s.dir, "gateway")
	client, err := lua.Connect(s.redis.URL(0), lua.Options{Timeout: config.LimiterTimeout, PoolSize: 64})
	if err != nil {
		return err
	}
	s.onStop("gateway's Redis connections", func(context.Context) error { return client.Close() })
	registry := telemetry.NewRegistry()
	log := s.log.With("part", "gateway")
	box, err := outbox.Open(boxConfig, s.nc, log, registry)
	if err != nil {
		return err
	}
	s.onStop("outbox", func(context.Context) error { return box.Close() })
	part, err := gateway.New(config, gateway.Deps{
		Scripts: lua.New(client), NATS: s.nc, Outbox: box, Policy: s.policy.parsed, FollowPolicy: true, Log: log, Registry: registry,
	})
	if err != nil {
		return err
	}
	if err := s.publishPolicy(ctx); err != nil {
		return err
	}
	plane := &admin.Server{
		Metrics: prometheus.Gatherers{registry, s.settlerMetrics}, Log: s.log,
		Ready: func(context.Context) error { return part.Ready() },
	}
	s.background("admin plane", func(ctx context.Context) error { return plane.Run(ctx, s.admin) })
	s.background("gateway", func(ctx context.Context) error { return part.Run(ctx, s.data) })
	return awaitReady(ctx, part.Ready)
}

// announce prints the one block that a person needs, and writes the same as shell assignments.
func (s *system) announce() error {
	if err := s.writeEnv(); err != nil {
		return err
	}
	url := "http://" + s.data.Addr().String()
	redisNote := ""
	if s.redis.InProcess {
		redisNote = "  (in-process: no redis-server was found, nothing of it is kept)"
	}
	simulator := "none: OPENAI_API_KEY is set"
	if s.simURL != "" {
		simulator = s.simURL + "  (its books: /sim/books)"
	}
	model, route := s.example()
	fmt.Fprintf(s.out, `
Tollgate is ready.

  gateway     %s/v1
  admin       http://%s
  policy      %s
  simulator   %s
  Postgres    %s
  Redis       %s%s
  NATS        %s
  data        %s   (addresses: dev.env, log: dev.log)

  API key     %s

Try it:
  curl %s%s -H "Authorization: Bearer %s" -H "Content-Type: application/json" \
    -d '{"model": "%s", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}'
  psql "%s" -c "SELECT request_id, app, model, input_tokens, output_tokens, cost_usd FROM finance.requests"

Ctrl-C stops everything; %s.
`, url, s.admin.Addr(), s.policy.source, simulator, s.databaseURL, s.redis.URL(0), redisNote, s.nats.ClientURL(), s.dir,
		s.demoKey, url, route, s.demoKey, model, s.databaseURL, s.fateOfData())
	return nil
}

func (s *system) fateOfData() string {
	if s.config.Ephemeral {
		return "nothing is kept"
	}
	return "the data stays"
}

// example is a model that the policy has, and where and how to ask for it: by a chat where one is served.
func (s *system) example() (model, route string) {
	const usual, chat, message = "gpt-4o-mini", "/v1/chat/completions", `/v1/messages -H "anthropic-version: 2023-06-01"`
	p := s.policy.parsed
	if p.Models[usual] != nil {
		return usual, chat
	}
	for _, way := range []struct {
		protocol policy.Protocol
		route    string
	}{{policy.ProtocolOpenAI, chat}, {policy.ProtocolAnthropic, message}} {
		for _, name := range slices.Sorted(maps.Keys(p.Models)) {
			if p.Providers[p.Models[name].Provider].Protocol == way.protocol {
				return name, way.route
			}
		}
	}
	return usual, chat
}

func (s *system) simSecret() string {
	if s.simURL == "" {
		return ""
	}
	return simKey
}

func (s *system) envPath() string { return filepath.Join(s.dir, "dev.env") }

func (s *system) writeEnv() error {
	var b strings.Builder
	for _, v := range [][2]string{
		{"TOLLGATE_URL", "http://" + s.data.Addr().String()},
		{"TOLLGATE_ADMIN_URL", "http://" + s.admin.Addr().String()},
		{"TOLLGATE_API_KEY", s.demoKey},
		{"TOLLGATE_ADMIN_TOKEN", s.adminToken},
		{"DATABASE_URL", s.databaseURL},
		{"REDIS_URL", s.redis.URL(0)},
		{"NATS_URL", s.nats.ClientURL()},
		{"TOLLGATE_SIM_URL", s.simURL},
		{"TOLLGATE_SIM_KEY", s.simSecret()},
	} {
		fmt.Fprintf(&b, "%s='%s'\n", v[0], strings.ReplaceAll(v[1], "'", `'\''`))
	}
	path := s.envPath()
	if err := os.WriteFile(path+".new", []byte(b.String()), 0o600); err != nil {
		return err
	}
	s.onStop("dev.env", func(context.Context) error { return os.RemoveAll(path) })
	return os.Rename(path+".new", path)
}
