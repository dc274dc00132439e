package gateway

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

func TestAnthropicProblemGolden(t *testing.T) {
	t.Parallel()
	resets := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	spent := &admission.Refusal{
		Reason: ledger.ReasonAppQuota, Layer: ledger.TierApp, Subject: "app:checkout", LimitName: "app-day", Unit: ledger.UnitUSD,
		Limit: 10 * int64(ledger.Dollar), Used: 9_500_000_000, Held: 1, Needed: 2, ResetsAt: resets, RetryAfter: 30 * time.Second, Exhausted: true,
	}
	tokens := &admission.Refusal{
		Reason: ledger.ReasonTPMLimit, Layer: ledger.TierKey, Subject: "key:k_1", LimitName: "key-tpm", Unit: ledger.UnitTokens,
		Limit: 60, Used: 60, Needed: 1, ResetsAt: resets, RetryAfter: time.Second,
	}
	for name, c := range map[string]struct {
		p             problem
		status        int
		after, should string
		body          string
	}{
		"spent": {
			problem{reason: ledger.ReasonAppQuota, message: "no room", requestID: "r1", refusal: spent},
			429, "30", "false",
			`{"type":"error","error":{"type":"rate_limit_error","message":"no room","details":{"error_code":"enforced_spend_limit_reached"}},"request_id":"r1","tollgate":{"reason":"APP_QUOTA","layer":"app","subject":"app:checkout","limit_name":"app-day","unit":"usd","limit":10.000000000,"used":9.500000000,"held":0.000000001,"needed":0.000000002,"resets_at":"2026-12-01T00:00:00Z","retry_after_s":30,"options":[{"action":"wait","retry_after_s":30}]}}`,
		},
		"rate": {
			problem{reason: ledger.ReasonTPMLimit, message: "too fast", requestID: "r2", refusal: tokens},
			429, "1", "",
			`{"type":"error","error":{"type":"rate_limit_error","message":"too fast"},"request_id":"r2","tollgate":{"reason":"TPM_LIMIT","layer":"key","subject":"key:k_1","limit_name":"key-tpm","unit":"tokens","limit":60,"used":60,"held":0,"needed":1,"resets_at":"2026-12-01T00:00:00Z","retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"bad field": {
			problem{reason: ledger.ReasonBadRequest, message: "max_tokens: missing", param: "max_tokens"},
			400, "", "false",
			`{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: missing"},"request_id":null,"tollgate":{"reason":"BAD_REQUEST","options":[]}}`,
		},
		"redis is away": {
			problem{reason: ledger.ReasonLimiterDown, message: "away"},
			503, "1", "",
			`{"type":"error","error":{"type":"overloaded_error","message":"away"},"request_id":null,"tollgate":{"reason":"LIMITER_DOWN","retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"degraded": {
			problem{reason: ledger.ReasonDegraded, message: "soon"},
			429, "1", "",
			`{"type":"error","error":{"type":"rate_limit_error","message":"soon"},"request_id":null,"tollgate":{"reason":"DEGRADED","retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}}`,
		},
		"timeout": {
			problem{reason: ledger.ReasonUpstreamTimeout, message: "late"},
			504, "", "",
			`{"type":"error","error":{"type":"timeout_error","message":"late"},"request_id":null,"tollgate":{"reason":"UPSTREAM_TIMEOUT","options":[]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, header, body := golden(&anthropic, c.p)
			require.Equal(t, c.status, code)
			require.Equal(t, c.body+"\n", body)
			require.Equal(t, c.after, header.Get("Retry-After"))
			require.Equal(t, c.should, header.Get("X-Should-Retry"))
			require.Equal(t, c.p.requestID, header.Get("Request-Id"))
			require.Equal(t, "application/json", header.Get("Content-Type"))
		})
	}
}

// U10, U43: what a refusal can offer, and which figures stand behind it.
func TestWhatARefusalTells(t *testing.T) {
	t.Parallel()
	full := admission.Refusal{LimitName: "l", Layer: ledger.TierApp, Subject: "app:a", Unit: ledger.UnitTokens, Limit: 9, Used: 8, Needed: 7, RetryAfter: 2 * time.Second}
	offering := full
	offering.Queue = &admission.QueueHint{Position: 3, ExpectedWait: 1200 * time.Millisecond}
	offering.FallbackModel = "gpt-4o-mini"
	for name, c := range map[string]struct {
		reason ledger.Reason
		r      *admission.Refusal
		want   string
	}{
		"all of it":      {ledger.ReasonAppQuota, &offering, `"limit":9,"used":8,"held":0,"needed":7,"retry_after_s":2,"options":[{"action":"wait","retry_after_s":2},{"action":"queue","position":3,"expected_wait_s":2},{"action":"fallback","model":"gpt-4o-mini"}]}`},
		"a maximum":      {ledger.ReasonRequestTooLarge, &full, `"unit":"tokens","limit":9,"needed":7,"options":[]}`},
		"no price":       {ledger.ReasonUnpricedModel, &full, `"unit":"tokens","options":[]}`},
		"of no limit":    {ledger.ReasonRebuilding, &admission.Refusal{RetryAfter: time.Second}, `{"reason":"REBUILDING","retry_after_s":1,"options":[{"action":"wait","retry_after_s":1}]}`},
		"a queue of two": {ledger.ReasonConcurrency, &admission.Refusal{RetryAfter: time.Second, Queue: &admission.QueueHint{Position: 2}}, `"options":[{"action":"wait","retry_after_s":1},{"action":"queue","position":2,"expected_wait_s":1}]}`},
	} {
		for _, d := range dialects {
			_, _, body := golden(d, problem{reason: c.reason, refusal: c.r})
			require.Contains(t, body, c.want, name)
		}
	}
}

// Every reason has a status and a name in each dialect, and what is worth a retry can be told from what is not.
func TestKinds(t *testing.T) {
	t.Parallel()
	anthropicTypes := map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "invalid_request_error", 413: "request_too_large",
		429: "rate_limit_error", 499: "invalid_request_error", 500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error",
	}
	for _, reason := range []ledger.Reason{
		ledger.ReasonAppQuota, ledger.ReasonConcurrency, ledger.ReasonRequestTooLarge, ledger.ReasonUnpricedModel, ledger.ReasonUnknownKey,
		ledger.ReasonDisabledKey, ledger.ReasonExpiredKey, ledger.ReasonUnknownModel, ledger.ReasonUnknownPlan, ledger.ReasonUnknownRoute, ledger.ReasonUnknownObject,
		ledger.ReasonBadRequest, ledger.ReasonRebuilding, ledger.ReasonDegraded, ledger.ReasonLimiterDown, ledger.ReasonEventLogDown,
		ledger.ReasonShuttingDown, ledger.ReasonUpstreamFailed, ledger.ReasonUpstreamTimeout, ledger.ReasonUpstreamCut, ledger.ReasonClientGone,
		ledger.ReasonBodyTooLarge, ledger.ReasonBodyTimeout, ledger.ReasonInternal,
	} {
		k := kindOf(reason)
		require.Equal(t, anthropicTypes[k.status], k.anthropicType, reason)
		require.NotEmpty(t, k.openAIType, reason)
		require.NotEmpty(t, k.openAICode, reason)
		for _, d := range dialects {
			_, header, _ := golden(d, problem{reason: reason})
			wait := header.Get("Retry-After") != ""
			require.Equal(t, k.status == 429 || k.status == 503, wait, reason)
			require.Equal(t, !wait && k.status < 500 && k.status != 408, header.Get("X-Should-Retry") == "false", reason)
		}
	}
}

// U17, U53, U54: a wait that programs obey is spread upward by a tenth at most, and a short one within its last second; any other is exact.
func TestWaitsAreSpread(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		wait := time.Duration(rapid.Int64Range(1, int64(2*time.Hour)).Draw(t, "wait"))
		r := &admission.Refusal{RetryAfter: wait, Exhausted: rapid.Bool().Draw(t, "exhausted")}
		_, header, body := golden(&openAI, problem{reason: ledger.ReasonRPMLimit, refusal: r})
		told, err := strconv.ParseInt(header.Get("Retry-After"), 10, 64)
		require.NoError(t, err)
		ms, err := strconv.ParseInt(header.Get("Retry-After-Ms"), 10, 64)
		require.NoError(t, err)
		exact := seconds(wait)
		require.Contains(t, body, `"retry_after_s":`+strconv.FormatInt(exact, 10)+",", "the object tells it exactly")
		require.GreaterOrEqual(t, time.Duration(ms)*time.Millisecond, wait)
		require.LessOrEqual(t, ms, 1000*told)
		require.LessOrEqual(t, ms, (wait+wait/10).Milliseconds()+1)
		switch {
		case r.Exhausted || wait > worthWaiting:
			require.Equal(t, exact, told)
			require.Equal(t, "false", header.Get("X-Should-Retry"))
		case wait < 10*time.Second:
			require.Equal(t, exact, told)
		default:
			require.GreaterOrEqual(t, told, exact)
			require.LessOrEqual(t, told, min(exact+exact/10+1, 60))
		}
	})
	seen := map[string]bool{}
	for range 50 {
		_, header, _ := golden(&openAI, problem{reason: ledger.ReasonRPMLimit, refusal: &admission.Refusal{RetryAfter: 30 * time.Second}})
		seen[header.Get("Retry-After-Ms")] = true
	}
	require.Greater(t, len(seen), 10, "they do not come back together")
}

// state is a limit as it was judged.
func state(tier ledger.Tier, name string, budget *policy.Budget, rate *policy.Rate, used int64, fits bool, wait time.Duration, reset time.Time) admission.LimitState {
	value := int64(100)
	return admission.LimitState{
		Applied: policy.Applied{Limit: &policy.Limit{Name: name, Tier: tier, Budget: budget, Rate: rate}, Value: value},
		Fits:    fits, Used: used, Wait: wait, Reset: reset,
	}
}

func TestLimitHeaders(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 23, 59, 58, 500_000_000, time.FixedZone("CET", 3600))
	day := now.Add(90 * time.Minute)
	requests := &policy.Budget{Unit: ledger.UnitRequests, Period: ledger.PeriodDay}
	perMinute := &policy.Rate{Unit: ledger.UnitTokens, Window: time.Minute}
	shadow := state(ledger.TierApp, "trial", requests, nil, 99, true, 0, day)
	shadow.Applied.Limit.Shadow = true
	states := []admission.LimitState{
		state(ledger.TierPlatform, "all", requests, nil, 99, true, 0, day),
		state(ledger.TierApp, "app-day", requests, nil, 40, true, 0, day),
		state(ledger.TierUser, "user-total", requests, nil, 10, true, 0, time.Time{}),
		state(ledger.TierKey, "key-tpm", nil, perMinute, 95, false, 1500*time.Millisecond, now.Add(40*time.Second)),
		state(ledger.TierKey, "key-usd", &policy.Budget{Unit: ledger.UnitUSD}, nil, 95, true, 0, now.Add(-time.Hour)),
		shadow,
	}
	header := http.Header{}
	writeLimits(header, &openAI, states, ledger.Amounts{Requests: 1}, now)
	require.Equal(t, http.Header{
		"X-Ratelimit-Limit-Requests": {"100"}, "X-Ratelimit-Remaining-Requests": {"59"}, "X-Ratelimit-Reset-Requests": {"1h30m0s"},
		"X-Ratelimit-Limit-Tokens": {"100"}, "X-Ratelimit-Remaining-Tokens": {"5"}, "X-Ratelimit-Reset-Tokens": {"40s"},
		"Ratelimit-Policy": {`"app-day";q=100, "user-total";q=100, "key-tpm";q=100;qu="tollgate-tokens";w=60, "key-usd";q=100;qu="tollgate-nanousd"`},
		"Ratelimit":        {`"app-day";r=59;t=5400, "user-total";r=89, "key-tpm";r=5;t=2, "key-usd";r=5;t=1`},
	}, header)
	ietf := map[string][]string{"Ratelimit": header["Ratelimit"], "Ratelimit-Policy": header["Ratelimit-Policy"]}

	header = http.Header{}
	writeLimits(header, &anthropic, states, ledger.Amounts{Requests: 1}, now)
	for name, value := range ietf {
		require.Equal(t, value, header[name], "the same in every dialect")
		delete(header, name)
	}
	require.Equal(t, http.Header{
		"Anthropic-Ratelimit-Requests-Limit": {"100"}, "Anthropic-Ratelimit-Requests-Remaining": {"59"}, "Anthropic-Ratelimit-Requests-Reset": {"2026-12-01T00:29:59Z"},
		"Anthropic-Ratelimit-Tokens-Limit": {"100"}, "Anthropic-Ratelimit-Tokens-Remaining": {"5"}, "Anthropic-Ratelimit-Tokens-Reset": {"2026-11-30T23:00:39Z"},
	}, header)
}

// U46, U55: nothing that parsers stumble over, whatever the figures: no sign, no reset that is now or was.
func TestLimitHeadersAreNeverNothing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		var states []admission.LimitState
		for range rapid.IntRange(1, 4).Draw(t, "limits") {
			unit := rapid.SampledFrom([]ledger.Unit{ledger.UnitRequests, ledger.UnitTokens, ledger.UnitUSD}).Draw(t, "unit")
			fits := rapid.Bool().Draw(t, "fits")
			wait := time.Duration(0)
			if !fits {
				wait = time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "wait"))
			}
			reset := now.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "reset")))
			rate := &policy.Rate{Unit: unit, Window: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "window"))}
			states = append(states, state(ledger.TierApp, "l", nil, rate, rapid.Int64Range(0, 300).Draw(t, "used"), fits, wait, reset))
		}
		need := ledger.Amounts{Requests: 1, Tokens: 90, NanoUSD: 120}
		for _, d := range dialects {
			header := http.Header{}
			writeLimits(header, d, states, need, now)
			for name, values := range header {
				require.NotContains(t, "="+values[0], "=-", name)
				require.NotContains(t, values[0], "t=0", name)
				require.NotContains(t, values[0], "w=0", name)
				switch {
				case strings.HasPrefix(name, "X-Ratelimit-Reset"):
					left, err := time.ParseDuration(values[0])
					require.NoError(t, err)
					require.Positive(t, left)
				case strings.HasPrefix(name, "Anthropic-") && strings.HasSuffix(name, "-Reset"):
					at, err := time.Parse(time.RFC3339, values[0])
					require.NoError(t, err)
					require.True(t, at.After(now))
					require.True(t, strings.HasSuffix(values[0], "Z"))
				}
			}
		}
	})
}

// limitHeaders are the headers that a dialect sets for a limit of each unit.
func limitHeaders(d *dialect) http.Header {
	header, now := http.Header{}, time.Now()
	for _, unit := range []ledger.Unit{ledger.UnitRequests, ledger.UnitTokens} {
		d.limit(header, unit, 2, 1, now.Add(time.Hour), now)
	}
	return header
}

func TestDialectOfRoutes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, header string
		want         *dialect
	}{
		{"/v1/chat/completions", "Anthropic-Version", &openAI},
		{"/v1/embeddings/x", "X-Api-Key", &openAI},
		{"/v1/messages", "Authorization", &anthropic},
		{"/v1/messages/count_tokens", "Authorization", &anthropic},
		{"/v1/messages/batches/7", "Authorization", &anthropic},
		{"/v1/messagesque", "Authorization", &openAI},
		{"/v1/models", "Authorization", &openAI},
		{"/v1/models", "Anthropic-Version", &anthropic},
		{"/v1beta/models/gemini-2.5-flash:generateContent", "X-Goog-Api-Key", &gemini},
		{"/v1beta/models", "Authorization", &gemini},
		{"/", "X-Api-Key", &anthropic},
	} {
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.Header.Set(c.header, "x")
		require.Same(t, c.want, dialectOf(r), "%s %s", c.path, c.header)
	}
}
