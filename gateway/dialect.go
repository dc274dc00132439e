package gateway

import (
	"net/http"
	"strings"
	"time"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// dialect is how a protocol's callers are answered where the gateway speaks for itself.
type dialect struct {
	// problem is the body of an error answer.
	problem func(p *problem, k kind, t *tollgateErr) any
	// limit sets the headers of one unit: what may be used in all, what is left, and when all of it is back, which is after
	// now; zero is never.
	limit func(header http.Header, unit ledger.Unit, value, remaining int64, reset, now time.Time)
	// models is the body of a list of models, model that of one.
	models func(all []*policy.Model) any
	model  func(m *policy.Model) any
	// requestID is the header by which SDKs know a request.
	requestID string
}

var dialects = map[policy.Protocol]*dialect{
	policy.ProtocolOpenAI:    &openAI,
	policy.ProtocolAnthropic: &anthropic,
	policy.ProtocolGemini:    &gemini,
}

// dialectOf finds the caller's dialect: a metered route's own, also for what is below it, and elsewhere by what Google's or
// Anthropic's SDKs send.
func dialectOf(r *http.Request) *dialect {
	if strings.HasPrefix(r.URL.Path, "/v1beta/") {
		return &gemini
	}
	for _, e := range provider.Metered() {
		if rest, ok := strings.CutPrefix(r.URL.Path, e.Path); ok && (rest == "" || rest[0] == '/') {
			return dialects[e.Protocol]
		}
	}
	if r.Header.Get("Anthropic-Version") != "" || r.Header.Get("X-Api-Key") != "" {
		return &anthropic
	}
	return &openAI
}
