package telemetry_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/internal/telemetry"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

type Inner struct {
	Every time.Duration `env:"TOLLGATE_TEST_EVERY" envDefault:"1s"`
	Count int           `env:"TOLLGATE_TEST_COUNT" envDefault:"3"`
}

type config struct {
	Inner
	Named    inner2
	Database telemetry.Secret `env:"DATABASE_URL"`
}

type inner2 struct {
	Count int `env:"TOLLGATE_TEST_OTHER_COUNT" envDefault:"4"`
}

func TestReadEnv(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("DATABASE_URL_FILE", "")
	var c config
	require.NoError(t, telemetry.ReadEnv(&c))
	require.Equal(t, config{Inner: Inner{time.Second, 3}, Named: inner2{4}}, c)

	path := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(path, []byte("postgres://u:hush@h/d\n"), 0o600))
	t.Setenv("DATABASE_URL_FILE", path)
	t.Setenv("TOLLGATE_TEST_EVERY", "5m")
	require.NoError(t, telemetry.ReadEnv(&c))
	require.Equal(t, "postgres://u:hush@h/d", c.Database.Reveal())
	require.Equal(t, 5*time.Minute, c.Every)
}

func TestReadEnvNamesVariables(t *testing.T) {
	t.Setenv("TOLLGATE_TEST_EVERY", "5")
	t.Setenv("TOLLGATE_TEST_COUNT", "many")
	var c config
	err := telemetry.ReadEnv(&c)
	require.ErrorContains(t, err, "TOLLGATE_TEST_EVERY: ")
	require.ErrorContains(t, err, `TOLLGATE_TEST_COUNT or TOLLGATE_TEST_OTHER_COUNT: `)
	require.NotContains(t, err.Error(), "parse error on field", "a field is nobody's business")
}

func TestReadEnvFiles(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://h/d")
	t.Setenv("DATABASE_URL_FILE", "/nowhere/url")
	t.Setenv("REDIS_URL", "")
	t.Setenv("REDIS_URL_FILE", "/nowhere/redis")
	err := telemetry.ReadEnv(&config{})
	require.ErrorContains(t, err, "DATABASE_URL and DATABASE_URL_FILE are both set: keep one")
	require.ErrorContains(t, err, "REDIS_URL_FILE: open /nowhere/redis")
}

func TestSecretHides(t *testing.T) {
	t.Parallel()
	secret := telemetry.Secret("hush")
	var log bytes.Buffer
	logger, err := telemetry.NewLogger(&log, telemetry.Config{Level: "info"})
	require.NoError(t, err)
	logger.Info("a secret", "secret", secret, "config", slog.GroupValue(slog.Any("database", secret)))
	type holder struct{ S telemetry.Secret }
	for _, text := range []string{
		fmt.Sprint(secret), fmt.Sprintf("%v %s %+v %#v %q", secret, secret, holder{secret}, holder{secret}, secret), log.String(),
	} {
		require.NotContains(t, text, "hush")
		require.Contains(t, text, "[secret]")
	}
	require.Empty(t, telemetry.Secret("").String(), "an empty one is told from a set one")
	require.Equal(t, "hush", secret.Reveal())
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger, err := telemetry.NewLogger(&log, telemetry.Config{Level: "warn"})
	require.NoError(t, err)
	logger.Info("not this")
	logger.Warn("nats is away", "tries", 3)
	var line map[string]any
	require.NoError(t, json.Unmarshal(log.Bytes(), &line))
	require.Equal(t, "nats is away", line["msg"])
	require.InDelta(t, 3, line["tries"], 0)
	_, err = telemetry.NewLogger(&log, telemetry.Config{Level: "loud"})
	require.ErrorContains(t, err, "TOLLGATE_LOG_LEVEL: ")
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(telemetry.NewRegistry(), "process_start_time_seconds")
	require.NoError(t, err)
	require.Empty(t, problems)
}
