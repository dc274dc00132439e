package gateway

import (
	"errors"
	"fmt"
	"time"

	"tollgate/gateway/provider"
)

// Config is the gateway's own part of the configuration.
type Config struct {
	// One Redis call of a decision; when it is late, the gateway judges by itself.
	LimiterTimeout time.Duration `env:"TOLLGATE_LIMITER_TIMEOUT" envDefault:"50ms"`
	MaxBody        int64         `env:"TOLLGATE_MAX_BODY_BYTES" envDefault:"33554432"`
	MaxBodies      int64         `env:"TOLLGATE_BODIES_MAX_BYTES" envDefault:"8589934592"` // of large bodies on disk, all together
	DialTimeout    time.Duration `env:"TOLLGATE_UPSTREAM_DIAL_TIMEOUT" envDefault:"5s"`
	TLSTimeout     time.Duration `env:"TOLLGATE_UPSTREAM_TLS_TIMEOUT" envDefault:"5s"`
	HeaderTimeout  time.Duration `env:"TOLLGATE_UPSTREAM_HEADER_TIMEOUT" envDefault:"10m"` // until the provider's first byte
	IdleTimeout    time.Duration `env:"TOLLGATE_UPSTREAM_IDLE_TIMEOUT" envDefault:"5m"`    // between two pieces of an answer
	TotalTimeout   time.Duration `env:"TOLLGATE_UPSTREAM_TIMEOUT" envDefault:"1h"`         // one attempt, its answer included
	// DownAfter is how long failures in a row go on before a provider's key is left alone for a moment.
	DownAfter       time.Duration `env:"TOLLGATE_UPSTREAM_DOWN_AFTER" envDefault:"10s"`
	ShutdownTimeout time.Duration `env:"TOLLGATE_SHUTDOWN_TIMEOUT" envDefault:"30s"` // for answers in progress and the flush
	CallerTimeout   time.Duration `env:"TOLLGATE_CALLER_TIMEOUT" envDefault:"1m"`    // for a caller that does not read its stream, or write its body
	DrainTimeout    time.Duration `env:"TOLLGATE_DRAIN_TIMEOUT" envDefault:"2m"`     // for a stream that is read on without its caller
	Drains          int           `env:"TOLLGATE_DRAINS" envDefault:"256"`           // such streams at once
	RefusalsEvery   time.Duration `env:"TOLLGATE_REFUSALS_EVERY" envDefault:"10s"`   // between two records of what was refused
	// ConfirmEvery is how often the settler is asked which of this gateway's events Postgres holds. What a stream lost is sent
	// again no more often.
	ConfirmEvery time.Duration `env:"TOLLGATE_CONFIRM_EVERY" envDefault:"5s"`
	// TrustedProxies are the addresses and networks whose X-Forwarded-For is believed; see ClientIP.
	TrustedProxies []string `env:"TOLLGATE_TRUSTED_PROXIES"`
}

func (c Config) timeouts() provider.Timeouts {
	return provider.Timeouts{Dial: c.DialTimeout, TLS: c.TLSTimeout, Header: c.HeaderTimeout, Idle: c.IdleTimeout, Total: c.TotalTimeout, Down: c.DownAfter}
}

// Validate joins every problem, each with its variable's name.
func (c Config) Validate() error {
	var problems []error
	for name, d := range map[string]time.Duration{
		"TOLLGATE_LIMITER_TIMEOUT": c.LimiterTimeout, "TOLLGATE_UPSTREAM_DIAL_TIMEOUT": c.DialTimeout,
		"TOLLGATE_UPSTREAM_TLS_TIMEOUT": c.TLSTimeout, "TOLLGATE_UPSTREAM_HEADER_TIMEOUT": c.HeaderTimeout,
		"TOLLGATE_UPSTREAM_IDLE_TIMEOUT": c.IdleTimeout, "TOLLGATE_UPSTREAM_TIMEOUT": c.TotalTimeout, "TOLLGATE_UPSTREAM_DOWN_AFTER": c.DownAfter,
		"TOLLGATE_SHUTDOWN_TIMEOUT": c.ShutdownTimeout,
		"TOLLGATE_REFUSALS_EVERY":   c.RefusalsEvery, "TOLLGATE_CONFIRM_EVERY": c.ConfirmEvery,
		"TOLLGATE_CALLER_TIMEOUT": c.CallerTimeout, "TOLLGATE_DRAIN_TIMEOUT": c.DrainTimeout,
	} {
		if d <= 0 {
			problems = append(problems, fmt.Errorf("%s: must be above zero, not %s", name, d))
		}
	}
	if c.MaxBody < 1<<10 {
		problems = append(problems, fmt.Errorf("TOLLGATE_MAX_BODY_BYTES: must be at least 1024, not %d", c.MaxBody))
	}
	if c.MaxBodies < c.MaxBody {
		problems = append(problems, fmt.Errorf("TOLLGATE_BODIES_MAX_BYTES: must be at least TOLLGATE_MAX_BODY_BYTES, not %d", c.MaxBodies))
	}
	if c.Drains < 0 {
		problems = append(problems, fmt.Errorf("TOLLGATE_DRAINS: must not be negative, not %d", c.Drains))
	}
	_, err := c.trustedProxies()
	return errors.Join(append(problems, err)...)
}
