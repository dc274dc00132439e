package admission

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"tollgate/ledger/policy"
	"tollgate/lua"
)

// Why a breaker opens, in the policy's words.
const (
	whyTimeouts = "consecutive_timeouts"
	whyErrors   = "error_ratio"
	whyLatency  = "latency"
)

const (
	// leastCalls is how many calls a share must be of before it opens the breaker.
	leastCalls = 20
	// closeAfter is how many probes in a row must succeed: the first may have done no more than open a connection.
	closeAfter = 2
	// probeLimit ends a probe that does not end by itself.
	probeLimit = 5 * time.Second
)

// Breaker decides whether Redis may be asked. It begins closed: everybody may ask, and tells with Done what came of it. It
// opens
//
//   - after the policy's number of calls in a row that met an outage, as lua.Outage has it: no answer in time, no connection,
//     or an answer that any call would get, such as OOM;
//   - when the policy's share of the calls of the last ten seconds did, of at least 20;
//   - when more than a tenth of the last 64 answers, of at least 20, took longer than the policy's latency: their 90th
//     percentile is above it. A latency that is no shorter than the limiter's timeout is never seen, such calls time out.
//
// Errors about the keys of one call are answers: a broken key of one app never opens the breaker for all. While it is open
// nobody may ask; Run probes about every probe_every, one probe at a time, and closes it after two in a row that succeed
// within the policy's latency. What was counted is forgotten then, and calls that began before it are not counted.
//
// Time is taken from the monotonic clock. A Breaker is safe for concurrent use.
type Breaker struct {
	probe    func(context.Context) error
	onChange func(open bool, why string)
	clock    *stopwatch
	open     atomic.Bool
	opened   chan struct{} // holds one element from opening until Run has seen it
	adjusted chan struct{} // holds one element from SetConfig until Run has seen it
	counts   breakerCounts

	mu     sync.Mutex // guards what follows
	config policy.Breaker
	since  time.Duration // when it last opened or closed
	why    string        // it opened the last time
	row    int           // outages in a row
	recent recentCalls
	pace   pace
}

// NewBreaker makes a closed breaker, which never opens before SetConfig has given it thresholds. probe asks Redis something
// harmless, by the way and within the time of a decision; it is ended after five seconds. onChange is called by Run alone, one
// call after the other: with the reason when the breaker has opened, and with that reason again when it has closed.
func NewBreaker(probe func(context.Context) error, onChange func(open bool, why string), now func() time.Time) *Breaker {
	return &Breaker{
		probe: probe, onChange: onChange, clock: newStopwatch(now),
		opened: make(chan struct{}, 1), adjusted: make(chan struct{}, 1),
	}
}

// SetConfig takes thresholds into force, for calls and probes from now on. What was counted stays.
func (b *Breaker) SetConfig(config policy.Breaker) {
	b.mu.Lock()
	b.config = config
	b.pace.limit(config.Latency)
	b.mu.Unlock()
	wake(b.adjusted)
}

// Open reports whether the breaker is open.
func (b *Breaker) Open() bool { return b.open.Load() }

// Allow reports whether Redis may be asked now. Done must tell of every call that is made then.
func (b *Breaker) Allow() bool {
	if b.open.Load() {
		b.counts.calls[callKept].Add(1)
		return false
	}
	return true
}

// Shed tells that a call was not made because too many were under way, which says nothing about Redis.
func (b *Breaker) Shed() { b.counts.calls[callShed].Add(1) }

// Done tells what came of a call that Allow allowed, and how long it took.
func (b *Breaker) Done(took time.Duration, err error) {
	result := resultOf(err)
	b.counts.calls[result].Add(1)
	if result == callUnsent {
		return
	}
	now := b.clock.elapsed()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() || now-took < b.since {
		return
	}
	why := b.judgeLocked(now, took, result == callOutage)
	if why == "" {
		return
	}
	b.since, b.why = now, why
	b.counts.opened(why)
	b.open.Store(true)
	wake(b.opened)
}

func resultOf(err error) callResult {
	switch {
	case err == nil:
		return callAnswered
	case errors.Is(err, lua.ErrCall):
		return callUnsent
	case lua.Outage(err):
		return callOutage
	default:
		return callBroken
	}
}

// judgeLocked counts a call and says why the breaker must open, "" when it need not. A share can only rise above its threshold
// with a call that is part of it, so only such a call is compared.
func (b *Breaker) judgeLocked(now, took time.Duration, outage bool) string {
	b.recent.add(now, outage)
	if !outage {
		b.row = 0
		if slow := b.pace.add(took); slow && b.config.Latency > 0 && b.pace.tooSlow() {
			return whyLatency
		}
		return ""
	}
	b.row++
	if b.config.ConsecutiveTimeouts > 0 && b.row >= b.config.ConsecutiveTimeouts {
		return whyTimeouts
	}
	calls, outages := b.recent.sum(now)
	if b.config.ErrorRatio > 0 && calls >= leastCalls && outages*100_00 >= calls*b.config.ErrorRatio {
		return whyErrors
	}
	return ""
}

// Run probes while the breaker is open and tells of every change, until ctx ends. It must run as long as calls are made.
func (b *Breaker) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.opened:
		}
		b.mu.Lock()
		why := b.why
		b.mu.Unlock()
		b.onChange(true, why)
		if !b.awaitRecovery(ctx) {
			wake(b.opened) // for a Run that follows
			return nil
		}
		b.close()
		b.onChange(false, why)
	}
}

// awaitRecovery returns true when enough probes have succeeded, false when ctx has ended.
func (b *Breaker) awaitRecovery(ctx context.Context) bool {
	for succeeded := 0; succeeded < closeAfter; {
		if succeeded == 0 && !b.pause(ctx) {
			return false
		}
		if b.probeOnce(ctx) {
			succeeded++
		} else {
			succeeded = 0
		}
		if ctx.Err() != nil {
			return false
		}
	}
	return true
}

// pause waits until the next probe is due: probe_every give or take a quarter, so that gateways do not probe in step.
func (b *Breaker) pause(ctx context.Context) bool {
	begun, share := b.clock.elapsed(), 0.75+rand.Float64()/2
	for {
		every := time.Duration(share * float64(b.settings().ProbeEvery))
		timer := time.NewTimer(begun + every - b.clock.elapsed())
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
			return true
		case <-b.adjusted:
			timer.Stop()
		}
	}
}

func (b *Breaker) probeOnce(ctx context.Context) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, errors.New("probe: Redis did not answer in time"))
	defer cancel()
	begun := b.clock.elapsed()
	err := b.probe(ctx)
	took := b.clock.elapsed() - begun
	b.counts.probed(err == nil)
	most := b.settings().Latency
	return err == nil && (most <= 0 || took <= most)
}

func (b *Breaker) settings() policy.Breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.config
}

func (b *Breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since, b.row, b.recent = b.clock.elapsed(), 0, recentCalls{}
	b.pace.forget()
	b.open.Store(false)
}

// wake leaves a sign for whoever listens on the channel, which holds one element.
func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
