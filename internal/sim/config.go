package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

// Config is what a Server starts with. The tags are its environment variables; durations are written as in "50ms".
type Config struct {
	// Listen is the TCP address to serve on. Keep it on loopback: /sim/... asks for no key.
	Listen string `env:"TOLLGATE_SIM_LISTEN" envDefault:"127.0.0.1:8090"`
	// Keys are the API keys accepted, each "key" or "key:project id". None accepts every caller, also one without a key.
	Keys []Secret `env:"TOLLGATE_SIM_KEYS"`
	// AdminKey is the key that the usage and costs reports ask for. Empty asks for none.
	AdminKey Secret `env:"TOLLGATE_SIM_ADMIN_KEY"`
	// Latency is the wait before the first byte of every answer.
	Latency time.Duration `env:"TOLLGATE_SIM_LATENCY" envDefault:"0s"`
	// ChunkDelay is the wait between two chunks of a stream.
	ChunkDelay time.Duration `env:"TOLLGATE_SIM_CHUNK_DELAY" envDefault:"0s"`
	// Chunks is the number of chunks with text in a stream, for each choice: 1 to 100,000.
	Chunks int `env:"TOLLGATE_SIM_CHUNKS" envDefault:"20"`
	// OutputTokens is the length of an answer, for each choice, where the request does not allow less: 1 to 100,000,000.
	OutputTokens int64 `env:"TOLLGATE_SIM_OUTPUT_TOKENS" envDefault:"40"`
	// ShutdownTimeout is how long running answers may take to finish when Run is told to stop; then they are cut.
	ShutdownTimeout time.Duration `env:"TOLLGATE_SIM_SHUTDOWN_TIMEOUT" envDefault:"5s"`

	// Now is the clock of the books. Nil means time.Now. Waits are not measured with it.
	Now func() time.Time `env:"-"`
	// Log receives start and stop, and the server's own errors. Nil means slog.Default().
	Log *slog.Logger `env:"-"`
}

// DefaultConfig is the Config of an empty environment.
func DefaultConfig() Config {
	return Config{
		Listen: "127.0.0.1:8090", Chunks: 20, OutputTokens: 40, ShutdownTimeout: 5 * time.Second,
	}
}

// Validate joins every problem of the configuration, each with the name of its variable.
func (c Config) Validate() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf(name+": "+format, args...))
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		bad("TOLLGATE_SIM_LISTEN", "%w", err)
	}
	for i, k := range c.Keys {
		if key, project, found := strings.Cut(string(k), ":"); key == "" || found && project == "" {
			bad("TOLLGATE_SIM_KEYS", "entry %d is neither key nor key:project", i+1)
		}
	}
	if c.Latency < 0 {
		bad("TOLLGATE_SIM_LATENCY", "%s is negative", c.Latency)
	}
	if c.ChunkDelay < 0 {
		bad("TOLLGATE_SIM_CHUNK_DELAY", "%s is negative", c.ChunkDelay)
	}
	if c.Chunks < 1 || c.Chunks > maxChunks {
		bad("TOLLGATE_SIM_CHUNKS", "%d is not between 1 and %d", c.Chunks, maxChunks)
	}
	if c.OutputTokens < 1 || c.OutputTokens > maxTokens {
		bad("TOLLGATE_SIM_OUTPUT_TOKENS", "%d is not between 1 and %d", c.OutputTokens, maxTokens)
	}
	if c.ShutdownTimeout <= 0 {
		bad("TOLLGATE_SIM_SHUTDOWN_TIMEOUT", "%s is not positive", c.ShutdownTimeout)
	}
	return errors.Join(errs...)
}

// Secret is a key that neither fmt nor slog writes out.
type Secret string

// String hides the key.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[hidden]"
}

// GoString hides the key from %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the key from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
