package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/ledger/policy"
)

// anthropicDetail is what Anthropic's error says beside its type; the SDK for Go leaves it in the raw text.
func anthropicDetail(raw string) (message, code string) {
	return gjson.Get(raw, "error.message").Str, gjson.Get(raw, "error.details.error_code").Str
}

// told is the wait that an answer asks for; ok is false where it names none.
func (a *attempt) told(t *testing.T) (wait time.Duration, ok bool) {
	t.Helper()
	seconds, millis := a.header.Get("Retry-After"), a.header.Get("Retry-After-Ms")
	if seconds == "" && millis == "" {
		return 0, false
	}
	s, err := strconv.ParseInt(seconds, 10, 64)
	require.NoError(t, err, "Retry-After")
	require.GreaterOrEqual(t, s, int64(1), "Retry-After")
	wait = time.Duration(s) * time.Second
	if millis == "" {
		return wait, true
	}
	// Programs read the milliseconds first; both say the same.
	ms, err := strconv.ParseInt(millis, 10, 64)
	require.NoError(t, err, "Retry-After-Ms")
	require.GreaterOrEqual(t, ms, int64(1), "Retry-After-Ms")
	require.Equal(t, (ms+999)/1000, s, "Retry-After is Retry-After-Ms in whole seconds, rounded up")
	return time.Duration(ms) * time.Millisecond, true
}

// requireLimitHeaders holds every header about limits against its grammar. They are whole, never negative, and a reset lies ahead
// (U46, apisix #9964: a reset of 0 where nothing is left; U55, openai-dotnet #838: -1 and 0 break parsers).
func requireLimitHeaders(t *testing.T, spoken policy.Protocol, a *attempt) {
	t.Helper()
	for name, values := range a.header {
		require.Len(t, values, 1, name)
		value := values[0]
		switch lower := strings.ToLower(name); {
		case strings.HasPrefix(lower, "x-ratelimit-"):
			require.Equal(t, policy.ProtocolOpenAI, spoken, name)
			require.Regexp(t, `^x-ratelimit-(limit|remaining|reset)-(requests|tokens)$`, lower)
			if !strings.Contains(lower, "-reset-") {
				requireCount(t, name, value)
				break
			}
			reset, err := time.ParseDuration(value)
			require.NoError(t, err, name)
			require.Positive(t, reset, name)
			require.Regexp(t, `^(\d+h\d+m\d+s|\d+m\d+s|\d+s|\d+ms)$`, value, name)
		case strings.HasPrefix(lower, "anthropic-ratelimit-"):
			require.Equal(t, policy.ProtocolAnthropic, spoken, name)
			require.Regexp(t, `^anthropic-ratelimit-(requests|tokens)-(limit|remaining|reset)$`, lower)
			if !strings.HasSuffix(lower, "-reset") {
				requireCount(t, name, value)
				break
			}
			reset, err := time.Parse("2006-01-02T15:04:05Z", value)
			require.NoError(t, err, name)
			require.True(t, reset.After(a.asked), "%s: %s is not after %s", name, value, a.asked)
		}
	}
	requireFields(t, a)
}

func requireCount(t *testing.T, name, value string) {
	t.Helper()
	n, err := strconv.ParseInt(value, 10, 64)
	require.NoError(t, err, name)
	require.GreaterOrEqual(t, n, int64(0), name)
	require.Equal(t, strconv.FormatInt(n, 10), value, name)
}

// requireFields holds RateLimit-Policy and RateLimit against draft-ietf-httpapi-ratelimit-headers-10: the same limits in both,
// and a wait that is told is not earlier than the reset of the limit that refused.
func requireFields(t *testing.T, a *attempt) {
	t.Helper()
	if a.header.Get("RateLimit-Policy") == "" {
		require.Empty(t, a.header.Get("RateLimit"))
		return
	}
	policies, err := parseFields(a.header.Get("RateLimit-Policy"))
	require.NoError(t, err)
	limits, err := parseFields(a.header.Get("RateLimit"))
	require.NoError(t, err)
	require.Len(t, limits, len(policies))
	refusing := gjson.GetBytes(a.body, "tollgate.limit_name").Str
	for i := range limits {
		q, l := policies[i], limits[i]
		require.Equal(t, q.name, l.name)
		require.GreaterOrEqual(t, q.params["q"], int64(0), "%+v", q)
		require.GreaterOrEqual(t, l.params["r"], int64(0), "%+v", l)
		if w, ok := q.params["w"]; ok {
			require.Positive(t, w, "%+v", q)
		}
		if unit, ok := q.params["qu"]; ok {
			require.Contains(t, []any{"concurrent-requests", "tollgate-tokens", "tollgate-nanousd"}, unit)
		}
		again, ok := l.params["t"].(int64)
		if !ok {
			continue
		}
		require.Positive(t, again, "%+v", l)
		if l.name == refusing && a.status == http.StatusTooManyRequests {
			wait, told := a.told(t)
			require.True(t, told)
			require.GreaterOrEqual(t, int64((wait+time.Second-1)/time.Second), again, "told to come back before the limit has room")
		}
	}
}

// shows is what the headers tell of the tightest limit on a unit, in the dialect.
func (a *attempt) shows(spoken policy.Protocol, unit string) (limit, remaining, reset string) {
	figure := func(name string) string {
		if spoken == policy.ProtocolAnthropic {
			return a.header.Get("Anthropic-Ratelimit-" + unit + "-" + name)
		}
		return a.header.Get("X-Ratelimit-" + name + "-" + unit)
	}
	return figure("Limit"), figure("Remaining"), figure("Reset")
}
