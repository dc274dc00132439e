package gateway

import (
	"strings"
	"sync"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// refusals counts what this gateway refused, until it goes on record as refused events (see recordRefusals). It is safe for
// concurrent use.
//
// A refusal costs a map increment, however many there are. Its memory is bounded: beyond maxRefused kinds of refusals those
// of further subjects count together, as the subject other of their app and limit; beyond twice as many those of further
// apps count together, too. Nothing is dropped.
//
// A gateway that is killed loses what it had counted since the last record: these are statistics, and no money hangs on
// them.
type refusals struct {
	mu     sync.Mutex // guards what follows
	since  time.Time  // when counting began
	counts map[refused]*int64
}

// refused is what refusals are counted by. The hour is a part of it, so that no count belongs to two.
type refused struct {
	hour int64              // hours since 1970, UTC
	kind event.RefusalCount // Count is 0
}

const (
	// maxRefused is how many kinds of refusals are told apart in one record.
	maxRefused = 2000
	// other stands for subjects, and apps, that are not told apart. No name has its first character: see policy's subjects.
	other = "…other"
)

func newRefusals(now time.Time) *refusals {
	return &refusals{since: now, counts: map[refused]*int64{}}
}

// add counts one refusal.
func (r *refusals) add(now time.Time, kind event.RefusalCount) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(refused{now.Unix() / secondsPerHour, kind}, 1)
}

const secondsPerHour = int64(time.Hour / time.Second)

func (r *refusals) addLocked(key refused, n int64) {
	count := r.counts[key]
	if count == nil && len(r.counts) >= maxRefused {
		key.kind.Subject = other
		count = r.counts[key]
	}
	if count == nil && len(r.counts) >= 2*maxRefused {
		key.kind = event.RefusalCount{Layer: key.kind.Layer, Reason: key.kind.Reason, Subject: other, App: other}
		count = r.counts[key]
	}
	if count == nil {
		// A subject is a piece of a longer text, which must not be kept for it.
		key.kind.Subject = strings.Clone(key.kind.Subject)
		count = new(int64)
		r.counts[key] = count
	}
	*count += n
}

// countRefusal counts a request that was refused: once, at the limit that its answer names, or at none where something else
// than a limit refused it. A caller without a known key has no app that it could be counted under; tollgate_decisions_total
// has it.
func (x *exchange) countRefusal() {
	if x.caller.App == "" || !isRefusal(x.reason) {
		return
	}
	kind := event.RefusalCount{Reason: x.reason, App: x.caller.App, Endpoint: x.endpoint.Path}
	if x.verdict != nil && x.verdict.Refusal != nil && x.verdict.Refusal.Reason == x.reason {
		r := x.verdict.Refusal
		kind.Layer, kind.Limit, kind.Subject = r.Layer, r.LimitName, r.Subject
	}
	x.g.refusals.add(x.g.clock.Now(), kind)
}

// isRefusal reports whether admission turned a request away: its key, plan, model or price did not pass, a limit had no room,
// or limits could not be judged. What cannot be read, and what failed before or after admission, was not refused.
func isRefusal(reason ledger.Reason) bool {
	switch reason {
	case ledger.ReasonOK, ledger.ReasonUnknownKey, ledger.ReasonUnknownRoute, ledger.ReasonUnknownObject, ledger.ReasonBadRequest,
		ledger.ReasonBodyTooLarge, ledger.ReasonBodyTimeout, ledger.ReasonBodiesFull,
		ledger.ReasonEventLogDown, ledger.ReasonShuttingDown, ledger.ReasonUpstreamFailed, ledger.ReasonUpstreamTimeout,
		ledger.ReasonUpstreamLimited, ledger.ReasonUpstreamDown, ledger.ReasonUpstreamCut, ledger.ReasonClientGone, ledger.ReasonInternal:
		return false
	default:
		return true
	}
}
