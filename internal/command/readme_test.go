package command

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/gateway"
	"tollgate/gateway/outbox"
	"tollgate/internal/sim"
	"tollgate/ledger"
	"tollgate/ledger/pg"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
	"tollgate/lua"
	"tollgate/settler"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	return string(text)
}

// rows are the first cells of the table rows below a heading, with what the pattern finds in each.
func rows(t *testing.T, heading, pattern string) [][]string {
	t.Helper()
	_, section, found := strings.Cut(readme(t), "\n## "+heading+"\n")
	require.True(t, found, "README.md has no section %s", heading)
	section, _, _ = strings.Cut(section, "\n## ")
	return regexp.MustCompile(`(?m)^`+pattern).FindAllStringSubmatch(section, -1)
}

// variables are the environment variables of a configuration with their defaults, "–" for none.
func variables(config reflect.Type, into map[string]string) {
	for i := range config.NumField() {
		field := config.Field(i)
		name := field.Tag.Get("env")
		switch {
		case name == "-":
		case name != "":
			into[name] = "–"
			if standard := field.Tag.Get("envDefault"); standard != "" {
				into[name] = "`" + standard + "`"
			}
		case field.Type.Kind() == reflect.Struct:
			variables(field.Type, into)
		}
	}
}

// The configuration table is the structs' own: every variable with its default, and nothing that nobody reads.
func TestReadmeConfiguration(t *testing.T) {
	t.Parallel()
	read := map[string]string{}
	for _, config := range []any{gatewayConfig{}, settlerConfig{}, doctorConfig{}, sim.Config{}} {
		variables(reflect.TypeOf(config), read)
	}
	require.Greater(t, len(read), 20)
	told := map[string]string{}
	for _, row := range rows(t, "Configuration", "\\| `([A-Z_]+)` \\| (–|`[^`]*`) \\| [a-z, -]+ \\| .+ \\|$") {
		require.NotContains(t, told, row[1], "stands twice")
		told[row[1]] = row[2]
	}
	require.Equal(t, read, told)
}

// The list of metrics is what gateway and settler register, with their labels.
func TestReadmeMetrics(t *testing.T) {
	t.Parallel()
	registered := map[string]bool{}
	ofGateway, ofSettler := gatewayMetrics(t), settlerMetrics(t)
	_, err := prometheus.Gatherers{ofGateway, ofSettler}.Gather()
	require.NoError(t, err, "dev shows both side by side")
	for _, collector := range []prometheus.Collector{ofGateway, ofSettler} {
		for _, name := range described(collector) {
			registered[name] = true
		}
	}
	require.Contains(t, registered, "tollgate_decisions_total{decision,reason,layer}")
	told := map[string]bool{}
	for _, row := range rows(t, "Metrics", "\\| `(tollgate_[a-z_{},]+)` \\| (?:gateway|settler|both) \\| .+ \\|$") {
		told[row[1]] = true
	}
	require.Equal(t, registered, told)
}

// described names what a registry's metrics are called, also those that have no value yet.
func described(collector prometheus.Collector) []string {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		collector.Describe(descriptions)
	}()
	pattern := regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)
	var names []string
	for d := range descriptions {
		found := pattern.FindStringSubmatch(d.String())
		name := found[1]
		if found[2] != "" {
			name += "{" + found[2] + "}"
		}
		names = append(names, name)
	}
	return names
}

// connected is what both services stand on; nothing is asked of Redis.
func connected(t *testing.T) (*nats.Conn, *lua.Scripts) {
	t.Helper()
	nc, err := nats.Connect(stack.NATS(t).ClientURL(), nats.Timeout(time.Minute))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	client, err := lua.Connect("redis://"+stack.FreeAddr(t), lua.Options{Timeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return nc, lua.New(client)
}

func gatewayMetrics(t *testing.T) *prometheus.Registry {
	t.Helper()
	nc, scripts := connected(t)
	var config gatewayConfig
	require.NoError(t, readEnv(&config))
	config.Outbox.Dir = t.TempDir()
	p, err := policy.Parse([]byte("version: 1\n"), os.LookupEnv)
	require.NoError(t, err)
	registry, log := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	box, err := outbox.Open(config.Outbox, nc, log, registry)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, box.Close()) })
	_, err = gateway.New(config.Gateway, gateway.Deps{Scripts: scripts, NATS: nc, Outbox: box, Policy: p, Log: log, Registry: registry})
	require.NoError(t, err)
	return registry
}

func settlerMetrics(t *testing.T) *prometheus.Registry {
	t.Helper()
	nc, scripts := connected(t)
	var config settlerConfig
	require.NoError(t, readEnv(&config))
	store, err := pg.Open(t.Context(), stack.Postgres(t), 2)
	require.NoError(t, err)
	t.Cleanup(store.Close)
	registry := prometheus.NewRegistry()
	_, err = settler.New(config.Settler, settler.Deps{Store: store, Scripts: scripts, NATS: nc, Log: slog.New(slog.DiscardHandler), Registry: registry})
	require.NoError(t, err)
	return registry
}

// The policy of the README is one that this version enforces whole, and the check printed there is its check.
func TestReadmePolicy(t *testing.T) {
	t.Parallel()
	_, text, found := strings.Cut(readme(t), "```yaml\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "```")
	p, err := policy.Parse([]byte(text), os.LookupEnv)
	require.NoError(t, err)
	require.Empty(t, p.Warnings())
	require.Contains(t, readme(t), fmt.Sprintf("policy.yaml: ok, revision %s, %d limits\n", p.Revision, len(p.Limits)))

	_, prices, found := strings.Cut(readme(t), "```yaml\nprices:\n")
	require.True(t, found)
	prices, _, _ = strings.Cut(prices, "```")
	const rest = "version: 1\nproviders:\n  house: {protocol: openai, base_url: \"https://llm.example/v1\"}\nmodels: {large: {provider: house}}\nprices:\n"
	p, err = policy.Parse([]byte(rest+prices), nil)
	require.NoError(t, err)
	_, err = price.Default().With([]price.Row{p.Prices[0].Row})
	require.NoError(t, err)
}

// Every command that the README shows exists.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	// In code only: prose speaks of services that are called like commands.
	shown := regexp.MustCompile("(?m)(?:^\\$ tollgate|`tollgate|`?go run \\.|:ro\" migrate|--rm migrate) ([a-z-]+)(?: ([a-z-]+))?").FindAllStringSubmatch(readme(t), -1)
	require.Greater(t, len(shown), 12)
	for _, words := range shown {
		found, rest, err := newRoot().Find(words[1:])
		require.NoError(t, err, words[0])
		require.Equal(t, words[1], strings.Fields(found.CommandPath())[1], words[0])
		if found.HasSubCommands() {
			require.Empty(t, strings.Join(rest, ""), "%s: there is no such command in the group", words[0])
		}
	}
}

// Every reason that a caller can see stands in the README.
func TestReadmeReasons(t *testing.T) {
	t.Parallel()
	text := readme(t)
	source, err := os.ReadFile(filepath.Join("..", "..", "ledger", "reason.go"))
	require.NoError(t, err)
	later := map[ledger.Reason]bool{ledger.ReasonOK: true, ledger.ReasonClientGone: true, ledger.ReasonIPLimit: true, ledger.ReasonConcurrency: true}
	reasons := regexp.MustCompile(`Reason += "([A-Z_]+)"`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(reasons), 20)
	for _, reason := range reasons {
		if !later[ledger.Reason(reason[1])] {
			require.Contains(t, text, "`"+reason[1]+"`")
		}
	}
}
