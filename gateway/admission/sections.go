package admission

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// sections are the requests between the moment before Redis is asked and the moment when what it admitted is on record. A barrier
// waits for those that had begun: afterwards nothing that was admitted before it is missing from the record.
//
// A section counts for one of two sides, the one that new sections count for when it begins. The barrier turns to the other side
// and waits for the first to empty.
type sections struct {
	turn    atomic.Uint64
	open    [2]atomic.Int64
	barrier chan struct{} // has an element while a barrier waits: they take turns
}

func newSections() *sections { return &sections{barrier: make(chan struct{}, 1)} }

// section is one that has begun. The zero section is none, and to end it does nothing.
type section struct {
	side *atomic.Int64
}

// begin counts a section. It costs a few nanoseconds and waits for nobody.
func (s *sections) begin() section {
	for {
		turn := s.turn.Load()
		side := &s.open[turn&1]
		side.Add(1)
		// A barrier that turned in between may have found the side empty already.
		if s.turn.Load() == turn {
			return section{side}
		}
		side.Add(-1)
	}
}

// end is idempotent; it must not run at the same time as itself.
func (s *section) end() {
	if s.side != nil {
		s.side.Add(-1)
		s.side = nil
	}
}

// sectionPoll is how often a barrier looks whether sections have ended.
const sectionPoll = time.Millisecond

// passed waits until every section that had begun has ended.
func (s *sections) passed(ctx context.Context) error {
	select {
	case s.barrier <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("another barrier is waiting: %w", context.Cause(ctx))
	}
	defer func() { <-s.barrier }()
	// The other side has sections that a barrier has given up waiting for, if any; they began before this one, too.
	before := s.turn.Load() & 1
	if err := s.empty(ctx, &s.open[1-before]); err != nil {
		return err
	}
	s.turn.Add(1)
	return s.empty(ctx, &s.open[before])
}

func (s *sections) empty(ctx context.Context, side *atomic.Int64) error {
	if side.Load() == 0 {
		return nil
	}
	ticker := time.NewTicker(sectionPoll)
	defer ticker.Stop()
	for side.Load() > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d decisions are not on record yet: %w", side.Load(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
	return nil
}
