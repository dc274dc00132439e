package gateway

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"time"

	"tollgate/gateway/admission"
	"tollgate/gateway/outbox"
	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// exchange is one request on its way through the gateway.
type exchange struct {
	g        *Gateway
	w        http.ResponseWriter
	r        *http.Request
	endpoint provider.Endpoint
	model    string // that the path names, "" where the body does
	start    time.Time

	caller  admission.Caller
	body    *body
	copies  []*body           // of a large body, changed for a provider
	request *provider.Request // of a large body without it
	verdict *admission.Verdict
	judged  moment
	traceID string

	estimates map[string]provider.Estimate // by upstream model
	input     ledger.Tokens                // what is held for it: the estimate that was made last is the one that was admitted

	attempts attempts

	cancelUpstream context.CancelFunc
	disconnect     policy.OnDisconnect // what was done when the caller left a stream

	firstByte time.Duration // from sending the request to the provider's answer header; 0 without one

	admitted bool // the reservation is on record: it needs an ending
	ended    bool // and has one

	status int           // answered to the caller
	reason ledger.Reason // of the decision, or of what went wrong afterwards
	spent  ledger.Amounts
	state  ledger.UsageState
}

// moment is an instant by Redis's clock and by this machine's monotonic one.
type moment struct{ at, here time.Time }

// now is that instant and what has passed since: a wall clock that is set meanwhile changes nothing.
func (m moment) now() time.Time { return m.at.Add(time.Since(m.here)) }

// serve is the path of one request, top to bottom. Each step answers the caller itself when it ends the path.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, endpoint provider.Endpoint, model string) {
	g.active.Add(1)
	defer g.active.Add(-1)
	x := g.exchange(w, r, endpoint, model)
	defer x.closeBody()
	defer x.finish()
	if !x.identify() || !x.parse() || !x.continuesOwn() {
		return
	}
	response, leave, ok := x.answered()
	if !ok {
		return
	}
	defer leave()
	switch {
	case response.StatusCode >= http.StatusMultipleChoices:
		x.passRefused(response)
	case isMedia(response.Header, "text/event-stream"): // whatever was asked for
		x.passStream(response, func(sink provider.Sink, how provider.Passing) (provider.Answer, error) {
			return x.endpoint.RelayStream(sink, response.Body, how)
		})
	case endpoint == provider.StreamGenerate && isMedia(response.Header, "application/json"):
		x.passStream(response, func(sink provider.Sink, how provider.Passing) (provider.Answer, error) {
			return x.endpoint.RelayList(sink, response.Body, how)
		})
	default:
		x.passBody(response)
	}
}

func (g *Gateway) exchange(w http.ResponseWriter, r *http.Request, endpoint provider.Endpoint, model string) *exchange {
	return &exchange{g: g, w: w, r: r, endpoint: endpoint, model: model, start: time.Now(), reason: ledger.ReasonOK, traceID: traceID(r.Header)}
}

func (x *exchange) identify() bool {
	if x.g.stopping.Load() {
		x.refuse(&admission.Refusal{Reason: ledger.ReasonShuttingDown, Message: "this gateway is stopping, ask again"})
		return false
	}
	caller, refusal := x.g.admission.Identify(secretOf(x.r))
	x.caller = caller
	if refusal != nil {
		x.refuse(refusal)
	}
	return refusal == nil
}

// secretOf is the caller's API key. Google's SDKs may send it in the query, which goes nowhere from here.
func secretOf(r *http.Request) string {
	secret := admission.Secret(r.Header)
	if secret == "" && dialectOf(r) == &gemini {
		secret = r.URL.Query().Get("key")
	}
	return secret
}

// reserve has the request judged. Where Redis may hold a reservation that was refused, its release goes on record.
func (x *exchange) reserve() bool {
	verdict, err := x.g.admission.Admit(x.r.Context(), &admission.Ask{
		Caller: x.caller, User: x.user(), Model: x.request.Model, Endpoint: x.endpoint.Path, EndpointKind: x.endpoint.Kind,
		IP: ClientIP(x.r, x.g.trusted), Protocol: x.endpoint.Protocol, Streamed: x.request.Stream,
		Estimate: x.estimate, Also: x.request.Also, Calls: x.request.Calls(), Tier: x.request.Tier(),
		Unbilled: x.endpoint.Unbilled(),
		Attempt:  x.attempts.n, First: x.attempts.first, Without: x.attempts.without, OnlyKey: x.attempts.only,
	})
	if err != nil {
		x.g.log.Error("limits cannot be judged", "app", x.caller.App, "error", err)
		x.problem(problem{reason: ledger.ReasonLimiterDown, message: "the limits cannot be judged at the moment"})
		return false
	}
	x.verdict = verdict
	writeQueued(x.w.Header(), verdict.Queued)
	now := x.g.clock.Now() // calibrated by the decision's own answer
	x.judged = moment{now, time.Now()}
	if verdict.Refusal != nil {
		if verdict.MaybeHeld {
			x.release(&event.Release{Reason: verdict.Refusal.Reason})
		}
		writeLimits(x.w.Header(), x.dialect(), verdict.Limits, ledger.Amounts{}, now)
		x.g.remaining.observe(verdict.Limits, ledger.Amounts{}, now)
		x.refuse(verdict.Refusal)
		return false
	}
	for _, over := range verdict.PassedOver {
		x.g.metrics.passedOver(over.Action, over.Refusal.Reason, over.Refusal.Layer)
	}
	writeLimits(x.w.Header(), x.dialect(), verdict.Limits, verdict.Reservation.Held, now)
	x.g.remaining.observe(verdict.Limits, verdict.Reservation.Held, now)
	x.w.Header()["X-Tollgate-Request-Id"] = []string{verdict.Reservation.ID}
	return true
}

// estimate is what to hold for the request when the upstream model serves it: what its body says, corrected by what earlier
// requests of the app really used.
func (x *exchange) estimate(model string) (input, output ledger.Tokens) {
	input, output = x.g.learner.Estimate(x.caller.App, model, x.rawEstimate(model))
	x.input = input
	return input, output
}

// heldOutput is what was held for the answer.
func (x *exchange) heldOutput() ledger.Tokens {
	return max(0, x.verdict.Reservation.Held.Tokens-x.input)
}

// userHeader names the end user, before the body does.
const userHeader = "X-Tollgate-User"

// user is the end user: the key's own, else the header's, else the body's.
func (x *exchange) user() string {
	if x.caller.User != "" {
		return x.caller.User
	}
	if user := x.r.Header.Get(userHeader); user != "" {
		return user
	}
	return x.request.User
}

// recordReserved makes the reservation durable before anything is spent. Where that is not possible the hold is given back
// at once, because no event will ever end it.
func (x *exchange) recordReserved() bool {
	res := x.verdict.Reservation
	err := x.g.outbox.Record(context.WithoutCancel(x.r.Context()), x.event(event.KindReserved, res, nil, nil))
	x.g.admission.Recorded(x.verdict)
	if err == nil {
		x.admitted = true
		x.g.metrics.admitted(&res)
		return true
	}
	x.g.log.Error("reservation cannot be recorded", "request_id", res.ID, "error", err)
	x.giveBack()
	if !errors.Is(err, outbox.ErrNotTaken) {
		// It may arrive in the stream all the same, and would be charged when it expires.
		x.release(&event.Release{Reason: ledger.ReasonEventLogDown})
	}
	x.problem(problem{reason: ledger.ReasonEventLogDown, message: "the request cannot be recorded at the moment, nothing was spent"})
	return false
}

// stillStands refuses a request after all whose decision has grown old, because this process was paused, and is not confirmed.
func (x *exchange) stillStands() bool {
	refusal := x.g.admission.Stands(x.r.Context(), x.verdict)
	if refusal == nil {
		return true
	}
	x.release(&event.Release{Reason: refusal.Reason})
	x.verdict.Refusal, x.admitted = refusal, false
	x.refuse(refusal)
	return false
}

// passRefused passes on an answer that is no success: the provider bills nothing for it. Some providers tell back the key
// that they do not accept.
func (x *exchange) passRefused(response *http.Response) {
	x.release(&event.Release{Reason: ledger.ReasonUpstreamFailed, Status: response.StatusCode})
	x.passReleased(response)
}

func (x *exchange) passReleased(response *http.Response) {
	body, answer, err := x.endpoint.ReadAnswer(response)
	if err != nil {
		x.g.log.Warn("the provider's answer broke off", "request_id", x.verdict.Reservation.ID, "error", err)
		x.problem(brokeOff(answer.Finish, err))
		return
	}
	defer body.Close()
	x.passError(response, body)
}

// passError passes on an answer that is no success, without the provider's keys, which it can be searched for only as a whole.
func (x *exchange) passError(response *http.Response, body *provider.Body) {
	if body.Rest != nil {
		x.problem(problem{reason: ledger.ReasonUpstreamFailed, message: "the provider answered with an error that is too large to be passed on"})
		return
	}
	x.reason = ledger.ReasonUpstreamFailed
	x.writeHeader(response)
	x.pass(&provider.Body{Text: x.verdict.Upstream.Hide(body.Text)})
}

func isMedia(header http.Header, want string) bool {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return (err == nil || errors.Is(err, mime.ErrInvalidMediaParameter)) && mediaType == want
}

func (x *exchange) passBody(response *http.Response) {
	body, answer, err := x.endpoint.ReadAnswer(response)
	output := x.heldOutput()
	if answer.Finish == ledger.ReasonUpstreamFailed {
		output = 0 // an error, in spite of its status
	}
	x.used(answer, response.StatusCode, output)
	x.remember(answer.UpstreamID)
	if err != nil {
		x.g.log.Warn("the provider's answer broke off", "request_id", x.verdict.Reservation.ID, "error", err)
		x.problem(brokeOff(answer.Finish, err))
		return
	}
	defer body.Close()
	if body.Rest != nil {
		x.g.log.Warn("answer is too large to be metered, the estimate is charged", "request_id", x.verdict.Reservation.ID)
	}
	x.writeHeader(response)
	x.pass(body)
}

func (x *exchange) writeHeader(response *http.Response) {
	header := x.w.Header()
	provider.ReturnHeader(header, response.Header)
	if model := x.verdict.Reservation.Model; model != "" {
		header["X-Tollgate-Model"] = []string{model}
	}
	x.status = response.StatusCode
	x.w.WriteHeader(response.StatusCode)
}

func (x *exchange) refuse(r *admission.Refusal) {
	x.problem(problem{reason: r.Reason, message: r.Message, refusal: r})
}

func (x *exchange) problem(p problem) {
	if x.passEarlier() {
		return
	}
	x.reason = p.reason
	x.status = kindOf(p.reason).status
	if x.verdict != nil {
		p.requestID = x.verdict.Reservation.ID
	}
	writeProblem(x.w, x.dialect(), &p)
}

func (x *exchange) dialect() *dialect { return dialects[x.endpoint.Protocol] }
