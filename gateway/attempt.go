package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"tollgate/gateway/admission"
	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// attempts are how often a request is made, and why once more. Each attempt that its provider answered is a reservation of its
// own: admitted, on record before the provider is asked, judged by the limits of its own key, and ended by itself. So nothing
// has to be held for attempts that may never be made.
type attempts struct {
	n       int      // the one under way, from 1
	retries int      // made so far, of connections too
	tries   int      // connections tried in this attempt
	first   string   // reservation id of the first
	without []string // keys that failed
	only    string   // the key that knows what the request goes on from, "" for any
	earlier *earlier // an attempt whose answer is the caller's, when no other is admitted
}

// earlier is an attempt that the provider answered with an error, and that has ended.
type earlier struct {
	response *http.Response
	verdict  *admission.Verdict
	leave    func()
}

const (
	// shortWait is how long the same key is waited for when its provider says so; callers wait longer ones out themselves.
	shortWait = time.Second
	// connectPause comes before a connection is tried again, and at most as much at random.
	connectPause = 50 * time.Millisecond
)

// answered makes attempts until one has the answer that is to be passed on. leave ends the call and must be called then.
func (x *exchange) answered() (response *http.Response, leave func(), ok bool) {
	defer x.forgetEarlier()
	for x.attempts.n = 1; ; x.attempts.n++ {
		if !x.reserve() || !x.recordReserved() || !x.stillStands() {
			return nil, nil, false
		}
		x.forgetEarlier()
		ctx, cancel := x.upstreamContext()
		response, ok := x.forward(ctx)
		if !ok {
			cancel()
			return nil, nil, false
		}
		leave := func() {
			_ = response.Body.Close() // it was read, or is of no use
			cancel()
		}
		if !x.triesAgain(ctx, response, leave) {
			return response, leave, true
		}
	}
}

// triesAgain ends an attempt whose answer says that nothing was spent, when another key, or the same one in a moment, may serve
// the request. What was held is given back before more is asked for. The answer is kept.
func (x *exchange) triesAgain(ctx context.Context, response *http.Response, leave func()) bool {
	wait, ok := x.worthAnother(response)
	if !ok || !x.pause(ctx, wait) {
		return false
	}
	v := x.verdict
	x.release(&event.Release{Reason: ledger.ReasonUpstreamFailed, Status: response.StatusCode})
	x.giveBack()
	x.retried(strconv.Itoa(response.StatusCode))
	if x.attempts.first == "" {
		x.attempts.first = v.Reservation.ID
	}
	x.attempts.earlier = &earlier{response, v, leave}
	x.admitted, x.ended = false, false
	x.attempts.tries, x.firstByte = 0, 0
	return true
}

// worthAnother says how long to wait before another attempt, false when there is to be none: the answer may have been begun to be
// made, was passed on, or nobody else could serve.
func (x *exchange) worthAnother(response *http.Response) (wait time.Duration, ok bool) {
	if !x.mayRetry() {
		return 0, false
	}
	refused := false // the key, not the request
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		refused = true
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, provider.StatusOverloaded:
	default:
		return 0, false
	}
	v := x.verdict
	without := append(slices.Clone(x.attempts.without), v.Key.Name)
	now := v.Upstream.Now()
	if x.attempts.only == "" {
		if _, err := v.Upstream.Choose(provider.Pick{Model: v.Reservation.Model, Without: without}, now); err == nil {
			x.attempts.without = without
			return 0, true
		}
	}
	told, waits := provider.RetryAfter(response.Header, now)
	if refused || !waits || told > shortWait {
		return 0, false
	}
	return told + told/8 + 10*time.Millisecond, true // a key rests a little longer than it was told
}

func (x *exchange) mayRetry() bool {
	return x.attempts.retries < x.verdict.Provider.Retries && x.r.Context().Err() == nil && !x.g.stopping.Load()
}

func (x *exchange) retried(cause string) {
	x.attempts.retries++
	x.g.metrics.retries.WithLabelValues(x.verdict.Provider.Name, cause).Inc()
}

// pause waits, false when the caller leaves or the gateway stops meanwhile.
func (x *exchange) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.r.Context().Done():
	case <-ctx.Done():
	}
	return false
}

// passEarlier answers with what the attempt before was answered, when this one is not made: it tells the caller more.
func (x *exchange) passEarlier() bool {
	e := x.attempts.earlier
	if e == nil {
		return false
	}
	x.attempts.earlier = nil
	defer e.leave()
	x.verdict, x.admitted, x.ended = e.verdict, true, true
	x.passReleased(e.response)
	return true
}

func (x *exchange) forgetEarlier() {
	if e := x.attempts.earlier; e != nil {
		x.attempts.earlier = nil
		e.leave()
	}
}

// forward sends the request. It runs on when the caller leaves, so that what was spent is learned; a stream is cancelled
// then by its relay, where the provider's policy says so.
func (x *exchange) forward(ctx context.Context) (*http.Response, bool) {
	res := x.verdict.Reservation
	body, err := x.payload(ctx, res.Model, x.verdict.Provider.API)
	if err != nil {
		p := bodyProblem(err)
		x.release(&event.Release{Reason: p.reason})
		x.problem(p)
		return nil, false
	}
	response, err := x.send(ctx, body)
	if err != nil {
		x.sendFailed(err)
	}
	return response, err == nil
}

// send asks the provider, and tries once more to reach it as long as not a byte of the request was taken.
func (x *exchange) send(ctx context.Context, body provider.Payload) (*http.Response, error) {
	for {
		x.attempts.tries++
		response, err := x.sendOnce(ctx, body)
		var failed *provider.SendError
		if err == nil || !errors.As(err, &failed) || !failed.Again() || !x.mayRetry() || !x.pause(ctx, connectPause+rand.N(connectPause)) {
			return response, err
		}
		x.retried("connect")
	}
}

func (x *exchange) sendOnce(ctx context.Context, body provider.Payload) (*http.Response, error) {
	res := &x.verdict.Reservation
	header := provider.ForwardHeader(x.r.Header)
	if res.ID != "" {
		header["X-Tollgate-Request-Id"] = []string{res.ID}
	}
	sent := time.Now()
	response, err := x.verdict.Upstream.Send(ctx, x.verdict.Key, x.request.Target(res.Model), header, body)
	took, code := time.Since(sent), 0
	if err == nil {
		x.firstByte, code = took, response.StatusCode
	}
	x.g.metrics.upstream(res.Provider, res.Model, code, took)
	return response, err
}

func (x *exchange) upstreamContext() (ctx context.Context, leave func()) {
	ctx = x.r.Context()
	if !x.request.Stream || x.verdict.Provider.OnDisconnect != policy.OnDisconnectCancel {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	x.cancelUpstream = cancel
	stop := context.AfterFunc(x.g.work, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// sendFailed settles a call that brought no answer: nothing was spent when not a byte was sent; else nobody knows, and the
// estimate is charged.
func (x *exchange) sendFailed(err error) {
	res := x.verdict.Reservation
	x.g.log.Warn("no answer from the provider", "request_id", res.ID, "provider", res.Provider, "provider_key", res.ProviderKey, "error", err)
	reason, sent := x.whyUnanswered(err)
	switch {
	case sent && reason == ledger.ReasonClientGone && x.request.Stream && x.verdict.Provider.OnDisconnect == policy.OnDisconnectCancel:
		x.disconnect = policy.OnDisconnectCancel
		x.used(provider.Answer{Finish: reason}, 0, x.leftAt(0)) // cancelled before the first token
	case sent:
		x.used(provider.Answer{Finish: reason}, 0, x.heldOutput())
	default:
		x.release(&event.Release{Reason: reason})
	}
	x.problem(problem{reason: reason, message: unanswered(res.Provider, err)})
}

// unanswered tells the caller which phase took too long, and of other failures no more than that there was one.
func unanswered(name string, err error) string {
	return "the provider " + name + " did not answer" + late(err)
}

// brokeOff is the problem of an answer of which nothing has been passed on.
func brokeOff(reason ledger.Reason, err error) problem {
	return problem{reason: reason, message: "the provider's answer broke off" + late(err)}
}

func late(err error) string {
	var timeout *provider.TimeoutError
	if !errors.As(err, &timeout) {
		return ""
	}
	return ": " + timeout.Error()
}

// whyUnanswered is what went wrong with a call, and whether the provider may have received it.
func (x *exchange) whyUnanswered(err error) (reason ledger.Reason, sent bool) {
	var send *provider.SendError
	known := errors.As(err, &send)
	switch {
	case x.r.Context().Err() != nil:
		return ledger.ReasonClientGone, known && send.Sent
	case known && send.Timeout():
		return ledger.ReasonUpstreamTimeout, send.Sent
	default:
		return ledger.ReasonUpstreamFailed, known && send.Sent
	}
}
