package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/e2e/system"
	"tollgate/ledger/policy"
)

// pushPolicy writes a policy of the limits, pushes it, and waits until every gateway says that it is in force.
func pushPolicy(s *system.System, limits string) {
	s.WritePolicy(limits)
	inForce(s, policy.RevisionOf([]byte(s.Policy(limits))), func() { s.CLI("policy", "push", s.PolicyFile) })
}

// inForce waits until every gateway has taken the revision after the change.
func inForce(s *system.System, revision string, change func()) {
	taken := func(g *system.Part) int { return strings.Count(g.Log(), `"policy in force","revision":"`+revision) }
	before := make([]int, len(s.Gateways))
	for i, g := range s.Gateways {
		before[i] = taken(g)
	}
	change()
	for i, g := range s.Gateways {
		s.Eventually(system.Patience, "policy in force", func() error {
			if taken(g) == before[i] {
				return fmt.Errorf("%s does not judge by %s", g.URL, revision)
			}
			// Where the settler did not answer soon, its budgets may be filled a little later.
			degraded, err := s.Series(context.Background(), g, "tollgate_degraded")
			if err == nil && degraded[`component="ledger"`] != 0 {
				err = fmt.Errorf("its budgets are not filled: %v", degraded)
			}
			return err
		})
	}
}

// million is a call that costs 2.5 dollars for each million input tokens, and as good as nothing besides.
func million(s *system.System, gateway *system.Part, key string, tokens int) system.Answer {
	return s.Send(context.Background(), gateway.URL, millionRequest(key, tokens))
}

func millionRequest(key string, tokens int) system.Request {
	return system.Request{
		Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o", "Hello", 10, false),
		Header: map[string]string{"X-Sim-Prompt-Tokens": fmt.Sprint(tokens), "X-Sim-Completion-Tokens": "0"},
	}
}

// A limit that begins inside a running window binds with what was used before it, also by what was in flight when it came; a
// raised one helps and a lowered one binds at once, and usage survives them all.
func TestLimitsChangeInARunningWindow(t *testing.T) {
	t.Parallel()
	const roomy = "  - {name: app-day, tier: app, budget: {usd: 1000, per: day}}\n"
	slow := newGate(t)
	s := system.New(t, system.Options{
		Limits: roomy, Gateways: 1, Settlers: 2, Pushed: true, Env: []string{"TOLLGATE_SIM_URL=" + slow.url},
	})
	slow.lead(t, s.Sim.URL)
	g, key := s.Gateways[0], s.KnownKey(system.App)
	spend := func(tokens int, why string) {
		t.Helper()
		a := million(s, g, key, tokens)
		require.True(t, a.Passed(), "%s: %s", why, a)
		settled(t, s, a.ID)
		requireNothingHeld(t, s)
	}
	spend(2_000_000, "before there is a limit")

	// In flight at the switch: it has the provider's attention, and its outcome comes when the new limit is in force.
	release, err := slow.hold(t.Context(), s, g.URL, millionRequest(key, 400_000))
	require.NoError(t, err)
	s.Eventually(system.Patience, "in flight", func() error {
		if n := s.Int(`SELECT count(*) FROM reservations WHERE state = 'pending'`); n != 1 {
			return fmt.Errorf("%d pending", n)
		}
		return nil
	})

	keyDay := func(usd string) string {
		return roomy + "  - {name: key-day, tier: key, by: [model], budget: {usd: " + usd + ", per: day}}\n"
	}
	pushPolicy(s, keyDay("3"))
	refused := func(used float64) {
		t.Helper()
		a := million(s, g, key, 0)
		require.Equal(t, http.StatusTooManyRequests, a.Status, a.String())
		require.Equal(t, "KEY_QUOTA", a.Reason, a.String())
		require.Equal(t, "key-day", gjson.GetBytes(a.Body, "tollgate.limit_name").Str, a.String())
		require.InDelta(t, used, gjson.GetBytes(a.Body, "tollgate.used").Float(), 0, a.String())
	}
	refused(5)
	require.NoError(t, release())
	s.Eventually(system.Patience, "what was in flight is settled", func() error {
		if n := s.Int(`SELECT nanousd FROM budgets WHERE family = 'key[model]'`); n != 6_000_000_000 {
			return fmt.Errorf("%d nano-dollars used", n)
		}
		return nil
	})
	requireNothingHeld(t, s)
	refused(6)

	pushPolicy(s, keyDay("7"))
	spend(100_000, "a raised limit helps at once")
	pushPolicy(s, keyDay("6"))
	refused(6.25)
	pushPolicy(s, roomy)
	spend(100_000, "without the limit")
	pushPolicy(s, keyDay("6"))
	refused(6.5)
	s.Check()
}

// A temporary override lapses by itself, in a gateway that runs, at its instant.
func TestOverrideLapses(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: "  - {name: none, tier: app, budget: {requests: 0, per: day}, overrides: {other: {requests: 1}}}\n", Gateways: 1, Settlers: 1, Pushed: true})
	g, key := s.Gateways[0], s.KnownKey(system.App)
	require.Equal(t, "REQUEST_TOO_LARGE", million(s, g, key, 0).Reason, "nothing is allowed")

	until := time.Now().Add(15 * time.Second).Truncate(time.Second)
	pushPolicy(s, fmt.Sprintf("  - {name: promotion, tier: app, budget: {requests: 0, per: day}, overrides: {%s: {requests: 1000000, until: %s}}}\n",
		system.App, until.UTC().Format(time.RFC3339)))
	// A gateway knows Redis's clock to half of the time that an answer of Redis took.
	const apart = 100 * time.Millisecond
	last, passed := time.Time{}, 0
	for ; ; time.Sleep(2 * time.Millisecond) {
		sent := time.Now()
		a := million(s, g, key, 0)
		answered := time.Now()
		if a.Passed() {
			require.True(t, sent.Before(until.Add(apart)), "allowed at %s, %s after the end", sent, sent.Sub(until))
			last, passed = answered, passed+1
			continue
		}
		require.Equal(t, "REQUEST_TOO_LARGE", a.Reason, a.String())
		require.False(t, answered.Before(until.Add(-apart)), "refused at %s, before the end", answered)
		break
	}
	require.Positive(t, passed)
	t.Logf("%d requests passed, the last answered %s before the end", passed, until.Sub(last))
	s.Check()
}

// All gateways judge by the same revision within a second of a push, each reservation says by which, and a policy that cannot be
// taken changes nothing.
func TestGatewaysJudgeByOneRevision(t *testing.T) {
	t.Parallel()
	limit := func(n int) string { // each with counters that are new, and filled before it is in force
		return fmt.Sprintf("  - {name: app-day, tier: app, by: [%s], budget: {requests: 1000000, per: day}}\n",
			[]string{"user", "model", "plan", "provider"}[n])
	}
	s := system.New(t, system.Options{Limits: limit(0), Gateways: 2, Settlers: 1, Pushed: true})
	key := s.KnownKey(system.App)
	type sent struct {
		at time.Time
		id string
	}
	var mu sync.Mutex
	var calls []sent
	stop := system.Traffic(4, func(i int) system.Answer {
		at := time.Now()
		a := million(s, s.Gateways[i%2], key, 0)
		mu.Lock()
		calls = append(calls, sent{at, a.ID})
		mu.Unlock()
		return a
	})
	revisions := []string{policy.RevisionOf([]byte(s.Policy(limit(0))))}
	var begun, pushes, taken []time.Time
	var took []time.Duration
	for n := 1; n <= 3; n++ {
		revisions = append(revisions, policy.RevisionOf([]byte(s.Policy(limit(n)))))
		s.WritePolicy(limit(n))
		inForce(s, revisions[n], func() {
			begun = append(begun, time.Now())
			s.CLI("policy", "push", s.PolicyFile)
			pushes = append(pushes, time.Now())
		})
		taken, took = append(taken, time.Now()), append(took, time.Since(pushes[n-1]))
		time.Sleep(time.Second) // requests that are judged by it
	}
	slices.Sort(took)
	require.Less(t, took[1], 3*time.Second, "in force after %s: one may take longer because a process stood still", took)
	_, err := s.TryCLI("policy", "push", s.PolicyFile+".none")
	require.Error(t, err)
	s.WritePolicy("  - {name: broken, tier: apps, budget: {requests: 1, per: day}}\n")
	_, err = s.TryCLI("policy", "push", s.PolicyFile)
	require.ErrorContains(t, err, "limits[0].tier: unknown tier")
	for _, a := range stop() {
		require.True(t, a.Passed(), a.String())
	}
	s.Check()

	judged := map[string]string{}
	for _, row := range s.Rows(`SELECT request_id, policy_revision FROM finance.requests`) {
		judged[row[0].(string)] = row[1].(string)
	}
	require.Len(t, judged, len(calls))
	slowest := make([]time.Duration, len(pushes))
	for _, c := range calls {
		revision := judged[c.id]
		for n := range pushes {
			switch {
			case revision == revisions[n]: // the one before
				require.False(t, c.at.After(taken[n]), "judged by %s when %s was in force everywhere", revision, revisions[n+1])
				slowest[n] = max(slowest[n], c.at.Sub(begun[n]))
			case n+1 == len(pushes):
				require.Equal(t, revisions[n+1], revision)
			}
			if revision == revisions[n] {
				break
			}
		}
	}
	t.Logf("the revision before was last judged by %s after the command to push had been started", slowest)

	history := s.CLI("policy", "history")
	require.Equal(t, 4, strings.Count(history, "\n"), history)
	second := strings.Fields(strings.Split(history, "\n")[1])
	require.Equal(t, revisions[1], second[2])
	inForce(s, revisions[1], func() { s.CLI("policy", "rollback", second[0]) })
	s.WritePolicy(limit(1))
	require.Equal(t, s.Policy(limit(1)), s.CLI("policy", "show"))
}

// A policy that comes while the gateway's disk is full is in force, and on record once there is room again: the ledger's own
// check of budgets reads its limits from there.
func TestPolicyOfAFullDiskIsRecorded(t *testing.T) {
	t.Parallel()
	const limits = "  - {name: app-day, tier: app, budget: {usd: %d, per: day}}\n"
	s := system.New(t, system.Options{Limits: fmt.Sprintf(limits, 1000), Gateways: 1, Settlers: 1, Pushed: true})
	s.Gateways[0].LimitFiles(1)
	s.WritePolicy(fmt.Sprintf(limits, 2000))
	s.CLI("policy", "push", s.PolicyFile)
	key := s.KnownKey(system.App)
	s.Eventually(system.Patience, "nothing can be recorded", func() error {
		r := steady(0)
		r.Key = key
		if a := s.Send(t.Context(), s.Gateways[0].URL, r); a.Status != http.StatusServiceUnavailable {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	s.Gateways[0].NoFileLimit()
	s.Eventually(system.Patience, "the limit of the new policy is on record", func() error {
		if n := s.Int(`SELECT coalesce(max(limit_value), 0) FROM policy_limits WHERE name = ''`); n != 2000_000_000_000 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	s.Check()
}
