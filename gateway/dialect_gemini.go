package gateway

import (
	"net/http"
	"strconv"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// gemini has no headers for limits: Google sends none.
var gemini = dialect{
	problem: geminiProblem, limit: func(http.Header, ledger.Unit, int64, int64, time.Time, time.Time) {},
	models: geminiModels, model: geminiModel, requestID: "X-Request-Id",
}

type geminiError struct {
	Error struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Status  string `json:"status"`
		Details []any  `json:"details,omitempty"`
	} `json:"error"`
	Tollgate *tollgateErr `json:"tollgate"`
}

// geminiStatus is Google's name of a status.
func geminiStatus(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case http.StatusForbidden:
		return "PERMISSION_DENIED"
	case http.StatusNotFound:
		return "NOT_FOUND"
	case http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case 499:
		return "CANCELLED"
	case http.StatusInternalServerError:
		return "INTERNAL"
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return "UNAVAILABLE"
	case http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED"
	default:
		return "INVALID_ARGUMENT"
	}
}

type geminiQuotaFailure struct {
	Type       string                 `json:"@type"`
	Violations []geminiQuotaViolation `json:"violations"`
}

type geminiQuotaViolation struct {
	QuotaMetric string `json:"quotaMetric"`
	QuotaID     string `json:"quotaId"`
	QuotaValue  string `json:"quotaValue"`
}

type geminiRetryInfo struct {
	Type       string `json:"@type"`
	RetryDelay string `json:"retryDelay"`
}

// geminiProblem tells how long to wait where programs read it, and only where waiting is of use.
func geminiProblem(p *problem, k kind, t *tollgateErr) any {
	body := geminiError{Tollgate: t}
	e := &body.Error
	e.Code, e.Message, e.Status = k.status, p.message, geminiStatus(k.status)
	if r := p.refusal; r != nil && r.LimitName != "" && k.status == http.StatusTooManyRequests {
		e.Details = append(e.Details, geminiQuotaFailure{"type.googleapis.com/google.rpc.QuotaFailure", []geminiQuotaViolation{
			{"tollgate/" + string(r.Unit), r.LimitName, strconv.FormatInt(r.Limit, 10)},
		}})
	}
	if t.advice.wait > 0 && !t.advice.hopeless {
		e.Details = append(e.Details, geminiRetryInfo{"type.googleapis.com/google.rpc.RetryInfo", strconv.FormatInt(t.RetryAfterS, 10) + "s"})
	}
	return body
}

type geminiModelEntry struct {
	Name        string   `json:"name"`
	DisplayName string   `json:"displayName"`
	Methods     []string `json:"supportedGenerationMethods"`
}

func geminiModel(m *policy.Model) any {
	return geminiModelEntry{"models/" + m.Name, m.Name, []string{"generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents"}}
}

func geminiModels(all []*policy.Model) any {
	entries := make([]any, len(all))
	for i, m := range all {
		entries[i] = geminiModel(m)
	}
	return map[string]any{"models": entries}
}
