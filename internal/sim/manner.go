package sim

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// manner is how a provider's API behaves around its answers.
type manner struct {
	provider string                                                     // whose books its answers are in
	key      func(r *http.Request) string                               // the caller's
	greet    func(header http.Header, requestID string)                 // headers of every answer
	describe func(header http.Header, c *call, tokens int64)            // headers of an answer that is no error
	refuse   func(w http.ResponseWriter, e *apiError, requestID string) // an error
}

var (
	openAI    = manner{"openai", bearer, greetOpenAI, describeOpenAI, func(w http.ResponseWriter, e *apiError, _ string) { e.write(w) }}
	anthropic = manner{"anthropic", anthropicKey, greetAnthropic, describeAnthropic, refuseAnthropic}
	gemini    = manner{"google", geminiKey, func(http.Header, string) {}, func(http.Header, *call, int64) {}, refuseGemini}
)

func (e endpoint) manner() manner {
	switch e {
	case endpointMessages:
		return anthropic
	case endpointGenerate, endpointEmbed:
		return gemini
	default:
		return openAI
	}
}

func bearer(r *http.Request) string {
	key, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return ""
	}
	return strings.TrimSpace(key)
}

func anthropicKey(r *http.Request) string {
	if key := r.Header.Get("X-Api-Key"); key != "" {
		return key
	}
	return bearer(r)
}

var (
	openaiVersion      = []string{"2020-10-01"}
	openaiOrganization = []string{organization}
)

func greetOpenAI(header http.Header, requestID string) {
	header["X-Request-Id"] = []string{requestID}
	header["Openai-Version"] = openaiVersion
	header["Openai-Organization"] = openaiOrganization
}

func greetAnthropic(header http.Header, requestID string) {
	header["Request-Id"] = []string{requestID}
	header["Anthropic-Organization-Id"] = openaiOrganization
}

// Limits that the headers show; nothing enforces them.
const (
	shownRequests = 10_000
	shownTokens   = 30_000_000
)

var (
	limitRequests     = []string{strconv.Itoa(shownRequests)}
	remainingRequests = []string{strconv.Itoa(shownRequests - 1)}
	resetRequests     = []string{"6ms"}
	limitTokens       = []string{strconv.Itoa(shownTokens)}
)

func describeOpenAI(header http.Header, c *call, tokens int64) {
	elapsed := time.Since(c.started).Milliseconds()
	header["Openai-Processing-Ms"] = []string{strconv.FormatInt(max(elapsed, 1), 10)}
	header["X-Ratelimit-Limit-Requests"] = limitRequests
	header["X-Ratelimit-Remaining-Requests"] = remainingRequests
	header["X-Ratelimit-Reset-Requests"] = resetRequests
	header["X-Ratelimit-Limit-Tokens"] = limitTokens
	header["X-Ratelimit-Remaining-Tokens"] = []string{strconv.FormatInt(max(shownTokens-tokens, 0), 10)}
	header["X-Ratelimit-Reset-Tokens"] = []string{strconv.FormatInt(tokens*60_000/shownTokens, 10) + "ms"}
}

func describeAnthropic(header http.Header, c *call, tokens int64) {
	reset := []string{c.received.UTC().Add(time.Second).Format(time.RFC3339)}
	header["Anthropic-Ratelimit-Requests-Limit"] = limitRequests
	header["Anthropic-Ratelimit-Requests-Remaining"] = remainingRequests
	header["Anthropic-Ratelimit-Requests-Reset"] = reset
	header["Anthropic-Ratelimit-Tokens-Limit"] = limitTokens
	header["Anthropic-Ratelimit-Tokens-Remaining"] = []string{strconv.FormatInt(max(shownTokens-tokens, 0), 10)}
	header["Anthropic-Ratelimit-Tokens-Reset"] = reset
}

// anthropicTypes are the types of errors, by their status.
var anthropicTypes = map[int]string{
	http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error",
	http.StatusPaymentRequired: "billing_error", http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error",
	http.StatusGatewayTimeout: "timeout_error", statusOverloaded: overloaded,
}

const (
	statusOverloaded = 529
	overloaded       = "overloaded_error"
)

func anthropicType(e *apiError) string {
	kind, known := anthropicTypes[e.status]
	switch {
	case e.named != "":
		return e.named
	case known:
		return kind
	case e.status < 500:
		return "invalid_request_error"
	default:
		return "api_error"
	}
}

// refuseAnthropic words the error in Anthropic's shape; a code that the request asked for is its type.
func refuseAnthropic(w http.ResponseWriter, e *apiError, requestID string) {
	header := w.Header()
	header["Content-Type"] = jsonType
	if e.retryAfter != unset {
		header.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	body := appendAnthropicError(nil, anthropicType(e), e.message)
	body = append(appendQuoted(append(body, `,"request_id":`...), requestID), "}\n"...)
	send(w, e.status, body)
}

// appendAnthropicError leaves the object open.
func appendAnthropicError(dst []byte, kind, message string) []byte {
	dst = appendQuoted(append(dst, `{"type":"error","error":{"type":`...), kind)
	return append(appendQuoted(append(dst, `,"message":`...), message), '}')
}
