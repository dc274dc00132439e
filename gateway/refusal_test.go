package gateway

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/keys"
)

// golden is a refusal as the caller reads it: status, the headers that SDKs obey, and the body.
func golden(d *dialect, p problem) (int, http.Header, string) {
	recorder := httptest.NewRecorder()
	writeProblem(recorder, d, &p)
	return recorder.Code, recorder.Header(), recorder.Body.String()
}

// Long: one row a kind of refusal.
func TestProblemGolden(t *testing.T) {
	t.Parallel()
	resets := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	budget := func(wait time.Duration, exhausted bool) *admission.Refusal {
		return &admission.Refusal{
			Reason: ledger.ReasonAppQuota, Message: "no room", Layer: ledger.TierApp, Subject: "app:checkout", LimitName: "app-day", Unit: ledger.UnitUSD,
			Limit: 10 * int64(ledger.Dollar), Used: 9_500_000_000, Held: 499_999_999, Needed: 2, ResetsAt: resets, RetryAfter: wait, Exhausted: exhausted,
		}
	}
	rate := func(unit ledger.Unit, wait time.Duration) *admission.Refusal {
		return &admission.Refusal{
			Reason: ledger.ReasonRPMLimit, Message: "too fast", Layer: ledger.TierKey, Subject: "key:k_1", LimitName: "key-rpm", Unit: unit,
			Limit: 60, Used: 60, Needed: 1, ResetsAt: resets, RetryAfter: wait,
		}
	}
	figures := `"limit":10.000000000,"used":9.500000000,"held":0.499999999,"needed":0.000000002,"resets_at":"2026-12-01T00:00:00Z",`
	rateFigures := `"limit":60,"used":60,"held":0,"needed":1,"resets_at":"2026-12-01T00:00:00Z",`
	for name, c := range map[string]struct {
		p                     problem
		status                int
		after, millis, should string // millis is "" where they are random
		body                  string
	}{
		"exhausted budget": {
			problem{reason: ledger.ReasonAppQuota, message: "no room", refusal: budget(30*time.Second, true)},
			429, "30", "30000", "false",
			`{"error":{"message":"no room","type":"insufficient_quota","param":null,"code":"insufficient_quota"},"tollgate":{"reason":"APP_QUOTA","layer":"app","subject":"app:checkout","limit_name":"app-day","unit":"usd",` + figures + `"retry_after_s":30,"options":[{"action":"wait","retry_after_s":30}]}}`,
		},
		"budget full of reservations": {
			problem{reason: ledger.ReasonAppQuota, message: "no room", refusal: budget(time.Second, false)},
			429, "1", "1000", "",
			`{"error":{"message":"no room","type":"requests","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"APP_QUOTA","layer":"app","subject":"app:checkout","limit_name":"app-day","unit":"usd",` + figures + `"retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"budget that never resets": {
			problem{reason: ledger.ReasonAppQuota, message: "no room", refusal: budget(0, true)},
			429, "86400", "86400000", "false",
			`{"error":{"message":"no room","type":"insufficient_quota","param":null,"code":"insufficient_quota"},"tollgate":{"reason":"APP_QUOTA","layer":"app","subject":"app:checkout","limit_name":"app-day","unit":"usd",` + figures + `"retry_after_s":86400,"options":[{"action":"wait","retry_after_s":86400}]}}`,
		},
		"rate": {
			problem{reason: ledger.ReasonRPMLimit, message: "too fast", refusal: rate(ledger.UnitRequests, 1200*time.Millisecond)},
			429, "2", "", "",
			`{"error":{"message":"too fast","type":"requests","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"RPM_LIMIT","layer":"key","subject":"key:k_1","limit_name":"key-rpm","unit":"requests",` + rateFigures + `"retry_after_s":2,"options":[{"action":"wait","retry_after_s":2}]}}`,
		},
		"rate on tokens, a moment": {
			problem{reason: ledger.ReasonTPMLimit, message: "too fast", refusal: rate(ledger.UnitTokens, time.Nanosecond)},
			429, "1", "1", "",
			`{"error":{"message":"too fast","type":"tokens","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"TPM_LIMIT","layer":"key","subject":"key:k_1","limit_name":"key-rpm","unit":"tokens",` + rateFigures + `"retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"rate for an hour": {
			problem{reason: ledger.ReasonRPMLimit, message: "too fast", refusal: rate(ledger.UnitRequests, time.Hour)},
			429, "3600", "3600000", "false",
			`{"error":{"message":"too fast","type":"insufficient_quota","param":null,"code":"insufficient_quota"},"tollgate":{"reason":"RPM_LIMIT","layer":"key","subject":"key:k_1","limit_name":"key-rpm","unit":"requests",` + rateFigures + `"retry_after_s":3600,"options":[{"action":"wait","retry_after_s":3600}]}}`,
		},
		"exactly a minute": {
			problem{reason: ledger.ReasonRPMLimit, message: "too fast", refusal: rate(ledger.UnitRequests, time.Minute)},
			429, "60", "60000", "",
			`{"error":{"message":"too fast","type":"requests","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"RPM_LIMIT","layer":"key","subject":"key:k_1","limit_name":"key-rpm","unit":"requests",` + rateFigures + `"retry_after_s":60,"options":[{"action":"wait","retry_after_s":60}]}}`,
		},
		"counters are rebuilt": {
			problem{reason: ledger.ReasonRebuilding, message: "soon", refusal: &admission.Refusal{Reason: ledger.ReasonRebuilding, RetryAfter: time.Second}},
			429, "1", "1000", "",
			`{"error":{"message":"soon","type":"requests","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"REBUILDING","retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"degraded": {
			problem{reason: ledger.ReasonDegraded, message: "soon"},
			429, "1", "1000", "",
			`{"error":{"message":"soon","type":"requests","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"DEGRADED","retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"redis is away": {
			problem{reason: ledger.ReasonLimiterDown, message: "away"},
			503, "1", "1000", "",
			`{"error":{"message":"away","type":"server_error","param":null,"code":"service_unavailable"},"tollgate":{"reason":"LIMITER_DOWN","retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"bad field": {
			problem{reason: ledger.ReasonBadRequest, message: "n: too many", param: "n"},
			400, "", "", "false",
			`{"error":{"message":"n: too many","type":"invalid_request_error","param":"n","code":"invalid_request"},"tollgate":{"reason":"BAD_REQUEST","options":[]}}`,
		},
		"upstream": {
			problem{reason: ledger.ReasonUpstreamCut, message: "broke off"},
			502, "", "", "",
			`{"error":{"message":"broke off","type":"server_error","param":null,"code":"upstream_failed"},"tollgate":{"reason":"UPSTREAM_CUT","options":[]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, header, body := golden(&openAI, c.p)
			require.Equal(t, c.status, code)
			require.Equal(t, c.body+"\n", body)
			require.Equal(t, c.after, header.Get("Retry-After"))
			if c.millis != "" {
				require.Equal(t, c.millis, header.Get("Retry-After-Ms"))
			}
			require.Equal(t, c.should, header.Get("X-Should-Retry"))
			require.Equal(t, "application/json", header.Get("Content-Type"))
		})
	}
}

// Whatever wait a refusal tells, an SDK waits at least so long and never nothing.
func TestRetryAfterIsNeverTooEarly(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{-time.Hour, -1, 0, 1, time.Millisecond - 1, time.Millisecond, time.Second + 1, 61 * time.Second, 30 * 24 * time.Hour} {
		_, header, _ := golden(&openAI, problem{reason: ledger.ReasonRPMLimit, refusal: &admission.Refusal{RetryAfter: wait}})
		seconds, err := strconv.Atoi(header.Get("Retry-After"))
		require.NoError(t, err)
		millis, err := strconv.Atoi(header.Get("Retry-After-Ms"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, seconds, 1, wait)
		require.GreaterOrEqual(t, millis, 1, wait)
		require.GreaterOrEqual(t, time.Duration(seconds)*time.Second, wait)
		require.GreaterOrEqual(t, time.Duration(millis)*time.Millisecond, wait)
		require.LessOrEqual(t, millis, 1000*seconds)
	}
}

// Each refusal over the wire, in both dialects, with nothing sent to the provider, nothing held and nothing recorded.
//
// Long: one row a refusal.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := begin(t, func(http.ResponseWriter, *http.Request) { t.Error("a refused request reached the provider") })
	w.key("tg-revoked", keys.Record{KeyID: "k_2", App: app, Revoked: true})
	w.key("tg-disabled", keys.Record{KeyID: "k_3", App: app, AppDisabled: true})
	w.key("tg-expired", keys.Record{KeyID: "k_4", App: app, ExpiresAt: time.Now().Add(-time.Second)})
	w.key("tg-plan", keys.Record{KeyID: "k_5", App: app, Plan: "gone"})
	w.run(`  - {name: app-usd, tier: app, budget: {usd: 0.0000001, per: day}}
`)
	chat, message := chatBody(""), messageBody("")
	spaces := strings.Repeat(" ", 1<<20+1)
	for name, c := range map[string]struct {
		secret, method, path, body string
		status                     int
		reason, is                 string // the error's code in OpenAI's dialect, its type in Anthropic's
	}{
		"no key":           {"", "POST", chatPath, chat, 401, "UNKNOWN_KEY", "invalid_api_key"},
		"unknown key":      {"tg-nobody", "POST", chatPath, chat, 401, "UNKNOWN_KEY", "invalid_api_key"},
		"revoked":          {"tg-revoked", "POST", chatPath, chat, 403, "DISABLED_KEY", "invalid_api_key"},
		"app disabled":     {"tg-disabled", "POST", chatPath, chat, 403, "DISABLED_KEY", "invalid_api_key"},
		"expired":          {"tg-expired", "POST", chatPath, chat, 403, "EXPIRED_KEY", "invalid_api_key"},
		"unknown plan":     {"tg-plan", "POST", chatPath, chat, 403, "UNKNOWN_PLAN", "invalid_api_key"},
		"bad JSON":         {callerSecret, "POST", chatPath, "{", 400, "BAD_REQUEST", "invalid_request"},
		"empty body":       {callerSecret, "POST", chatPath, "", 400, "BAD_REQUEST", "invalid_request"},
		"other protocol":   {callerSecret, "POST", chatPath, `{"model":"claude","messages":[]}`, 400, "BAD_REQUEST", "invalid_request"},
		"unknown model":    {callerSecret, "POST", chatPath, `{"model":"x","messages":[]}`, 404, "UNKNOWN_MODEL", "model_not_found"},
		"unpriced":         {callerSecret, "POST", chatPath, `{"model":"unpriced","messages":[]}`, 403, "UNPRICED_MODEL", "unpriced_model"},
		"too large":        {callerSecret, "POST", chatPath, chat, 413, "REQUEST_TOO_LARGE", "request_too_large"},
		"body too large":   {callerSecret, "POST", chatPath, spaces, 413, "BODY_TOO_LARGE", "request_too_large"},
		"unknown route":    {callerSecret, "POST", "/v1/assistants", chat, 404, "UNKNOWN_ROUTE", "unknown_url"},
		"slash at the end": {callerSecret, "POST", chatPath + "/", chat, 404, "UNKNOWN_ROUTE", "unknown_url"},
		"wrong method":     {callerSecret, "GET", chatPath, "", 404, "UNKNOWN_ROUTE", "unknown_url"},
		"options":          {callerSecret, "OPTIONS", chatPath, "", 404, "UNKNOWN_ROUTE", "unknown_url"},
		"models, no key":   {"", "GET", "/v1/models", "", 401, "UNKNOWN_KEY", "invalid_api_key"},
		"model, unknown":   {callerSecret, "GET", "/v1/models/x", "", 404, "UNKNOWN_MODEL", "model_not_found"},
		"traversal":        {callerSecret, "POST", "/v1/../v1/files", chat, 404, "UNKNOWN_ROUTE", "unknown_url"},

		"message, unknown key":      {"tg-nobody", "POST", messagesPath, message, 401, "UNKNOWN_KEY", "authentication_error"},
		"message, revoked":          {"tg-revoked", "POST", messagesPath, message, 403, "DISABLED_KEY", "permission_error"},
		"message, expired":          {"tg-expired", "POST", messagesPath, message, 403, "EXPIRED_KEY", "permission_error"},
		"message, unknown plan":     {"tg-plan", "POST", messagesPath, message, 403, "UNKNOWN_PLAN", "permission_error"},
		"message, bad JSON":         {callerSecret, "POST", messagesPath, "{", 400, "BAD_REQUEST", "invalid_request_error"},
		"message, no bound":         {callerSecret, "POST", messagesPath, `{"model":"claude","messages":[]}`, 400, "BAD_REQUEST", "invalid_request_error"},
		"message, other protocol":   {callerSecret, "POST", messagesPath, `{"model":"fast","messages":[],"max_tokens":1}`, 400, "BAD_REQUEST", "invalid_request_error"},
		"message, unknown model":    {callerSecret, "POST", messagesPath, `{"model":"x","messages":[],"max_tokens":1}`, 404, "UNKNOWN_MODEL", "not_found_error"},
		"message, too large":        {callerSecret, "POST", messagesPath, message, 413, "REQUEST_TOO_LARGE", "request_too_large"},
		"message, body too large":   {callerSecret, "POST", messagesPath, spaces, 413, "BODY_TOO_LARGE", "request_too_large"},
		"message, wrong method":     {callerSecret, "GET", messagesPath, "", 404, "UNKNOWN_ROUTE", "not_found_error"},
		"below messages":            {callerSecret, "POST", messagesPath + "/batches", "{}", 404, "UNKNOWN_ROUTE", "not_found_error"},
		"count, unknown key":        {"tg-nobody", "POST", countPath, message, 401, "UNKNOWN_KEY", "authentication_error"},
		"count, revoked":            {"tg-revoked", "POST", countPath, message, 403, "DISABLED_KEY", "permission_error"},
		"count, bad JSON":           {callerSecret, "POST", countPath, "{", 400, "BAD_REQUEST", "invalid_request_error"},
		"count, unknown model":      {callerSecret, "POST", countPath, `{"model":"x","messages":[]}`, 404, "UNKNOWN_MODEL", "not_found_error"},
		"count, of another kind":    {callerSecret, "POST", countPath, `{"model":"fast","messages":[]}`, 400, "BAD_REQUEST", "invalid_request_error"},
		"count, body too large":     {callerSecret, "POST", countPath, spaces, 413, "BODY_TOO_LARGE", "request_too_large"},
		"looks like Anthropic's":    {callerSecret, "anthropic-version", "/v1/files", "", 404, "UNKNOWN_ROUTE", "not_found_error"},
		"a key as Anthropic's":      {"tg-nobody", "x-api-key", "/v1/models", "", 401, "UNKNOWN_KEY", "authentication_error"},
		"a key and a route of both": {callerSecret, "x-api-key", chatPath + "/7", "", 404, "UNKNOWN_ROUTE", "unknown_url"},
	} {
		headers := []string{"Authorization", "Bearer " + c.secret}
		switch c.method {
		case "anthropic-version":
			c.method, headers = "GET", append(headers, "Anthropic-Version", "2023-06-01")
		case "x-api-key":
			c.method, headers = "GET", []string{"Authorization", "", "X-Api-Key", c.secret}
		}
		a := w.send(c.method, c.path, c.body, headers...)
		p := w.problemOf(a)
		require.Equal(t, c.status, a.StatusCode, name)
		require.Equal(t, c.reason, p.Tollgate.Reason, name)
		if p.Type == "" {
			require.Equal(t, c.is, p.Error.Code, name)
		} else {
			require.Equal(t, "error", p.Type, name)
			require.Equal(t, c.is, p.Error.Type, name)
		}
		require.Equal(t, "false", a.Header.Get("X-Should-Retry"), name)
		require.Empty(t, a.Header.Get("Retry-After"), name)
		require.Empty(t, a.Header.Get("X-Tollgate-Request-Id"), name)
		require.Empty(t, p.Tollgate.Used, "%s: no figure that nobody looked up", name)
	}
	w.events(0)
	held, err := w.redis.Keys(t.Context(), "*reservation*").Result()
	require.NoError(t, err)
	require.Empty(t, held)
}

func TestLimitRefusals(t *testing.T) {
	t.Parallel()
	w := start(t, `  - {name: app-day, tier: app, budget: {requests: 2, per: day}}
  - {name: key-minute, tier: key, by: [model], match: {model: fast}, rate: {requests: 1, per: minute, algorithm: sliding_log}}
`, plain)
	fast := `{"model":"fast","messages":[]}`
	require.Equal(t, 200, w.send("POST", chatPath, fast).StatusCode)
	a := w.send("POST", chatPath, fast)
	p := w.problemOf(a)
	require.Equal(t, 429, a.StatusCode)
	require.Equal(t, "RPM_LIMIT", p.Tollgate.Reason)
	require.Equal(t, "key-minute", p.Tollgate.LimitName)
	require.Equal(t, "1", p.Tollgate.Used.String())
	require.Equal(t, "rate_limit_exceeded", p.Error.Code)
	require.LessOrEqual(t, p.Tollgate.RetryAfterS, int64(60))
	after, err := strconv.ParseInt(a.Header.Get("Retry-After"), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, p.Tollgate.RetryAfterS)
	require.LessOrEqual(t, after, int64(60))
	require.Empty(t, a.Header.Get("X-Should-Retry"))

	require.Equal(t, 200, w.chat("").StatusCode)
	// No settler runs: both requests are still held, and may give the room back.
	a = w.chat("")
	p = w.problemOf(a)
	require.Equal(t, "APP_QUOTA", p.Tollgate.Reason)
	require.Equal(t, "2", p.Tollgate.Held.String())
	require.Equal(t, "1", a.Header.Get("Retry-After"))
	require.Equal(t, "rate_limit_exceeded", p.Error.Code)
	require.Equal(t, "0", a.Header.Get("X-Ratelimit-Remaining-Requests"))
	require.Len(t, w.events(4)[event.KindUsed], 2, "a refusal is on no record")
}
