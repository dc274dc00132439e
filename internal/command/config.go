package command

import (
	"errors"
	"fmt"
	"net"

	"tollgate/internal/telemetry"
)

// Connections say where the other parts of the system are.
type Connections struct {
	Database telemetry.Secret `env:"DATABASE_URL"`
	Redis    telemetry.Secret `env:"REDIS_URL" envDefault:"redis://127.0.0.1:6379/0"`
	NATS     telemetry.Secret `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222"`
}

// Listeners are a service's own addresses.
type Listeners struct {
	Listen string `env:"TOLLGATE_LISTEN" envDefault:":8080"` // data plane
	Admin  string `env:"TOLLGATE_ADMIN" envDefault:":8081"`  // admin plane
}

// readEnv fills a configuration from the environment.
func readEnv(config any) error { return telemetry.ReadEnv(config) }

// needDatabase errors when no database is configured.
func (c Connections) needDatabase() error {
	if c.Database == "" {
		return errors.New("DATABASE_URL (or DATABASE_URL_FILE): must name the Postgres database, e.g. postgres://user@host/tollgate")
	}
	return nil
}

// listen opens a TCP address; the error names the flag to change.
func listen(address, flag string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s (choose another with %s): %w", address, flag, err)
	}
	return listener, nil
}
