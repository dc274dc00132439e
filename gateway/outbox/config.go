package outbox

import (
	"errors"
	"fmt"
	"time"
)

// Durability says what Record waits for.
type Durability string

// The ways of being durable.
const (
	// DurabilityAck is the stream's acknowledgement, or a synced outbox when none comes in time.
	DurabilityAck Durability = "ack"
	// DurabilitySync is both. While the stream or the disk is away, Record refuses.
	DurabilitySync Durability = "sync"
)

// Config says where events are kept and how long the stream may take.
type Config struct {
	Dir          string        `env:"TOLLGATE_DATA_DIR" envDefault:".tollgate/gateway"` // one gateway's own folder
	Durability   Durability    `env:"TOLLGATE_DURABILITY" envDefault:"ack"`
	AckTimeout   time.Duration `env:"TOLLGATE_PUBLISH_TIMEOUT" envDefault:"2s"` // then the outbox is synced instead
	SyncEvery    time.Duration `env:"TOLLGATE_OUTBOX_SYNC" envDefault:"50ms"`
	SegmentBytes int64         `env:"TOLLGATE_OUTBOX_SEGMENT_BYTES" envDefault:"16777216"`
	// MaxBytes is the most that the segments may take on disk; beyond it the outbox refuses as a full disk does. The last
	// sixteenth is kept for what becomes of requests that were let in.
	MaxBytes int64 `env:"TOLLGATE_OUTBOX_MAX_BYTES" envDefault:"8589934592"`
}

// Validate joins every problem, each with its variable's name.
func (c Config) Validate() error {
	var problems []error
	if c.Dir == "" {
		problems = append(problems, errors.New("TOLLGATE_DATA_DIR: must name a folder"))
	}
	if c.Durability != DurabilityAck && c.Durability != DurabilitySync {
		problems = append(problems, fmt.Errorf("TOLLGATE_DURABILITY: must be %s or %s, not %q", DurabilityAck, DurabilitySync, c.Durability))
	}
	if c.AckTimeout <= 0 {
		problems = append(problems, errors.New("TOLLGATE_PUBLISH_TIMEOUT: must be above zero"))
	}
	if c.SyncEvery <= 0 {
		problems = append(problems, errors.New("TOLLGATE_OUTBOX_SYNC: must be above zero"))
	}
	if c.SegmentBytes < 1<<16 || c.SegmentBytes > 1<<30 {
		problems = append(problems, errors.New("TOLLGATE_OUTBOX_SEGMENT_BYTES: must be from 65536 to 1073741824"))
	}
	if c.MaxBytes < 4*c.SegmentBytes {
		problems = append(problems, errors.New("TOLLGATE_OUTBOX_MAX_BYTES: must be at least four times TOLLGATE_OUTBOX_SEGMENT_BYTES"))
	}
	return errors.Join(problems...)
}
