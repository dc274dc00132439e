package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/e2e/system"
)

// A refusal changes nothing in Redis: no counter, no rate, no reservation, on no tier.
func TestRefusalLeavesNoTrace(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		// Each limit is met by a user of its own, whose requests everything else has room for.
		Limits: `
  - {name: platform-day, tier: platform, budget: {requests: 1000, per: day}}
  - {name: platform-tiny, tier: platform, match: {model: gpt-4o}, by: [user], budget: {requests: 1, per: month}}
  - {name: app-day, tier: app, budget: {tokens: 100000, per: day}}
  - {name: app-tiny, tier: app, match: {user: shop/app}, by: [user], budget: {usd: 0.00005, per: month}}
  - {name: key-total, tier: key, budget: {usd: 100, per: total}}
  - {name: key-tiny, tier: key, match: {user: shop/key}, by: [user], budget: {tokens: 130, per: total}}
  - {name: user-day, tier: user, overrides: {shop/user: {requests: 1}}, budget: {requests: 1000, per: day}}
  - {name: rpm, tier: key, match: {user: shop/rpm}, by: [user], rate: {requests: 1, per: day, algorithm: sliding_log}}
  - {name: tpm, tier: key, match: {user: shop/tpm}, by: [user], rate: {tokens: 130, per: day, algorithm: sliding_log}}
  - {name: bucket, tier: key, match: {user: shop/bucket}, by: [user], rate: {tokens: 130, per: day, algorithm: token_bucket}}
`,
		Gateways: 1, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	send := func(user, model string) system.Answer {
		return s.Send(t.Context(), s.Gateways[0].URL, system.Request{
			Key: key, Path: "/v1/chat/completions", Body: system.ChatBody(model, "Hello", 60, false),
			Header: map[string]string{"X-Tollgate-User": user, "X-Sim-Prompt-Tokens": "10", "X-Sim-Completion-Tokens": "60"},
		})
	}
	cases := []struct{ user, model, reason, limit string }{
		{"platform", "gpt-4o", "PLATFORM_QUOTA", "platform-tiny"},
		{"app", "gpt-4o-mini", "APP_QUOTA", "app-tiny"},
		{"key", "gpt-4o-mini", "KEY_QUOTA", "key-tiny"},
		{"user", "gpt-4o-mini", "USER_QUOTA", "user-day"},
		{"rpm", "gpt-4o-mini", "RPM_LIMIT", "rpm"},
		{"tpm", "gpt-4o-mini", "TPM_LIMIT", "tpm"},
		{"bucket", "gpt-4o-mini", "TOKEN_BUCKET", "bucket"},
	}
	for _, c := range cases {
		require.True(t, send(c.user, c.model).Passed(), "%s has room for one", c.user)
	}
	s.Check()
	before, err := s.Dump(t.Context())
	require.NoError(t, err)
	lapse := map[string]time.Time{}
	for redisKey := range before {
		left, err := s.RedisClient.PTTL(t.Context(), redisKey).Result()
		require.NoError(t, err)
		if left != -1 { // no end
			lapse[redisKey] = time.Now().Add(left)
		}
	}
	require.Greater(t, len(before), 20)
	for _, c := range cases {
		for range 20 {
			a := send(c.user, c.model)
			require.Equal(t, http.StatusTooManyRequests, a.Status, "%s: %s", c.user, a)
			require.Equal(t, c.reason, a.Reason, a.String())
			require.Equal(t, c.limit, gjson.GetBytes(a.Body, "tollgate.limit_name").Str, a.String())
		}
	}
	after, err := s.Dump(t.Context())
	require.NoError(t, err)
	for redisKey := range before {
		if end, some := lapse[redisKey]; some && after[redisKey] == "" && time.Now().After(end) {
			delete(before, redisKey) // what is kept of the requests that ended is kept for a minute
		}
	}
	require.Equal(t, before, after)
	require.EqualValues(t, len(cases), billed(t, s))
	s.Check()
}
