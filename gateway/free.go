package gateway

import (
	"context"
	"log/slog"
	"net/http"

	"tollgate/gateway/admission"
	"tollgate/gateway/provider"
	"tollgate/ledger/event"
)

// serveFree passes on a request that its provider does not bill: it takes from no budget and no rate, and leaves no event. Key
// and model must be known all the same, and the model is the policy's.
func (g *Gateway) serveFree(w http.ResponseWriter, r *http.Request, endpoint provider.Endpoint, model string) {
	g.active.Add(1)
	defer g.active.Add(-1)
	x := g.exchange(w, r, endpoint, model)
	defer x.closeBody()
	defer x.finishFree()
	if !x.identify() || !x.parse() || !x.continuesOwn() || !x.route() {
		return
	}
	body, err := x.payload(r.Context(), x.verdict.Reservation.Model, x.verdict.Provider.API)
	if err != nil {
		x.problem(bodyProblem(err))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.work, cancel)()
	response, err := x.send(ctx, body)
	if err != nil {
		x.noAnswer(err)
		return
	}
	defer response.Body.Close()
	x.passFree(response)
}

// route finds who serves the model; nothing is held.
func (x *exchange) route() bool {
	route, refusal := x.g.admission.Route(x.request.Model, x.endpoint.Protocol, x.attempts.only)
	if refusal != nil {
		x.refuse(refusal)
		return false
	}
	x.verdict = &admission.Verdict{
		Provider: route.Provider, Upstream: route.Upstream, Key: route.Key,
		Reservation: event.Reservation{Provider: route.Model.Provider, Model: route.Model.Upstream},
	}
	return true
}

// noAnswer refuses a free request that the provider did not answer.
func (x *exchange) noAnswer(err error) {
	reason, _ := x.whyUnanswered(err)
	x.g.log.Warn("no answer from the provider", "provider", x.verdict.Provider.Name, "error", err)
	x.problem(problem{reason: reason, message: unanswered(x.verdict.Provider.Name, err)})
}

func (x *exchange) passFree(response *http.Response) {
	body, answer, err := x.endpoint.ReadAnswer(response)
	if err != nil {
		x.problem(brokeOff(answer.Finish, err))
		return
	}
	defer body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		x.passError(response, body)
		return
	}
	x.writeHeader(response)
	x.pass(body)
}

// finishFree writes the one line about the request. It is no decision: no limit was asked.
func (x *exchange) finishFree() {
	x.g.log.LogAttrs(context.Background(), slog.LevelInfo, "free request", x.appendRequest(nil)...)
}
