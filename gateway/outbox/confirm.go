package outbox

import (
	"errors"
	"os"
	"sort"
	"strconv"
	"time"

	"tollgate/ledger/event"
)

// confirmed is what is known of the way of events beyond the stream's acknowledgement.
type confirmed struct {
	latest event.Confirmation
	mark   uint64              // the last sequence when the confirmation under way was asked for
	late   map[uint64]struct{} // acknowledged since then; nil when none is under way
	times  []began             // ascending; drops what is older than the first unconfirmed event
}

// began says when the event with this sequence was made; those up to the next one are younger.
type began struct {
	sequence uint64
	at       time.Time
}

// timeEvery is how exact the age of the oldest unconfirmed event is.
const timeEvery = time.Second

func (c *confirmed) began(sequence uint64, at time.Time) {
	if n := len(c.times); n == 0 || at.Sub(c.times[n-1].at) >= timeEvery {
		c.times = append(c.times, began{sequence, at})
	}
}

func (c *confirmed) acknowledged(sequence uint64) {
	if c.late != nil {
		c.late[sequence] = struct{}{}
	}
}

// Mark notes what the stream has acknowledged so far. It must be called before a confirmation is asked for.
func (o *Outbox) Mark() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.confirmed.mark, o.confirmed.late = o.sequence, map[uint64]struct{}{}
}

// Confirm takes a settler's answer to the request that the last Mark came before. Segments that Postgres holds whole are
// removed by Run. What the stream had acknowledged before the mark and neither Postgres nor the stream has was lost: it is
// published again, under a message id of its own: the stream remembers the ids of what it lost, and would take the event for a
// duplicate. Without a Mark since the last answer nothing counts as lost.
func (o *Outbox) Confirm(c event.Confirmation) {
	o.mu.Lock()
	mark, late := o.confirmed.mark, o.confirmed.late
	o.confirmed.late = nil
	o.confirmed.latest = c
	lost := 0
	if c.Settled && late != nil {
		lost = o.sendAgainLocked(c, mark, late)
	}
	o.mu.Unlock()
	o.tellLost(lost)
}

// sendAgainLocked makes pending what Postgres does not hold of the acknowledged events up to the mark, and counts it.
func (o *Outbox) sendAgainLocked(c event.Confirmation, mark uint64, late map[uint64]struct{}) (lost int) {
	round := lostMark + strconv.FormatInt(time.Now().UnixMilli(), 36)
	for _, s := range o.segments {
		if n := s.again(c, mark, late); n > 0 {
			s.round = round
			lost += n
		}
	}
	return lost
}

func (o *Outbox) tellLost(lost int) {
	if lost == 0 {
		return
	}
	o.metrics.lost.Add(float64(lost))
	o.metrics.spool.Add(float64(lost))
	o.log.Warn("the stream lost events that it had acknowledged, they are sent again", "events", lost)
	o.wakeDrain()
}

// lostMark stands between an event's id and what tells its publications after losses apart.
const lostMark = "#"

// again makes pending what was lost of the segment, and counts it.
func (s *segment) again(c event.Confirmation, mark uint64, late map[uint64]struct{}) int {
	lost := 0
	for _, held := range s.held {
		if held.From > mark {
			break
		}
		for _, lack := range c.Lacks(event.Span{From: held.From, Until: min(held.Until, mark+1)}) {
			for sequence := lack.From; sequence < lack.Until; sequence++ {
				if _, isLate := late[sequence]; !isLate && s.pending.add(sequence) {
					s.lost.add(sequence)
					lost++
				}
			}
		}
	}
	return lost
}

// lacks is the first of the segment's events that Postgres is not known to hold.
func (s *segment) lacks(c event.Confirmation) (uint64, bool) {
	for _, held := range s.held {
		if lacks := c.Lacks(held); len(lacks) > 0 {
			return lacks[0].From, true
		}
	}
	return 0, false
}

// removeConfirmed removes segments that Postgres holds whole, wherever they stand: one event that nobody can settle keeps its
// own segment and no other. What cannot be removed is tried again.
func (o *Outbox) removeConfirmed() {
	removed := map[*segment]bool{}
	for _, s := range o.removable() {
		err := os.Remove(s.path)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			removed[s] = true
			continue
		}
		if !s.stuck {
			o.log.Error("confirmed outbox segment cannot be removed", "error", err)
		}
		s.stuck = true
	}
	if len(removed) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := o.segments[:0:0]
	for _, s := range o.segments {
		if !removed[s] {
			kept = append(kept, s)
			continue
		}
		o.bytes -= s.size
		o.metrics.spool.Sub(float64(s.pending.count()))
	}
	o.segments = kept
	o.metrics.bytes.Set(float64(o.bytes))
}

// removable lists the segments that nothing needs any more.
func (o *Outbox) removable() []*segment {
	o.mu.Lock()
	defer o.mu.Unlock()
	var done []*segment
	for i, s := range o.segments {
		// The newest segment stays: its name and frames are where the numbering continues after a restart.
		if s.file != nil || i == len(o.segments)-1 {
			continue
		}
		if _, lacking := s.lacks(o.confirmed.latest); !lacking {
			done = append(done, s)
		}
	}
	return done
}

// oldest is the age of the oldest event here that Postgres is not known to hold; 0 when it holds all.
func (o *Outbox) oldest() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.segments {
		first, lacking := s.lacks(o.confirmed.latest)
		if !lacking {
			continue
		}
		times := o.confirmed.times
		i := sort.Search(len(times), func(i int) bool { return times[i].sequence > first }) - 1
		if i < 0 {
			return 0
		}
		o.confirmed.times = times[i:]
		return max(0, time.Since(times[i].at))
	}
	o.confirmed.times = nil
	return 0
}
