package admission

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// lines are the requests that wait for a limit to have room, in this gateway: one line a limit and subject, first come, first
// served. Only the head of a line asks Redis; the others sleep, so a crowd costs no more than one.
type lines struct {
	waiting atomic.Int64 // requests in all lines

	mu    sync.Mutex // guards what follows, and every line
	byKey map[lineKey]*line
}

type lineKey struct{ limit, subject string }

// line goes with the last one who waits.
type line struct {
	places   list.List     // of *place, the head at the front
	last     *Refusal      // the newest that one of the line got
	probe    time.Time     // when the head asks next
	left     time.Time     // when one was last admitted; zero when none was
	interval time.Duration // between two who are admitted, smoothed
}

// place is one request in a line.
type place struct {
	lines   *lines
	key     lineKey
	line    *line
	element *list.Element
	turn    chan struct{} // closed when it becomes the head
	kick    chan struct{} // room may have come earlier than it was expected
}

// maxWaiting bounds the requests that wait in one gateway, whatever the limits allow: each keeps its body in memory.
const maxWaiting = 10_000

func (r *Refusal) line() lineKey { return lineKey{r.LimitName, r.Subject} }

func (r *Refusal) sameLine(other *Refusal) bool { return r.line() == other.line() }

// any reports whether somebody waits; it takes no lock.
func (l *lines) any() bool { return l.waiting.Load() > 0 }

// busy is the refusal of a request that meets a limit for which others wait: the newest figures of its line. nil when none do.
func (l *lines) busy(states []LimitState, need ledger.Amounts) *Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range states {
		s := &states[i]
		if s.Soft() || s.OnExceed.Action != policy.ActionThrottle {
			continue
		}
		if line := l.byKey[lineKey{s.Applied.Limit.Name, s.Applied.Subject}]; line != nil {
			last := line.last.told()
			s.Used, s.Held, s.Reset = last.Used, last.Held, last.ResetsAt
			r := limitRefusal(s, need) // the line's refusal may be another app's, with other needs and offers
			r.RetryAfter, r.probe, r.judged, r.Exhausted, r.onExceed = last.RetryAfter, last.probe, last.judged, last.Exhausted, s.OnExceed
			return r
		}
	}
	return nil
}

// join takes a place at the end of the refusal's line. There is none, nil, when the line is as long as it may be, or when its
// head will not even ask before the deadline.
func (l *lines) join(r *Refusal, deadline time.Time) (*place, QueueHint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey == nil {
		l.byKey = map[lineKey]*line{}
	}
	key := r.line()
	ln := l.byKey[key]
	if ln == nil {
		ln = &line{last: r, probe: time.Now().Add(r.probe)}
	}
	hint := QueueHint{Position: ln.places.Len() + 1, ExpectedWait: ln.expected(ln.places.Len())}
	if ln.places.Len() >= r.onExceed.MaxDepth || l.waiting.Load() >= maxWaiting || ln.probe.After(deadline) {
		return nil, hint
	}
	p := &place{lines: l, key: key, line: ln, turn: make(chan struct{}), kick: make(chan struct{}, 1)}
	if ln.places.Len() == 0 {
		l.byKey[key] = ln
		close(p.turn)
	}
	p.element = ln.places.PushBack(p)
	l.waiting.Add(1)
	return p, hint
}

// expected is how long one waits who has so many before it.
func (ln *line) expected(before int) time.Duration {
	each := ln.interval
	if each == 0 {
		each = ln.last.probe
	}
	return max(time.Until(ln.probe), 0) + time.Duration(before)*each
}

// leave gives the place up. Who was behind the head is the head now.
func (p *place) leave() {
	l := p.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	head := p.line.places.Front() == p.element
	p.line.places.Remove(p.element)
	l.waiting.Add(-1)
	switch next := p.line.places.Front(); {
	case next == nil:
		delete(l.byKey, p.key)
	case head:
		p.line.probe = time.Now()
		close(next.Value.(*place).turn)
	}
}

// turn is how a wait ended.
type turn int

const (
	turnCome turn = iota
	turnLate      // the deadline came first
	turnGone      // the caller left
)

// awaitTurn waits to become the head.
func (p *place) awaitTurn(ctx context.Context, deadline time.Time) turn {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-p.turn:
		return turnCome
	case <-ctx.Done():
		return turnGone
	case <-timer.C:
		return turnLate
	}
}

// pause is the head's sleep until it asks again; a kick ends it early. One that would last beyond the deadline is late at once.
func (p *place) pause(ctx context.Context, d time.Duration, deadline time.Time) turn {
	if ctx.Err() != nil {
		return turnGone
	}
	if d <= 0 {
		return turnCome
	}
	if time.Now().Add(d).After(deadline) {
		return turnLate
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return turnGone
	case <-p.kick:
	case <-timer.C:
	}
	return turnCome
}

// refused notes what the head was told.
func (p *place) refused(r *Refusal) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	p.line.last, p.line.probe = r, time.Now().Add(r.probe)
}

// admitted notes that the head found room.
func (p *place) admitted() {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	now := time.Now()
	if ln := p.line; !ln.left.IsZero() {
		between := now.Sub(ln.left)
		if ln.interval == 0 {
			ln.interval = between
		}
		ln.interval += (between - ln.interval) / 8
	}
	p.line.left = now
}

// freed wakes the head of a line because a slot of its limit was given back.
func (l *lines) freed(limit, subject string) {
	if !l.any() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.byKey[lineKey{limit, subject}]
	if ln == nil {
		return
	}
	select {
	case ln.places.Front().Value.(*place).kick <- struct{}{}:
	default:
	}
}
