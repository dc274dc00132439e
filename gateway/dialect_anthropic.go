package gateway

import (
	"net/http"
	"strconv"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

var anthropic = dialect{
	problem: anthropicProblem, limit: anthropicLimit, models: anthropicModels, model: anthropicModel, requestID: "Request-Id",
}

type anthropicError struct {
	Type  string `json:"type"`
	Error struct {
		Type    string            `json:"type"`
		Message string            `json:"message"`
		Details *anthropicDetails `json:"details,omitempty"`
	} `json:"error"`
	RequestID *string      `json:"request_id"`
	Tollgate  *tollgateErr `json:"tollgate"`
}

type anthropicDetails struct {
	ErrorCode string `json:"error_code"`
}

func anthropicProblem(p *problem, k kind, t *tollgateErr) any {
	body := anthropicError{Type: "error", Tollgate: t}
	body.Error.Type, body.Error.Message = k.anthropicType, p.message
	if p.requestID != "" {
		body.RequestID = &p.requestID
	}
	// What Anthropic says when an organization has spent what it may.
	if k.status == http.StatusTooManyRequests && p.refusal != nil && p.refusal.Exhausted && p.refusal.Unit == ledger.UnitUSD {
		body.Error.Details = &anthropicDetails{"enforced_spend_limit_reached"}
	}
	return body
}

// anthropicLimit says resets as Anthropic does, as instants. Its headers of input and output tokens are left out: limits here
// count both together.
func anthropicLimit(header http.Header, unit ledger.Unit, value, remaining int64, reset, now time.Time) {
	name := "Anthropic-Ratelimit-Requests-"
	if unit == ledger.UnitTokens {
		name = "Anthropic-Ratelimit-Tokens-"
	}
	header[name+"Limit"] = []string{strconv.FormatInt(value, 10)}
	header[name+"Remaining"] = []string{strconv.FormatInt(remaining, 10)}
	if !reset.IsZero() {
		header[name+"Reset"] = []string{instantText(reset, now)}
	}
}

// instantText is the first whole second not before the instant, and after now.
func instantText(reset, now time.Time) string {
	if reset.Before(now) {
		reset = now
	}
	whole := reset.UTC().Truncate(time.Second)
	if whole.Before(reset) || !whole.After(now) {
		whole = whole.Add(time.Second)
	}
	return whole.Format(time.RFC3339)
}

type anthropicModelEntry struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

// anthropicModel tells the epoch where it does not know: that is what the protocol asks for.
func anthropicModel(m *policy.Model) any {
	return anthropicModelEntry{"model", m.Name, m.Name, time.Unix(0, 0).UTC().Format(time.RFC3339)}
}

type anthropicModelList struct {
	Data    []any   `json:"data"`
	HasMore bool    `json:"has_more"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
}

func anthropicModels(all []*policy.Model) any {
	list := anthropicModelList{Data: make([]any, len(all))}
	for i, m := range all {
		list.Data[i] = anthropicModel(m)
	}
	if len(all) > 0 {
		list.FirstID, list.LastID = &all[0].Name, &all[len(all)-1].Name
	}
	return list
}
