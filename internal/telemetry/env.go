package telemetry

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/caarlos0/env/v11"
)

// ReadEnv fills a configuration, a pointer to a struct with env tags, from the environment. A variable that ends in _FILE
// names a file with the value, for any secret: DATABASE_URL_FILE for DATABASE_URL. It validates nothing.
func ReadEnv(config any) error {
	environment, err := withFiles(env.ToMap(os.Environ()))
	if err != nil {
		return err
	}
	if err := env.ParseWithOptions(config, env.Options{Environment: environment}); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return nil
}

// fromFiles are the variables that may be given by file.
var fromFiles = []string{"DATABASE_URL", "REDIS_URL", "NATS_URL", "TOLLGATE_ADMIN_TOKEN", "TOLLGATE_SIM_KEYS", "TOLLGATE_SIM_ADMIN_KEY"}

func withFiles(environment map[string]string) (map[string]string, error) {
	var problems []error
	for _, name := range fromFiles {
		path, ok := environment[name+"_FILE"]
		if !ok {
			continue
		}
		if environment[name] != "" {
			problems = append(problems, fmt.Errorf("%s and %s_FILE are both set: keep one", name, name))
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s_FILE: %w", name, err))
			continue
		}
		environment[name] = strings.TrimSpace(string(text))
	}
	return environment, errors.Join(problems...)
}
