package gateway

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// listModels answers GET /v1/models with the models of the policy. It costs nothing and takes from no budget.
func (g *Gateway) listModels(w http.ResponseWriter, r *http.Request) {
	if !g.known(w, r) {
		return
	}
	all := slices.SortedFunc(maps.Values(g.admission.Policy().Models), func(a, b *policy.Model) int { return strings.Compare(a.Name, b.Name) })
	g.writeJSON(w, dialectOf(r).models(all))
}

func (g *Gateway) showModel(w http.ResponseWriter, r *http.Request, name string) {
	if !g.known(w, r) {
		return
	}
	m := g.admission.Policy().Models[name]
	if m == nil {
		g.problem(w, r, &problem{reason: ledger.ReasonUnknownModel, message: "the model " + name + " does not exist here"})
		return
	}
	g.writeJSON(w, dialectOf(r).model(m))
}

func (g *Gateway) refuseRoute(w http.ResponseWriter, r *http.Request) {
	g.problem(w, r, &problem{
		reason:  ledger.ReasonUnknownRoute,
		message: "no route " + r.Method + " " + r.URL.Path + ": only metered routes are served",
	})
}

func (g *Gateway) known(w http.ResponseWriter, r *http.Request) bool {
	_, refusal := g.admission.Identify(secretOf(r))
	if refusal != nil {
		g.problem(w, r, &problem{reason: refusal.Reason, message: refusal.Message, refusal: refusal})
	}
	return refusal == nil
}

// problem answers a request that belongs to no exchange.
func (g *Gateway) problem(w http.ResponseWriter, r *http.Request, p *problem) {
	writeProblem(w, dialectOf(r), p)
}

func (g *Gateway) writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		g.log.Debug("answer not written", "error", err)
	}
}
