package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// The time until the first decision after each kind of loss, beside a thousand apps. In the end a replica that has lost writes is
// promoted under load: no more is admitted twice than those writes had reserved.
func TestFirstDecisions(t *testing.T) {
	t.Parallel()
	const budget, lost = 400, 25
	s := system.New(t, system.Options{
		Limits: fmt.Sprintf(`
  - {name: app-total, tier: app, budget: {requests: %d, per: total}}
  - {name: platform, tier: platform, budget: {requests: 100000, per: day}}
`, budget), Gateways: 2, Settlers: 1, TTL: 5 * time.Second, Proxied: true,
	})
	_, err := s.Pool.Exec(t.Context(), `INSERT INTO apps (app, plan) SELECT 'app-' || n, '' FROM generate_series(1, 1000) AS n`)
	require.NoError(t, err)
	tell := func(what string, key string) {
		t.Logf("%-40s %s", what, firstDecision(t, s, key).Round(time.Millisecond))
	}
	key := s.KnownKey(system.App)
	s.CLI("app", "create", "new")
	fresh := s.Key("new")
	s.AwaitKey(fresh)
	tell("first request of a new app", fresh)
	require.NotEmpty(t, system.Tally(system.Load(20, 4, spread(t, s, key, steady)))["passed"])

	keys, err := s.RedisClient.Keys(t.Context(), "{app:"+system.App+"}:*").Result()
	require.NoError(t, err)
	require.NoError(t, s.RedisClient.Del(t.Context(), keys...).Err())
	tell("an app's keys deleted", key)
	stop := system.Traffic(4, pacing(spread(t, s, s.KnownKey("new"), steady)))
	require.NoError(t, s.Flush(t.Context()))
	tell("Redis emptied under load", key)
	t.Log(strings.TrimSpace(s.CLI("rebuild")))
	stop()

	replica := s.Replicate()
	s.AwaitNoticed()
	tell("a first replica", key)
	allJudge(t, s, key)
	replica.Lag()
	require.Equal(t, lost, system.Tally(system.Load(lost, 8, spread(t, s, key, steady)))["passed"])
	replica.Promote()
	tell("a replica promoted", key)
	system.Load(budget+100, 16, pacing(spread(t, s, key, steady)))
	var used int64
	s.Eventually(system.Patience, "the budget is used up", func() error {
		used = s.Int(`SELECT count(*) FROM reservations WHERE app = $1 AND charged_requests > 0`, system.App)
		if answers := system.Tally(system.Load(50, 16, spread(t, s, key, steady))); answers["APP_QUOTA"] == 0 {
			return fmt.Errorf("%v", answers)
		}
		return nil
	})
	t.Logf("%d of %d, %d of them lost by the replica", used, budget, lost)
	require.LessOrEqual(t, used, int64(budget+lost))
	s.Check()
}
