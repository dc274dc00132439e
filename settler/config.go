package settler

import (
	"errors"
	"fmt"
	"time"
)

// Config is the settler's part of the environment.
type Config struct {
	// Batch is the most events in one transaction. A batch is as large as what waits.
	Batch int `env:"TOLLGATE_SETTLER_BATCH" envDefault:"2000"`
	// Linger is how long a batch waits for more events after its first one.
	Linger time.Duration `env:"TOLLGATE_SETTLER_LINGER" envDefault:"25ms"`
	// Workers settle batches side by side, each on a database connection of its own and with reservations of its own, once one of
	// them does not keep up: while one is in Postgres, the other decodes or writes to Redis. They meet on the same budget rows, so
	// more of them make smaller batches, not faster ones.
	Workers int `env:"TOLLGATE_SETTLER_WORKERS" envDefault:"2"`
	// AckWait is after how long a message that is not acknowledged goes to another settler.
	AckWait time.Duration `env:"TOLLGATE_SETTLER_ACK_WAIT" envDefault:"10s"`
	// MaxAckPending is how many messages may be out and not acknowledged, over all settlers.
	MaxAckPending int `env:"TOLLGATE_SETTLER_MAX_ACK_PENDING" envDefault:"20000"`
	// MaxAge is how long the stream keeps events, settled or not.
	MaxAge time.Duration `env:"TOLLGATE_SETTLER_STREAM_MAX_AGE" envDefault:"336h"`
	// Replicas of the stream; 3 in a cluster of NATS servers.
	Replicas int `env:"TOLLGATE_SETTLER_STREAM_REPLICAS" envDefault:"1"`
	// SweepEvery is how often overdue reservations are looked for, SweepGrace how long after its deadline one is expired.
	SweepEvery time.Duration `env:"TOLLGATE_SETTLER_SWEEP_EVERY" envDefault:"2s"`
	SweepGrace time.Duration `env:"TOLLGATE_SETTLER_SWEEP_GRACE" envDefault:"5s"`
	// RebuildEvery is how often Redis is asked for the mark of the shared counters, and which server it is; PresenceWait how long
	// after NATS came back gateways have to show that they are there, before a rebuild believes that it knows them all.
	RebuildEvery time.Duration `env:"TOLLGATE_SETTLER_REBUILD_EVERY" envDefault:"1s"`
	PresenceWait time.Duration `env:"TOLLGATE_SETTLER_PRESENCE_WAIT" envDefault:"5s"`
	// CompareEvery is how often all that Redis knows is compared with the ledger, app after app.
	CompareEvery time.Duration `env:"TOLLGATE_SETTLER_COMPARE_EVERY" envDefault:"30s"`
	// DirectoryEvery is how often the key directory is compared with Postgres.
	DirectoryEvery time.Duration `env:"TOLLGATE_SETTLER_DIRECTORY_EVERY" envDefault:"10s"`
	// GapAge is for how long a sequence may be missing before it is reported.
	GapAge time.Duration `env:"TOLLGATE_SETTLER_GAP_AGE" envDefault:"1m"`
}

// Validate joins every problem, each with its variable's name.
func (c Config) Validate() error {
	var problems []error
	for _, n := range []struct {
		name  string
		value int
	}{
		{"TOLLGATE_SETTLER_BATCH", c.Batch},
		{"TOLLGATE_SETTLER_WORKERS", c.Workers},
		{"TOLLGATE_SETTLER_MAX_ACK_PENDING", c.MaxAckPending},
		{"TOLLGATE_SETTLER_STREAM_REPLICAS", c.Replicas},
	} {
		if n.value <= 0 {
			problems = append(problems, fmt.Errorf("%s: must be above zero, not %d", n.name, n.value))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"TOLLGATE_SETTLER_ACK_WAIT", c.AckWait},
		{"TOLLGATE_SETTLER_STREAM_MAX_AGE", c.MaxAge},
		{"TOLLGATE_SETTLER_SWEEP_EVERY", c.SweepEvery},
		{"TOLLGATE_SETTLER_REBUILD_EVERY", c.RebuildEvery},
		{"TOLLGATE_SETTLER_COMPARE_EVERY", c.CompareEvery},
		{"TOLLGATE_SETTLER_DIRECTORY_EVERY", c.DirectoryEvery},
		{"TOLLGATE_SETTLER_GAP_AGE", c.GapAge},
	} {
		if d.value <= 0 {
			problems = append(problems, fmt.Errorf("%s: must be above zero, not %s", d.name, d.value))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"TOLLGATE_SETTLER_LINGER", c.Linger},
		{"TOLLGATE_SETTLER_SWEEP_GRACE", c.SweepGrace},
		{"TOLLGATE_SETTLER_PRESENCE_WAIT", c.PresenceWait},
	} {
		if d.value < 0 {
			problems = append(problems, fmt.Errorf("%s: must not be negative, not %s", d.name, d.value))
		}
	}
	return errors.Join(problems...)
}
