package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// passStream relays a stream. However it ends, what came is on record before the caller's connection is.
func (x *exchange) passStream(response *http.Response, relay func(provider.Sink, provider.Passing) (provider.Answer, error)) {
	x.writeHeader(response)
	sink := &flushSink{ResponseWriter: x.w, start: x.start, first: x.g.metrics.firstToken}
	sink.patience(x.g.config.CallerTimeout)
	left := x.watchCaller()
	answer, err := relay(sink, provider.Passing{
		Model: x.verdict.Reservation.Model, Withhold: x.request.Stream && !x.request.UsageAsked, Drain: left.drains, Ceiling: x.ceiling(),
	})
	drained := left.end()
	sink.patience(0)
	// The last writes to a caller that has left can succeed.
	if (err != nil || drained && answer.Finish == ledger.ReasonOK) && x.r.Context().Err() != nil {
		answer.Finish = ledger.ReasonClientGone
	}
	switch {
	case drained: // whatever ended it: the provider, a hard budget, time
		x.disconnect = policy.OnDisconnectDrain
	case answer.Finish == ledger.ReasonClientGone:
		x.disconnect = policy.OnDisconnectCancel
	}
	output := answer.Output
	if answer.Finish != ledger.ReasonOK && answer.Finish != ledger.ReasonUpstreamFailed {
		output = x.leftAt(output)
	}
	x.used(answer, response.StatusCode, output)
	x.remember(answer.UpstreamID)
	if err == nil && answer.Finish != ledger.ReasonClientGone {
		return // it came to its end, be that an error of the provider's, or a hard budget's
	}
	x.g.log.Warn("stream not completed", "request_id", x.verdict.Reservation.ID, "finish", answer.Finish, "error", err)
	if !answer.FirstByte && answer.Finish != ledger.ReasonClientGone {
		x.problem(brokeOff(answer.Finish, err))
		return
	}
	panic(http.ErrAbortHandler)
}

// leftAt is the output that is charged for a stream that was left at so many tokens. A response in the background goes on.
func (x *exchange) leftAt(output ledger.Tokens) ledger.Tokens {
	if x.request.Background {
		return max(output, x.heldOutput())
	}
	return output
}

// departure is what becomes of a stream whose caller leaves: its provider is cancelled, or it is drained, read to its end for its
// usage alone. Drains are bounded in number and time; what is too much is cancelled.
type departure struct {
	x     *exchange
	stop  func() bool
	once  sync.Once
	drain bool
	timer *time.Timer
}

// watchCaller looks for the caller's leaving, also while the provider says nothing. end must be called.
func (x *exchange) watchCaller() *departure {
	d := &departure{x: x}
	d.stop = context.AfterFunc(x.r.Context(), func() {
		if !d.drains() {
			x.cancelUpstream()
		}
	})
	return d
}

// drains decides once, when the caller has left.
func (d *departure) drains() bool {
	d.once.Do(func() {
		if d.x.verdict.Provider.OnDisconnect != policy.OnDisconnectDrain {
			return
		}
		select {
		case d.x.g.drains <- struct{}{}:
			d.drain = true
			d.timer = time.AfterFunc(d.x.g.config.DrainTimeout, d.x.cancelUpstream)
		default:
			d.x.g.log.Warn("too many streams are drained, this one is cancelled", "request_id", d.x.verdict.Reservation.ID)
		}
	})
	return d.drain
}

// end reports whether the stream was drained.
func (d *departure) end() bool {
	d.stop()
	d.once.Do(func() {}) // from here on it is too late to leave
	if d.drain {
		d.timer.Stop()
		<-d.x.g.drains
	}
	return d.drain
}

// flushSink sends each write of a stream on at once and notes when the first left.
type flushSink struct {
	http.ResponseWriter
	start  time.Time
	first  interface{ Observe(float64) }
	wait   time.Duration // for a caller that does not read; 0 for ever
	until  time.Time     // the deadline that is set
	writer *http.ResponseController
}

// patience has writes fail, as if the caller had left, when it reads nothing for so long; 0 takes it back: the connection serves
// other requests.
func (s *flushSink) patience(wait time.Duration) {
	s.wait, s.writer = wait, http.NewResponseController(s.ResponseWriter)
	if wait == 0 && !s.until.IsZero() {
		_ = s.writer.SetWriteDeadline(time.Time{}) // it took one before
	}
}

// Write puts the deadline off when half of the time has passed.
func (s *flushSink) Write(data []byte) (int, error) {
	if s.wait > 0 {
		if now := time.Now(); s.until.Sub(now) < s.wait/2 {
			s.until = now.Add(s.wait)
			if err := s.writer.SetWriteDeadline(s.until); err != nil {
				s.wait = 0 // this connection has no deadlines
			}
		}
	}
	return s.ResponseWriter.Write(data)
}

func (s *flushSink) Flush() {
	if s.first != nil {
		s.first.Observe(time.Since(s.start).Seconds())
		s.first = nil
	}
	if f, ok := s.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Flags of requests whose stream did not come to its provider's end, in finance.requests.
const (
	flagHardLimit  = "hard_limit"  // the gateway ended it at a hard budget
	flagDisconnect = "disconnect_" // and what was done when the caller left: cancel or drain
)

// flagEnd adds a flag to the reservation; its events before have none.
func (x *exchange) flagEnd(flag string) {
	res := &x.verdict.Reservation
	res.Flags = append(slices.Clone(res.Flags), flag)
}
