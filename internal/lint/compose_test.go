package lint

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// compose loads docker-compose.yml with an empty environment, as on a fresh host.
func compose(t *testing.T) *types.Project {
	t.Helper()
	root := repository(t).root
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  root,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(root, "docker-compose.yml")}},
		Environment: types.Mapping{},
	})
	require.NoError(t, err)
	return project
}

func service(t *testing.T, project *types.Project, name string) types.ServiceConfig {
	t.Helper()
	s, err := project.GetService(name)
	require.NoError(t, err)
	return s
}

func TestComposeServices(t *testing.T) {
	t.Parallel()
	project := compose(t)
	require.ElementsMatch(t, project.ServiceNames(),
		[]string{"gateway", "settler", "migrate", "redis", "nats", "postgres", "prometheus", "grafana"})
	for name, s := range project.Services {
		for _, port := range s.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s publishes %s beyond this host", name, port.Published)
		}
		if s.Build == nil {
			_, tag, ok := strings.Cut(s.Image, ":")
			require.True(t, ok && tag != "latest", "%s: image %s is not pinned", name, s.Image)
		}
		if name == "migrate" {
			require.Equal(t, "on-failure", s.Restart)
			continue
		}
		require.Equal(t, "unless-stopped", s.Restart, name)
		require.NotNil(t, s.HealthCheck, "%s has no health check", name)
		require.NotEmpty(t, s.HealthCheck.Test, "%s has no health check", name)
		require.NotNil(t, s.HealthCheck.Interval, name)
		require.NotNil(t, s.HealthCheck.Timeout, name)
	}
	for _, name := range []string{"gateway", "settler"} {
		s := service(t, project, name)
		require.Equal(t, types.ShellCommand{name}, s.Command)
		require.True(t, s.ReadOnly, name)
		for dependency, condition := range map[string]string{
			"migrate": types.ServiceConditionCompletedSuccessfully,
			"redis":   types.ServiceConditionHealthy,
			"nats":    types.ServiceConditionHealthy,
		} {
			require.Equal(t, condition, s.DependsOn[dependency].Condition, "%s on %s", name, dependency)
		}
	}
	migrate := service(t, project, "migrate")
	require.Equal(t, types.ShellCommand{"migrate", "up"}, migrate.Command)
	require.Equal(t, types.ServiceConditionHealthy, migrate.DependsOn["postgres"].Condition)
}

// What the containers are given, and asked to run, is what the program reads and knows.
func TestComposeSpeaksToTollgate(t *testing.T) {
	t.Parallel()
	tr, project := repository(t), compose(t)
	var code strings.Builder
	for _, name := range tr.names(false) {
		code.Write(tr.texts[name])
	}
	for _, name := range []string{"gateway", "settler", "migrate"} {
		s := service(t, project, name)
		for variable := range s.Environment {
			require.Contains(t, code.String(), `"`+strings.TrimSuffix(variable, "_FILE")+`"`, "%s: nothing reads %s", name, variable)
		}
		commands := slices.Clone(s.Command)
		if !s.HealthCheck.Disable {
			commands = append(commands, s.HealthCheck.Test[2:]...)
		}
		for _, command := range commands {
			require.Regexp(t, `"`+command+`[" ]`, code.String(), "%s: there is no command %s", name, command)
		}
	}
}

// Every file and volume that a service names exists, and everything declared is used.
func TestComposeReferences(t *testing.T) {
	t.Parallel()
	project := compose(t)
	volumes, secrets, configs := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for name, s := range project.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				require.DirExists(t, v.Source, name)
				require.True(t, v.ReadOnly, "%s may write into the checkout: %s", name, v.Source)
				continue
			}
			require.Contains(t, project.Volumes, v.Source, name)
			volumes[v.Source] = true
		}
		granted := map[string]bool{}
		for _, secret := range s.Secrets {
			granted["/run/secrets/"+secret.Source] = true
			secrets[secret.Source] = true
		}
		for _, config := range s.Configs {
			configs[config.Source] = true
		}
		for variable, value := range s.Environment {
			if strings.HasSuffix(variable, "_FILE") {
				require.NotNil(t, value, variable)
				require.True(t, granted[*value], "%s: %s names %s, which is not among its secrets", name, variable, *value)
			}
		}
	}
	require.Len(t, volumes, len(project.Volumes), "a declared volume is not used")
	require.Len(t, secrets, len(project.Secrets), "a declared secret is not used")
	require.Len(t, configs, len(project.Configs), "a declared config is not used")
}

// `make secrets` makes each secret, keeps it when run again, and nothing of it can be committed or built into an image.
func TestComposeSecrets(t *testing.T) {
	t.Parallel()
	repo, dir := repository(t), t.TempDir()
	makefile, err := os.ReadFile(filepath.Join(repo.root, "Makefile"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Makefile"), makefile, 0o600))

	read := func() map[string]string {
		run(t, dir, "make", "secrets")
		found := map[string]string{}
		for name, secret := range compose(t).Secrets {
			relative, err := filepath.Rel(repo.root, secret.File)
			require.NoError(t, err)
			path := filepath.Join(dir, relative)
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o644), info.Mode().Perm(), name)
			found[name] = string(content)
		}
		return found
	}
	first := read()
	for name, content := range first {
		if name != "openai_api_key" { // the only one that cannot be made up
			require.GreaterOrEqual(t, len(content), 32, name)
		}
	}
	require.Equal(t, first, read(), "a second run changed a secret")
	require.Contains(t, first["database_url"], "://tollgate_service:"+first["service_password"]+"@postgres:5432/")
	require.Contains(t, first["database_owner_url"], "://tollgate:"+first["postgres_password"]+"@postgres:5432/")
	info, err := os.Stat(filepath.Join(dir, ".secrets"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	run(t, repo.root, "git", "-c", "safe.directory=*", "check-ignore", "--quiet", ".secrets/database_url")
	ignored, err := os.ReadFile(filepath.Join(repo.root, ".dockerignore"))
	require.NoError(t, err)
	require.Contains(t, strings.Split(string(ignored), "\n"), ".*")
}

// The real server, started with exactly the options of docker-compose.yml, is one that keeps counters.
func TestComposeRedis(t *testing.T) {
	t.Parallel()
	command := service(t, compose(t), "redis").Command
	require.Equal(t, "redis-server", command[0])
	addr := stack.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)

	args := append(slices.Clone(command[1:]), "--bind", "127.0.0.1", "--port", port, "--dir", t.TempDir())
	cmd := exec.CommandContext(t.Context(), command[0], args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait()) // killed
	})
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.Eventually(t, func() bool { return client.Ping(t.Context()).Err() == nil }, 2*time.Minute, 20*time.Millisecond)

	for option, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "maxmemory": "1073741824", "save": "",
	} {
		got, err := client.ConfigGet(t.Context(), option).Result()
		require.NoError(t, err)
		require.Equal(t, want, got[option], option)
	}
}

// The NATS server itself reads the configuration file.
func TestComposeNATS(t *testing.T) {
	t.Parallel()
	project := compose(t)
	s := service(t, project, "nats")
	require.Equal(t, types.ShellCommand{"--config", s.Configs[0].Target}, s.Command)

	path := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(path, []byte(project.Configs["nats"].Content), 0o600))
	options, err := server.ProcessConfigFile(path)
	require.NoError(t, err)
	require.True(t, options.JetStream)
	require.Equal(t, time.Second, options.SyncInterval)
	require.Equal(t, s.Volumes[0].Target, options.StoreDir)
	require.Equal(t, 4222, options.Port)
	require.Equal(t, 8222, options.HTTPPort)
}

// run runs a command in dir and fails the test with its output unless it succeeds.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s\n%s%s", name, strings.Join(args, " "), out, &stderr)
	return string(out)
}
