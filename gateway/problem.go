package gateway

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"tollgate/gateway/admission"
	"tollgate/ledger"
)

// problem is an error answer before it has a shape.
type problem struct {
	reason  ledger.Reason
	message string
	param   string
	refusal *admission.Refusal // with figures, when a limit refused
}

// status maps every reason to its HTTP status and to OpenAI's error type and code. It is the only place that does.
func status(reason ledger.Reason) (code int, errorType, errorCode string) {
	switch reason {
	case ledger.ReasonUnknownKey:
		return http.StatusUnauthorized, "invalid_request_error", "invalid_api_key"
	case ledger.ReasonDisabledKey, ledger.ReasonExpiredKey, ledger.ReasonUnknownPlan:
		return http.StatusForbidden, "invalid_request_error", "invalid_api_key"
	case ledger.ReasonUnpricedModel:
		return http.StatusForbidden, "invalid_request_error", "unpriced_model"
	case ledger.ReasonUnknownModel:
		return http.StatusNotFound, "invalid_request_error", "model_not_found"
	case ledger.ReasonUnknownRoute:
		return http.StatusNotFound, "invalid_request_error", "unknown_url"
	case ledger.ReasonBadRequest:
		return http.StatusBadRequest, "invalid_request_error", "invalid_request"
	case ledger.ReasonRequestTooLarge, ledger.ReasonBodyTooLarge:
		return http.StatusRequestEntityTooLarge, "invalid_request_error", "request_too_large"
	case ledger.ReasonUpstreamFailed, ledger.ReasonUpstreamCut:
		return http.StatusBadGateway, "server_error", "upstream_failed"
	case ledger.ReasonUpstreamTimeout:
		return http.StatusGatewayTimeout, "server_error", "upstream_timeout"
	case ledger.ReasonLimiterDown, ledger.ReasonEventLogDown, ledger.ReasonShuttingDown:
		return http.StatusServiceUnavailable, "server_error", "service_unavailable"
	case ledger.ReasonClientGone:
		return 499, "invalid_request_error", "client_closed_request" // nobody reads it; the log does
	case ledger.ReasonInternal:
		return http.StatusInternalServerError, "server_error", "internal_error"
	default: // also REBUILDING and DEGRADED: SDKs wait and come back, and a limiter's trouble is no error of the server
		return http.StatusTooManyRequests, "requests", "rate_limit_exceeded"
	}
}

// worthWaiting is the longest wait that a client should sit out by itself.
const worthWaiting = time.Minute

// neverAgain is told as the wait when no wait helps: a budget that never resets.
const neverAgain = 24 * time.Hour

func writeRefusal(w http.ResponseWriter, r *admission.Refusal) {
	writeProblem(w, problem{reason: r.Reason, message: r.Message, refusal: r})
}

// writeProblem answers in OpenAI's error shape, with an object tollgate beside it, and with the headers that make SDKs wait
// as long as is worth it and not at all otherwise.
func writeProblem(w http.ResponseWriter, p problem) {
	code, errorType, errorCode := status(p.reason)
	header := w.Header()
	wait := time.Duration(0)
	switch {
	case code == http.StatusTooManyRequests && p.refusal != nil:
		wait = p.refusal.RetryAfter
		if p.refusal.Exhausted || wait <= 0 || wait > worthWaiting {
			errorType, errorCode = "insufficient_quota", "insufficient_quota"
			header.Set("X-Should-Retry", "false")
		} else if p.refusal.Unit == ledger.UnitTokens {
			errorType = "tokens"
		}
		if wait <= 0 {
			wait = neverAgain
		}
	case code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests:
		wait = time.Second
	case code < http.StatusInternalServerError:
		header.Set("X-Should-Retry", "false")
	}
	if wait > 0 {
		setRetryAfter(header, wait)
	}
	body := errorBody{Error: errorObject{p.message, errorType, nil, errorCode}, Tollgate: describe(p, wait)}
	if p.param != "" {
		body.Error.Param = &p.param
	}
	header.Set("Content-Type", "application/json")
	w.WriteHeader(code)
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // the types are ours and always encode
	}
	_, _ = w.Write(append(data, '\n')) // a caller that has left does not read it
}

// setRetryAfter says the wait in whole seconds, rounded up, and exactly in milliseconds: never before the reset, never 0.
func setRetryAfter(header http.Header, wait time.Duration) {
	header.Set("Retry-After", strconv.FormatInt(seconds(wait), 10))
	header.Set("Retry-After-Ms", strconv.FormatInt(int64(math.Ceil(float64(wait)/float64(time.Millisecond))), 10))
}

func seconds(wait time.Duration) int64 {
	return max(1, int64((wait+time.Second-1)/time.Second))
}

type errorBody struct {
	Error    errorObject  `json:"error"`
	Tollgate *tollgateErr `json:"tollgate"`
}

type errorObject struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

type tollgateErr struct {
	Reason      ledger.Reason   `json:"reason"`
	Layer       ledger.Tier     `json:"layer,omitempty"`
	Subject     string          `json:"subject,omitempty"`
	LimitName   string          `json:"limit_name,omitempty"`
	Unit        ledger.Unit     `json:"unit,omitempty"`
	Limit       json.RawMessage `json:"limit,omitempty"` // figures: dollars for usd, else whole numbers
	Used        json.RawMessage `json:"used,omitempty"`
	Held        json.RawMessage `json:"held,omitempty"`
	Needed      json.RawMessage `json:"needed,omitempty"`
	ResetsAt    *time.Time      `json:"resets_at,omitempty"`
	RetryAfterS int64           `json:"retry_after_s,omitempty"`
	Options     []option        `json:"options"`
}

// option is something that the caller can do next.
type option struct {
	Action      string `json:"action"`
	RetryAfterS int64  `json:"retry_after_s,omitempty"`
}

func describe(p problem, wait time.Duration) *tollgateErr {
	t := &tollgateErr{Reason: p.reason, Options: []option{}}
	if wait > 0 {
		t.RetryAfterS = seconds(wait)
		t.Options = append(t.Options, option{"wait", t.RetryAfterS})
	}
	r := p.refusal
	if r == nil || r.LimitName == "" {
		return t
	}
	t.Layer, t.Subject, t.LimitName, t.Unit = r.Layer, r.Subject, r.LimitName, r.Unit
	t.Limit, t.Used, t.Held, t.Needed = figure(r.Limit, r.Unit), figure(r.Used, r.Unit), figure(r.Held, r.Unit), figure(r.Needed, r.Unit)
	if !r.ResetsAt.IsZero() {
		t.ResetsAt = &r.ResetsAt
	}
	return t
}

func figure(n int64, unit ledger.Unit) json.RawMessage {
	if unit == ledger.UnitUSD {
		return json.RawMessage(ledger.NanoUSD(n).String())
	}
	return strconv.AppendInt(nil, n, 10)
}
