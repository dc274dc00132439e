package admission

import (
	"strings"
	"sync"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

const (
	// maxLocalApps is how many apps have an allowance of their own, about 2 MB of them. Those on top share one.
	maxLocalApps = 4096
	// maxLocalName is the longest name that gets an allowance of its own. No app's name is as long.
	maxLocalName = 256
)

// Local is what a gateway allows each app by itself while Redis cannot be asked: so many requests a second and so many tokens
// a minute, and in no span of that length ever more. It is deliberately conservative: a second is counted as up to 1.1 and a
// minute as up to 63 seconds, what was estimated is never given back, and nothing is known of what Redis had admitted before.
//
// Every gateway allows as much again, and one that is started anew begins with nothing used: so many gateways, so many times
// the allowance. What was used is kept from one spell without Redis to the next.
//
// Memory is bounded. An app's record is reused only when nothing of it counts any more. While all records count, apps that
// have none share one allowance; what was used of it counts against each of them when it gets a record.
//
// Time is taken from the monotonic clock. A Local is safe for concurrent use.
type Local struct {
	clock *stopwatch

	mu    sync.Mutex // guards what follows
	apps  map[string]*allowance
	line  allowance // its next is the allowance that was used least recently, its previous the latest; itself when there is none
	rest  allowance // shared by those who have none of their own
	limit int
}

// allowance is what one app has used lately.
type allowance struct {
	app            string
	requests       spanOfSecond
	tokens         spanOfMinute
	previous, next *allowance
}

// NewLocal makes a limiter of which nothing is used yet.
func NewLocal(now func() time.Time) *Local { return newLocal(now, maxLocalApps) }

func newLocal(now func() time.Time, limit int) *Local {
	l := &Local{clock: newStopwatch(now), apps: map[string]*allowance{}, limit: limit}
	l.line.previous, l.line.next = &l.line, &l.line
	return l
}

// Allow takes one request of so many tokens out of the app's allowance, and reports whether it has room. When it has not,
// nothing is taken, and wait is after what time the same request would fit if nothing else came; 0 when it never would: a
// limit is zero, or the tokens are more than a minute's. The limits come with the call, so changed ones bind at once and what
// was used counts against them.
func (l *Local) Allow(limits policy.Local, app string, tokens ledger.Tokens) (ok bool, wait time.Duration) {
	need := max(0, int64(tokens))
	if limits.RequestsPerSecond <= 0 || limits.TokensPerMinute <= 0 || need > limits.TokensPerMinute {
		return false, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.elapsed()
	own, known := l.apps[app]
	judged := own
	if !known {
		judged = &l.rest // also what a new record begins with
	}
	wait = max(judged.requests.wait(now, limits.RequestsPerSecond, 1), judged.tokens.wait(now, limits.TokensPerMinute, need))
	if wait > 0 {
		return false, wait
	}
	if !known {
		own = l.recordLocked(now, app)
	}
	own.requests.add(now, 1)
	own.tokens.add(now, need)
	l.touchLocked(own)
	return true, 0
}

// recordLocked gives the app a record, or the shared one when there is none to be had.
func (l *Local) recordLocked(now time.Duration, app string) *allowance {
	if len(app) > maxLocalName {
		return &l.rest
	}
	a := l.line.next
	switch {
	case len(l.apps) < l.limit:
		a = &allowance{}
	case a.idle(now):
		delete(l.apps, a.app)
		a.unlink()
	default:
		return &l.rest
	}
	// The name may be part of a larger text, which must not stay for its sake.
	a.app, a.requests, a.tokens = strings.Clone(app), l.rest.requests, l.rest.tokens
	l.apps[a.app] = a
	return a
}

// touchLocked makes a record the most recently used.
func (l *Local) touchLocked(a *allowance) {
	if a == &l.rest {
		return
	}
	a.unlink()
	a.previous, a.next = l.line.previous, &l.line
	a.previous.next, a.next.previous = a, a
}

func (a *allowance) unlink() {
	if a.previous == nil {
		return // it is new
	}
	a.previous.next, a.next.previous = a.next, a.previous
	a.previous, a.next = nil, nil
}

// idle reports whether nothing that was used counts any more.
func (a *allowance) idle(now time.Duration) bool { return a.requests.idle(now) && a.tokens.idle(now) }
