package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// sdkKind is one kind of answer that SDKs are shown. Each has models of its own, gpt-NAME and claude-NAME, and counters for each
// SDK's user, so that all kinds and SDKs can be at work at once.
type sdkKind struct {
	name  string
	limit string // what it limits, as YAML; "" is none of its own
	model string // served by the models of another kind
	key   string // name of the key; "" is the key of everybody

	// Before the call the limit is filled until it refuses, or a request that holds so many tokens is put in flight; that one ends
	// once the call has been refused for the first time, before the SDK learns of it.
	fill map[string]string // headers for the simulator
	held int64
	// meanwhile is what happens then besides.
	meanwhile func() error

	call     sdkCall // MaxTokens, Header, Stream and Patience
	passing  bool    // the limit has room again soon, perhaps before it is asked
	attempts [2]int  // at least, at most
	passes   bool    // the last attempt is answered with success
	refused  sdkRefusal
	shown    sdkShown
}

// sdkRefusal is what every attempt gets that is refused.
type sdkRefusal struct {
	status                       int
	reason                       string // "" is an error of the provider's
	openAIType, openAICode       string
	anthropicType, anthropicCode string
	class, anthropicClass        string           // in JavaScript; Anthropic's has some classes below those that both have
	says                         string           // part of the message
	told                         [2]time.Duration // between; zero is no wait at all
}

// sdkShown is what the headers of every attempt show of the tightest limit on a unit; without unit anything may be shown.
type sdkShown struct{ unit, limit, remaining string }

// usedUp is a limit of one request, which was made.
var usedUp = sdkShown{"Requests", "1", "0"}

// Types of errors, by dialect.
const (
	invalid    = "invalid_request_error"
	spent      = "insufficient_quota"
	rateLimit  = "rate_limit_exceeded"
	slowDown   = "rate_limit_error"
	rateClass  = "RateLimitError"
	serverFail = "InternalServerError"
)

// once is a call that SDKs must not repeat, twice one that passes after the wait that was told, retried one that passes within
// their own count, and givenUp one that never does.
var (
	once    = [2]int{1, 1}
	twice   = [2]int{2, 2}
	retried = [2]int{2, 3}
	givenUp = [2]int{3, 3}
)

// wide is a budget that every request meets and none fills. The simulator shows other limits, which are nobody's business.
var wide = sdkShown{unit: "Requests", limit: "1000000"}

// small is what a request uses that fills a limit on requests.
var small = map[string]string{"X-Sim-Completion-Tokens": "5"}

// sdkKinds are those that need nothing but limits and keys.
func sdkKinds() []*sdkKind {
	var all []*sdkKind
	for _, kinds := range [][]*sdkKind{spentKinds(), waitKinds(), flightKinds(), callerKinds(), providerKinds()} {
		all = append(all, kinds...)
	}
	for _, k := range all {
		if k.call.MaxTokens == 0 {
			k.call.MaxTokens = 10
		}
	}
	return all
}

// spentKinds are limits without room for so long that no program should wait: one attempt.
func spentKinds() []*sdkKind {
	quota := sdkRefusal{
		status: http.StatusTooManyRequests, reason: "USER_QUOTA", openAIType: spent, openAICode: spent,
		anthropicType: slowDown, class: rateClass, says: "has no room",
	}
	day, month, total, hour := quota, quota, quota, quota
	day.told = [2]time.Duration{time.Hour, 24 * time.Hour}
	month.told = [2]time.Duration{time.Hour, 31 * 24 * time.Hour}
	month.anthropicCode, month.anthropicClass = "enforced_spend_limit_reached", "EnforcedSpendLimitReachedError"
	total.told = [2]time.Duration{24 * time.Hour, 24 * time.Hour}
	hour.reason, hour.told = "RPM_LIMIT", [2]time.Duration{50 * time.Minute, time.Hour}
	return []*sdkKind{
		// U54, langchainjs #1929: insufficient_quota was retried.
		{name: "day-budget", limit: "budget: {requests: 1, per: day}", fill: small, attempts: once, refused: day, shown: usedUp},
		// U53, pi #3671, opencode #13591 and #8170: an SDK slept for days because it was told to.
		{
			name: "month-budget", limit: "budget: {usd: 0.01, per: month}", fill: map[string]string{"X-Sim-Completion-Tokens": "16700"},
			attempts: once, refused: month,
		},
		{name: "total-budget", limit: "budget: {requests: 1, per: total}", fill: small, attempts: once, refused: total},
		{
			name: "hour-rate", limit: "rate: {requests: 1, per: hour, algorithm: sliding_log}", fill: small,
			attempts: once, refused: hour, shown: usedUp,
		},
	}
}

// waitKinds are rates that have room again soon: the SDK waits as long as it is told, and passes.
func waitKinds() []*sdkKind {
	rate := sdkRefusal{
		status: http.StatusTooManyRequests, reason: "RPM_LIMIT", openAIType: "requests", openAICode: rateLimit,
		anthropicType: slowDown, class: rateClass, says: "has no room",
	}
	second, bucket, tokens, minute := rate, rate, rate, rate
	second.told = [2]time.Duration{time.Millisecond, time.Second}
	bucket.reason, bucket.told = "TOKEN_BUCKET", [2]time.Duration{time.Millisecond, 6 * time.Second}
	tokens.reason, tokens.told, tokens.openAIType = "TOKEN_BUCKET", [2]time.Duration{time.Millisecond, 12 * time.Second}, "tokens"
	minute.told = [2]time.Duration{5 * time.Second, time.Minute}
	return []*sdkKind{
		{
			name: "second-rate", limit: "rate: {requests: 1, per: second, algorithm: sliding_log}", fill: small, passing: true,
			attempts: twice, passes: true, refused: second,
		},
		{
			name: "bucket", limit: "rate: {requests: 12, per: minute, burst: 1, algorithm: token_bucket}", fill: small, passing: true,
			attempts: twice, passes: true, refused: bucket,
		},
		{
			name: "token-bucket", limit: "rate: {tokens: 1800, per: minute, burst: 500, algorithm: token_bucket}", passing: true,
			fill: map[string]string{"X-Sim-Completion-Tokens": "300"}, call: sdkCall{MaxTokens: 300},
			attempts: twice, passes: true, refused: tokens, shown: sdkShown{unit: "Tokens", limit: "1800"},
		},
		// A wait that is worth it, and longer than any that an SDK would choose by itself: it is sat out, not shortened.
		{
			name: "minute-rate", limit: "rate: {requests: 1, per: minute, algorithm: sliding_log}", fill: small,
			call: sdkCall{Patience: 3 * time.Second}, attempts: once, refused: minute, shown: usedUp,
		},
	}
}

// flightKinds have no room because of a request in flight: they may have at any moment, and the SDK comes back after a second.
func flightKinds() []*sdkKind {
	held := sdkRefusal{
		status: http.StatusTooManyRequests, reason: "USER_QUOTA", openAIType: "tokens", openAICode: rateLimit, anthropicType: slowDown,
		class: rateClass, says: "held", told: [2]time.Duration{time.Second, time.Second},
	}
	slots := held
	slots.reason, slots.openAIType, slots.says = "CONCURRENCY", "requests", "in flight"
	return []*sdkKind{
		{
			name: "held-budget", limit: "budget: {tokens: 1000, per: day}", held: 900, call: sdkCall{MaxTokens: 900},
			attempts: retried, passes: true, refused: held, shown: sdkShown{unit: "Tokens", limit: "1000"},
		},
		{name: "concurrency", limit: "concurrency: 1", held: 10, attempts: retried, passes: true, refused: slots},
	}
}

// callerKinds are requests that no wait helps: one attempt, and an error of its own type.
func callerKinds() []*sdkKind {
	kind := func(name string, status int, reason, openAICode, anthropicType, class, says string) *sdkKind {
		return &sdkKind{name: name, attempts: once, refused: sdkRefusal{
			status: status, reason: reason, openAIType: invalid, openAICode: openAICode, anthropicType: anthropicType, class: class, says: says,
		}}
	}
	large := kind("too-large", http.StatusRequestEntityTooLarge, "REQUEST_TOO_LARGE", "request_too_large", "request_too_large", "APIError",
		"can never hold more than 1000 tokens")
	large.limit, large.call.MaxTokens = "budget: {tokens: 1000, per: day}", 5000
	large.refused.anthropicClass = "ContentTooLargeError"
	unpriced := kind("unpriced", http.StatusForbidden, "UNPRICED_MODEL", "unpriced_model", "permission_error", "PermissionDeniedError", "has no price")
	unpriced.limit = "budget: {usd: 100, per: day}"
	unknown := kind("unknown-key", http.StatusUnauthorized, "UNKNOWN_KEY", "invalid_api_key", "authentication_error", "AuthenticationError", "key")
	revoked := kind("revoked-key", http.StatusForbidden, "DISABLED_KEY", "invalid_api_key", "permission_error", "PermissionDeniedError", "key")
	expired := kind("expired-key", http.StatusForbidden, "EXPIRED_KEY", "invalid_api_key", "permission_error", "PermissionDeniedError", "key")
	for _, k := range []*sdkKind{unknown, revoked, expired} {
		k.key, k.model = k.name, "plain"
	}
	none := kind("no-model", http.StatusNotFound, "UNKNOWN_MODEL", "model_not_found", "not_found_error", "NotFoundError", "does not exist")
	none.model = "never-heard-of"
	return []*sdkKind{large, unpriced, unknown, revoked, expired, none}
}

// providerKinds are the provider's own answers: they pass, with its advice on waiting and without its rate limits.
func providerKinds() []*sdkKind {
	failing := func(name string, status int, openAIType, anthropicType, class string, more ...string) *sdkKind {
		header := map[string]string{"X-Sim-Status": fmt.Sprint(status)}
		for _, pair := range more {
			setting, value, _ := strings.Cut(pair, "=")
			header[setting] = value
		}
		return &sdkKind{name: name, model: "plain", call: sdkCall{Header: header}, attempts: givenUp, shown: wide, refused: sdkRefusal{
			status: status, openAIType: openAIType, anthropicType: anthropicType, class: class,
		}}
	}
	limited := failing("provider-429", http.StatusTooManyRequests, "requests", slowDown, rateClass, "X-Sim-Retry-After=1")
	limited.refused.openAICode, limited.refused.told = rateLimit, [2]time.Duration{time.Second, time.Second}
	// A wait of nothing would make SDKs come back at once, three times within milliseconds: it is left out.
	hasty := failing("provider-429-at-once", http.StatusTooManyRequests, "requests", slowDown, rateClass, "X-Sim-Retry-After=0")
	hasty.refused.openAICode = rateLimit
	overloaded := failing("provider-529", 529, "server_error", "overloaded_error", serverFail)
	overloaded.refused.anthropicClass = "OverloadedError"
	bad := failing("provider-400", http.StatusBadRequest, invalid, invalid, "BadRequestError")
	bad.attempts = once
	return []*sdkKind{
		failing("provider-500", http.StatusInternalServerError, "server_error", "api_error", serverFail),
		overloaded, limited, hasty, bad,
		{name: "plain", attempts: once, passes: true, shown: wide},
		{name: "stream", model: "plain", call: sdkCall{Stream: true}, attempts: once, passes: true, shown: wide},
	}
}
