package e2e

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/e2e/system"
)

// Every refusal that callers saw is in finance.refusals_hourly once, at the limit that its answer named, also those that a
// gateway had not put on record when it was stopped, and those that a settler was killed over.
func TestEachRefusalIsReportedOnce(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits: `
  - {name: app-day, tier: app, budget: {requests: 40, per: day}}
  - {name: user-day, tier: user, budget: {requests: 7, per: day}}
  - {name: bob-rpm, tier: user, match: {user: shop/bob}, rate: {requests: 3, per: day, algorithm: sliding_log}}
  - {name: small, tier: key, match: {model: gpt-4o}, budget: {tokens: 50, per: day}}
`,
		Settlers: 1,
	})
	// One records at shutdown only, the other all the time.
	s.AddGateway("TOLLGATE_REFUSALS_EVERY=1h")
	s.AddGateway("TOLLGATE_REFUSALS_EVERY=20ms")
	key := s.KnownKey(system.App)
	want := map[string]int64{}
	load := func() {
		for _, a := range system.Load(300, 8, func(i int) system.Answer {
			user := []string{"ada", "bob", "eve", fmt.Sprint("user-", i)}[i%4]
			model := []string{"gpt-4o-mini", "gpt-4o-mini", "gpt-4o-mini", "gpt-4o", "unknown"}[i%5]
			return s.Send(t.Context(), s.Gateways[i%2].URL, system.Request{
				Key: key, Path: "/v1/chat/completions", Body: system.ChatBody(model, "Hello", 60, false), Header: map[string]string{"X-Tollgate-User": user},
			})
		}) {
			require.NoError(t, a.Err)
			if !a.Passed() {
				told := gjson.GetBytes(a.Body, "tollgate")
				want[fmt.Sprint([]any{told.Get("reason").Str, told.Get("layer").Str, told.Get("limit_name").Str, told.Get("subject").Str})]++
			}
		}
	}
	load()
	s.Settlers[0].Kill()
	require.Zero(t, s.Gateways[0].Term())
	s.Gateways[0].Start()
	load()
	s.Settlers[0].Start()
	for _, g := range s.Gateways {
		require.Zero(t, g.Term())
	}
	for _, reason := range []string{"APP_QUOTA", "USER_QUOTA", "RPM_LIMIT", "REQUEST_TOO_LARGE", "UNKNOWN_MODEL"} {
		require.Contains(t, fmt.Sprint(want), reason)
	}
	s.Eventually(system.Patience, "every refusal is reported", func() error {
		got := map[string]int64{}
		for _, row := range s.Rows(`
SELECT reason, layer, limit_name, subject, sum(refusals)::bigint FROM finance.refusals_hourly
WHERE app = 'shop' AND endpoint = '/v1/chat/completions' GROUP BY reason, layer, limit_name, subject`) {
			got[fmt.Sprint(row[:4])] = row[4].(int64)
		}
		if !reflect.DeepEqual(want, got) {
			return fmt.Errorf("callers saw %v, reported are %v", want, got)
		}
		return nil
	})
	for _, g := range s.Gateways {
		g.Start()
	}
	s.Check()
}
