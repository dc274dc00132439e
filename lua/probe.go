package lua

import (
	"context"
	_ "embed"
	"fmt"
	"time"
)

//go:embed probe.lua
var probeSource string

var probe = newScript(probeSource)

// probeTTL is how long a probe's key stays.
const probeTTL = time.Minute

// Probe asks Redis for what a decision needs, an answer in time from a script that writes, and changes nothing that a
// decision looks at. A read alone would succeed while writes are refused (OOM, READONLY).
func (s *Scripts) Probe(ctx context.Context) error {
	reply, err := s.run(ctx, probe, 1, []any{nil, nil, nil, tag(SharedSlot) + "probe", probeTTL.Milliseconds()})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if len(reply) != 1 || reply[0] != int64(1) {
		return fmt.Errorf("probe: %w: %v", ErrReply, reply)
	}
	return nil
}
