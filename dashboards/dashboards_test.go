// Package dashboards holds what Prometheus and Grafana read: scrape configuration, alert rules, data sources and boards. Its
// tests check that all of it parses and names only metrics, views and data sources that exist.
package dashboards

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// metrics are those that the README promises, with their labels. Its list is held equal to what the services register.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	found := map[string][]string{}
	for _, row := range readmeRow.FindAllStringSubmatch(string(text), -1) {
		found[row[1]] = strings.FieldsFunc(row[2], func(r rune) bool { return r == ',' })
	}
	require.Greater(t, len(found), 20)
	for _, name := range histograms {
		require.Contains(t, found, name)
		found[name] = append(found[name], "le")
	}
	return found
}

// histograms also have _bucket, _sum and _count.
var histograms = []string{
	"tollgate_admission_seconds", "tollgate_redis_seconds", "tollgate_upstream_seconds", "tollgate_time_to_first_token_seconds",
	"tollgate_settlement_batch_size",
}

var (
	readmeRow    = regexp.MustCompile("(?m)^\\| `(tollgate_\\w+)(?:\\{([^}]*)\\})?` \\|")
	metricName   = regexp.MustCompile(`\btollgate_\w+`)
	groupedBy    = regexp.MustCompile(`\bby \(([^)]*)\)`)
	matcherLabel = regexp.MustCompile(`[{,]\s*(\w+)\s*(?:=~|!~|!=|=)`)
	labelInText  = regexp.MustCompile(`\$labels\.(\w+)|\{\{(\w+)\}\}`)
	financeView  = regexp.MustCompile(`\bfinance\.(\w+)`)
)

// requireMetrics checks that an expression names metrics that exist, and only labels that one of them, or every target,
// has. It returns those labels.
func requireMetrics(t *testing.T, expr string) []string {
	t.Helper()
	labels, known := []string{"job", "instance"}, metrics(t)
	for _, name := range metricName.FindAllString(expr, -1) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !slices.Contains(known[base], "le") {
			base = name
		}
		require.Contains(t, known, base, "in %s", expr)
		labels = append(labels, known[base]...)
	}
	for _, match := range groupedBy.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(match[1], ",") {
			require.Contains(t, labels, strings.TrimSpace(label), "in %s", expr)
		}
	}
	for _, match := range matcherLabel.FindAllStringSubmatch(expr, -1) {
		require.Contains(t, labels, match[1], "in %s", expr)
	}
	require.Equal(t, strings.Count(expr, "("), strings.Count(expr, ")"), "parentheses in %s", expr)
	return labels
}

// requireLabels checks that a text refers to given labels only.
func requireLabels(t *testing.T, text string, labels []string) {
	t.Helper()
	for _, match := range labelInText.FindAllStringSubmatch(text, -1) {
		require.Contains(t, labels, match[1]+match[2], "in %s", text)
	}
}

// decode reads a YAML file and refuses fields that into does not have.
func decode(t *testing.T, path string, into any) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(into), path)
}

// alert is one rule of the alerts' file.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T) map[string]alert {
	t.Helper()
	var rules struct {
		Groups []struct {
			Name  string  `yaml:"name"`
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	decode(t, "prometheus/alerts.yml", &rules)
	found := map[string]alert{}
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			require.NotContains(t, found, r.Alert, "two alerts have the name")
			found[r.Alert] = r
		}
	}
	require.NotEmpty(t, found)
	return found
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	for name, r := range alerts(t) {
		require.Contains(t, []string{"red", "yellow"}, r.Labels["severity"], name)
		labels := requireMetrics(t, r.Expr)
		require.NotEmpty(t, r.Annotations["summary"], name)
		requireLabels(t, r.Annotations["summary"], labels)
		// What an aggregation drops, a summary cannot show.
		if by := groupedBy.FindStringSubmatch(r.Expr); by != nil {
			requireLabels(t, r.Annotations["summary"], strings.Split(by[1], ", "))
		}
	}
}

// Who is woken by what: a budget is yellow at 20 % and red at 10 %, refusals are red in the cluster's tier and yellow in those
// of apps and endpoints, and a user who is refused wakes nobody.
func TestAlertsBySeverity(t *testing.T) {
	t.Parallel()
	all := alerts(t)
	budgets, refusals := map[string]string{}, map[string]string{}
	for _, r := range all {
		if _, condition, found := strings.Cut(r.Expr, "(tollgate_budget_remaining_ratio) "); found {
			budgets[condition] = r.Labels["severity"]
		}
		if !strings.Contains(r.Expr, "tollgate_decisions_total") {
			continue
		}
		require.Contains(t, r.Expr, `decision="refuse"`, "%s: an allowed request is no refusal", r.Alert)
		layers := regexp.MustCompile(`layer=~?"([^"]*)"`).FindStringSubmatch(r.Expr)
		require.NotNil(t, layers, "%s is about every layer", r.Alert)
		for layer := range strings.SplitSeq(layers[1], "|") {
			refusals[layer] = r.Labels["severity"]
		}
	}
	require.Equal(t, map[string]string{"<= 0.2 > 0.1": "yellow", "<= 0.1": "red"}, budgets)
	require.Equal(t, map[string]string{"cluster": "red", "app": "yellow", "endpoint": "yellow"}, refusals)
	require.Equal(t, "red", all["Degraded"].Labels["severity"])
}

func TestPrometheusConfig(t *testing.T) {
	t.Parallel()
	type sd struct {
		Names           []string `yaml:"names"`
		Type            string   `yaml:"type"`
		Port            int      `yaml:"port"`
		RefreshInterval string   `yaml:"refresh_interval"`
	}
	var config struct {
		Global map[string]string `yaml:"global"`
		Rules  []string          `yaml:"rule_files"`
		Scrape []struct {
			Job           string `yaml:"job_name"`
			Authorization struct {
				Type            string `yaml:"type"`
				CredentialsFile string `yaml:"credentials_file"`
			} `yaml:"authorization"`
			DNS    []sd `yaml:"dns_sd_configs"`
			Static []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	decode(t, "prometheus/prometheus.yml", &config)
	for _, rule := range config.Rules {
		require.FileExists(t, filepath.Join("prometheus", filepath.Base(rule)))
	}
	jobs := map[string]bool{}
	for _, scrape := range config.Scrape {
		jobs[scrape.Job] = true
		for _, dns := range scrape.DNS {
			require.Equal(t, "tollgate-"+dns.Names[0], scrape.Job)
			require.Equal(t, "/run/secrets/admin_token", scrape.Authorization.CredentialsFile)
		}
	}
	// The alert on a service that does not answer names these jobs.
	require.True(t, jobs["tollgate-gateway"] && jobs["tollgate-settler"], "jobs %v", jobs)
}

// dataSources returns type by uid.
func dataSources(t *testing.T) map[string]string {
	t.Helper()
	var file struct {
		APIVersion  int `yaml:"apiVersion"`
		DataSources []struct {
			Name      string            `yaml:"name"`
			UID       string            `yaml:"uid"`
			Type      string            `yaml:"type"`
			Access    string            `yaml:"access"`
			URL       string            `yaml:"url"`
			User      string            `yaml:"user"`
			IsDefault bool              `yaml:"isDefault"`
			Editable  bool              `yaml:"editable"`
			JSON      map[string]any    `yaml:"jsonData"`
			Secure    map[string]string `yaml:"secureJsonData"`
		} `yaml:"datasources"`
	}
	decode(t, "grafana/provisioning/datasources/tollgate.yml", &file)
	types := map[string]string{}
	for _, source := range file.DataSources {
		types[source.UID] = source.Type
		for name, secret := range source.Secure {
			require.True(t, strings.HasPrefix(secret, "$__file{/run/secrets/"), "%s of %s is not read from a file", name, source.Name)
		}
	}
	return types
}

func TestBoards(t *testing.T) {
	t.Parallel()
	sources := dataSources(t)
	require.Len(t, sources, 2)
	var providers struct {
		APIVersion int              `yaml:"apiVersion"`
		Providers  []map[string]any `yaml:"providers"`
	}
	decode(t, "grafana/provisioning/dashboards/tollgate.yml", &providers)
	require.Len(t, providers.Providers, 1)

	views := strings.Fields("requests spend_daily budget_status open_reservations accounts transfers trial_balance statement " +
		"reconciliation_runs reconciliation_breaks refusals_hourly")
	paths, err := filepath.Glob("grafana/boards/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	uids := map[string]bool{}
	for _, path := range paths {
		b := readBoard(t, path)
		require.False(t, b.UID == "" || uids[b.UID], "%s: uid %q is empty or taken", path, b.UID)
		uids[b.UID] = true
		require.NotEmpty(t, b.Panels, path)
		ids := map[int]bool{}
		for _, p := range b.Panels {
			require.False(t, ids[p.ID], "%s: two panels have id %d", path, p.ID)
			ids[p.ID] = true
			require.NotEmpty(t, p.Title, path)
			require.NotEmpty(t, p.Targets, p.Title)
			for _, target := range p.Targets {
				kind, known := sources[target.DataSource.UID]
				require.True(t, known, "%s: unknown data source %s", p.Title, target.DataSource.UID)
				require.Equal(t, kind, target.DataSource.Type, p.Title)
				if kind == "prometheus" {
					require.NotEmpty(t, metricName.FindAllString(target.Expr, -1), p.Title)
					requireLabels(t, target.Legend, requireMetrics(t, target.Expr))
					continue
				}
				used := financeView.FindAllStringSubmatch(target.SQL, -1)
				require.NotEmpty(t, used, p.Title)
				for _, view := range used {
					require.Contains(t, views, view[1], p.Title)
				}
			}
		}
	}
}

// board is the part of a Grafana dashboard that the tests read.
type board struct {
	UID    string `json:"uid"`
	Panels []struct {
		ID      int    `json:"id"`
		Title   string `json:"title"`
		Targets []struct {
			DataSource struct {
				Type string `json:"type"`
				UID  string `json:"uid"`
			} `json:"datasource"`
			Expr   string `json:"expr"`
			Legend string `json:"legendFormat"`
			SQL    string `json:"rawSql"`
		} `json:"targets"`
	} `json:"panels"`
}

func readBoard(t *testing.T, path string) board {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var b board
	require.NoError(t, json.Unmarshal(text, &b), path)
	return b
}
