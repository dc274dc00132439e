package gateway

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"tollgate/gateway/admission"
	"tollgate/ledger"
)

// problem is an error answer before it has a shape.
type problem struct {
	reason    ledger.Reason
	message   string
	param     string
	requestID string             // "" for a request that got none
	refusal   *admission.Refusal // with figures, when a limit refused
}

// kind is what a reason is to the world: its HTTP status, and the error's type and code in each dialect.
type kind struct {
	status        int
	openAIType    string
	openAICode    string
	anthropicType string
}

// kindOf maps every reason. It is the only place that does.
func kindOf(reason ledger.Reason) kind {
	const invalid, server = "invalid_request_error", "server_error"
	switch reason {
	case ledger.ReasonUnknownKey:
		return kind{http.StatusUnauthorized, invalid, "invalid_api_key", "authentication_error"}
	case ledger.ReasonDisabledKey, ledger.ReasonExpiredKey, ledger.ReasonUnknownPlan:
		return kind{http.StatusForbidden, invalid, "invalid_api_key", "permission_error"}
	case ledger.ReasonUnpricedModel:
		return kind{http.StatusForbidden, invalid, "unpriced_model", "permission_error"}
	case ledger.ReasonUnknownModel:
		return kind{http.StatusNotFound, invalid, "model_not_found", "not_found_error"}
	case ledger.ReasonUnknownObject:
		return kind{http.StatusNotFound, invalid, "not_found", "not_found_error"}
	case ledger.ReasonUnknownRoute:
		return kind{http.StatusNotFound, invalid, "unknown_url", "not_found_error"}
	case ledger.ReasonBadRequest:
		return kind{http.StatusBadRequest, invalid, "invalid_request", invalid}
	case ledger.ReasonRequestTooLarge, ledger.ReasonBodyTooLarge:
		return kind{http.StatusRequestEntityTooLarge, invalid, "request_too_large", "request_too_large"}
	case ledger.ReasonBodyTimeout:
		return kind{http.StatusRequestTimeout, invalid, "request_timeout", invalid}
	case ledger.ReasonUpstreamFailed, ledger.ReasonUpstreamCut:
		return kind{http.StatusBadGateway, server, "upstream_failed", "api_error"}
	case ledger.ReasonUpstreamTimeout:
		return kind{http.StatusGatewayTimeout, server, "upstream_timeout", "timeout_error"}
	case ledger.ReasonLimiterDown, ledger.ReasonEventLogDown, ledger.ReasonShuttingDown, ledger.ReasonUpstreamDown,
		ledger.ReasonBodiesFull:
		return kind{http.StatusServiceUnavailable, server, "service_unavailable", "overloaded_error"}
	case ledger.ReasonClientGone:
		return kind{499, invalid, "client_closed_request", invalid} // nobody reads it; the log does
	case ledger.ReasonInternal:
		return kind{http.StatusInternalServerError, server, "internal_error", "api_error"}
	default: // also REBUILDING and DEGRADED: SDKs wait and come back, and a limiter's trouble is no error of the server
		return kind{http.StatusTooManyRequests, "requests", "rate_limit_exceeded", "rate_limit_error"}
	}
}

// worthWaiting is the longest wait that a client should sit out by itself.
const worthWaiting = time.Minute

// neverAgain is told as the wait when no wait helps: a budget that never resets.
const neverAgain = 24 * time.Hour

// advice is what the caller is told to do about waiting.
type advice struct {
	wait     time.Duration // 0: no wait helps
	hopeless bool          // a program should not wait by itself
}

func adviceOn(p *problem, k kind) advice {
	switch {
	case k.status == http.StatusTooManyRequests && p.refusal != nil:
		a := advice{wait: p.refusal.RetryAfter}
		a.hopeless = p.refusal.Exhausted || a.wait <= 0 || a.wait > worthWaiting
		if a.wait <= 0 {
			a.wait = neverAgain
		}
		return a
	case k.status == http.StatusServiceUnavailable && p.refusal != nil && p.refusal.RetryAfter > 0:
		return advice{wait: p.refusal.RetryAfter}
	case k.status == http.StatusServiceUnavailable || k.status == http.StatusTooManyRequests:
		return advice{wait: time.Second}
	default:
		return advice{hopeless: k.status < http.StatusInternalServerError && k.status != http.StatusRequestTimeout}
	}
}

// writeProblem answers in the caller's dialect, with an object tollgate beside its error, and with the headers that make SDKs
// wait as long as is worth it and not at all otherwise.
func writeProblem(w http.ResponseWriter, d *dialect, p *problem) {
	k, header := kindOf(p.reason), w.Header()
	told := adviceOn(p, k)
	if told.hopeless {
		header.Set("X-Should-Retry", "false")
	}
	if told.wait > 0 {
		setRetryAfter(header, told)
	}
	if p.requestID != "" {
		header.Set(d.requestID, p.requestID)
	}
	header.Set("Content-Type", "application/json")
	w.WriteHeader(k.status)
	data, err := json.Marshal(d.problem(p, k, describe(p, k, told)))
	if err != nil {
		panic(err) // the types are ours and always encode
	}
	_, _ = w.Write(append(data, '\n')) // a caller that has left does not read it
}

// setRetryAfter says the wait in whole seconds and in milliseconds, both rounded up: never before the reset, never 0. Where
// programs will obey it, it is a little longer at random, so that those who were refused together do not come back together.
func setRetryAfter(header http.Header, told advice) {
	wait := told.wait
	if !told.hopeless {
		wait += rand.N(spread(wait) + 1)
	}
	header.Set("Retry-After", strconv.FormatInt(seconds(wait), 10))
	header.Set("Retry-After-Ms", strconv.FormatInt(int64((wait+time.Millisecond-1)/time.Millisecond), 10))
}

// spread is how much longer than needed a wait may be told: a tenth. A short one stays within the second that it ends in, so
// that the whole seconds are those that are needed; a long one stays worth waiting.
func spread(wait time.Duration) time.Duration {
	most := worthWaiting
	if wait < 10*time.Second {
		most = time.Duration(seconds(wait)) * time.Second
	}
	return min(wait/10, max(most-wait, 0))
}

// seconds rounds up, and is at least 1.
func seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// tollgateErr is what the gateway tells of a refusal in every dialect.
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
	RetryAfterS int64           `json:"retry_after_s,omitempty"` // without what is added at random
	Options     []option        `json:"options"`

	advice advice
}

// option is something that the caller can do next.
type option struct {
	Action        string `json:"action"` // wait, queue or fallback
	RetryAfterS   int64  `json:"retry_after_s,omitempty"`
	Position      int    `json:"position,omitempty"`
	ExpectedWaitS int64  `json:"expected_wait_s,omitempty"`
	Model         string `json:"model,omitempty"`
}

func describe(p *problem, k kind, told advice) *tollgateErr {
	t := &tollgateErr{Reason: p.reason, Options: []option{}, advice: told}
	if told.wait > 0 {
		t.RetryAfterS = seconds(told.wait)
		t.Options = append(t.Options, option{Action: "wait", RetryAfterS: t.RetryAfterS})
	}
	r := p.refusal
	if r == nil {
		return t
	}
	if q := r.Queue; q != nil {
		t.Options = append(t.Options, option{Action: "queue", Position: q.Position, ExpectedWaitS: seconds(q.ExpectedWait)})
	}
	if r.FallbackModel != "" {
		t.Options = append(t.Options, option{Action: "fallback", Model: r.FallbackModel})
	}
	if r.LimitName == "" {
		return t
	}
	t.Layer, t.Subject, t.LimitName, t.Unit = r.Layer, r.Subject, r.LimitName, r.Unit
	// Figures stand where they decided: all of them when the limit was judged, its size when that alone is too small.
	if k.status == http.StatusTooManyRequests {
		t.Used, t.Held = figure(r.Used, r.Unit), figure(r.Held, r.Unit)
	}
	if k.status == http.StatusTooManyRequests || p.reason == ledger.ReasonRequestTooLarge {
		t.Limit, t.Needed = figure(r.Limit, r.Unit), figure(r.Needed, r.Unit)
	}
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
