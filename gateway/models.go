package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

type modelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func entryOf(m *policy.Model) modelEntry { return modelEntry{m.Name, "model", 0, m.Provider} }

// listModels answers GET /v1/models with the models of the policy. It costs nothing and takes from no budget.
func (g *Gateway) listModels(w http.ResponseWriter, r *http.Request) {
	if !g.known(w, r) {
		return
	}
	entries := []modelEntry{}
	for _, m := range g.admission.Policy().Models {
		entries = append(entries, entryOf(m))
	}
	slices.SortFunc(entries, func(a, b modelEntry) int { return strings.Compare(a.ID, b.ID) })
	g.writeJSON(w, map[string]any{"object": "list", "data": entries})
}

func (g *Gateway) showModel(w http.ResponseWriter, r *http.Request, name string) {
	if !g.known(w, r) {
		return
	}
	m := g.admission.Policy().Models[name]
	if m == nil {
		writeProblem(w, problem{reason: ledger.ReasonUnknownModel, message: "the model " + name + " does not exist here"})
		return
	}
	g.writeJSON(w, entryOf(m))
}

func (g *Gateway) refuseRoute(w http.ResponseWriter, r *http.Request) {
	writeProblem(w, problem{
		reason:  ledger.ReasonUnknownRoute,
		message: "no route " + r.Method + " " + r.URL.Path + ": only metered routes are served",
	})
}

func (g *Gateway) known(w http.ResponseWriter, r *http.Request) bool {
	_, refusal := g.admission.Identify(admission.Secret(r.Header))
	if refusal != nil {
		writeRefusal(w, refusal)
	}
	return refusal == nil
}

func (g *Gateway) writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		g.log.Debug("answer not written", "error", err)
	}
}
