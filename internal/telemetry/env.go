package telemetry

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/caarlos0/env/v11"
)

// ReadEnv fills a configuration, a pointer to a struct with env tags, from the environment. A variable that ends in _FILE
// names a file with the value, for any secret: DATABASE_URL_FILE for DATABASE_URL. Its errors name the variable. It validates
// nothing.
func ReadEnv(config any) error {
	environment, err := withFiles(env.ToMap(os.Environ()))
	if err != nil {
		return err
	}
	return named(env.ParseWithOptions(config, env.Options{Environment: environment}), config)
}

// named says each problem with the name of its variable; the parser only knows the field's.
func named(err error, config any) error {
	var all env.AggregateError
	if !errors.As(err, &all) {
		return err
	}
	var problems []error
	for _, e := range all.Errors {
		var parse env.ParseError
		if errors.As(e, &parse) {
			names := variables(reflect.TypeOf(config).Elem(), parse)
			e = fmt.Errorf("%s: %w", strings.Join(names, " or "), parse.Err)
		}
		problems = append(problems, e)
	}
	return errors.Join(problems...)
}

// variables lists the variables of the fields that a problem can be about: those of its name and type.
func variables(config reflect.Type, problem env.ParseError) []string {
	var names []string
	for i := range config.NumField() {
		field := config.Field(i)
		switch name := field.Tag.Get("env"); {
		case name != "" && field.Name == problem.Name && field.Type == problem.Type:
			names = append(names, name)
		case name == "" && field.Type.Kind() == reflect.Struct:
			names = append(names, variables(field.Type, problem)...)
		}
	}
	return names
}

// fromFiles are the variables that may be given by file.
var fromFiles = []string{"DATABASE_URL", "REDIS_URL", "NATS_URL", "TOLLGATE_ADMIN_TOKEN", "TOLLGATE_SIM_KEYS", "TOLLGATE_SIM_ADMIN_KEY"}

func withFiles(environment map[string]string) (map[string]string, error) {
	var problems []error
	for _, name := range fromFiles {
		path, ok := environment[name+"_FILE"]
		if !ok || path == "" {
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
