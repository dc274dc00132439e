package gateway

import (
	"net/http"
	"strconv"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

var openAI = dialect{
	problem: openAIProblem, limit: openAILimit, models: openAIModels, model: openAIModel, requestID: "X-Request-Id",
}

type openAIError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	} `json:"error"`
	Tollgate *tollgateErr `json:"tollgate"`
}

func openAIProblem(p *problem, k kind, t *tollgateErr) any {
	body := openAIError{Tollgate: t}
	e := &body.Error
	e.Message, e.Type, e.Code = p.message, k.openAIType, k.openAICode
	if p.param != "" {
		e.Param = &p.param
	}
	switch {
	case k.status != http.StatusTooManyRequests || p.refusal == nil:
	case t.advice.hopeless:
		e.Type, e.Code = "insufficient_quota", "insufficient_quota"
	case p.refusal.Unit == ledger.UnitTokens:
		e.Type = "tokens"
	}
	return body
}

// openAILimit says resets as OpenAI does, in durations: 6m0s, 1s, 120ms.
func openAILimit(header http.Header, unit ledger.Unit, value, remaining int64, reset, now time.Time) {
	name := "Requests"
	if unit == ledger.UnitTokens {
		name = "Tokens"
	}
	header["X-Ratelimit-Limit-"+name] = []string{strconv.FormatInt(value, 10)}
	header["X-Ratelimit-Remaining-"+name] = []string{strconv.FormatInt(remaining, 10)}
	if !reset.IsZero() {
		header["X-Ratelimit-Reset-"+name] = []string{durationText(reset.Sub(now))}
	}
}

// durationText rounds up to whole seconds, or milliseconds below one, and is never 0.
func durationText(d time.Duration) string {
	step := time.Second
	if d < step {
		step = time.Millisecond
	}
	return ((max(d, 1) + step - 1) / step * step).String()
}

type openAIModelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func openAIModel(m *policy.Model) any { return openAIModelEntry{m.Name, "model", 0, m.Provider} }

func openAIModels(all []*policy.Model) any {
	entries := make([]any, len(all))
	for i, m := range all {
		entries[i] = openAIModel(m)
	}
	return map[string]any{"object": "list", "data": entries}
}
