package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// A prepaid balance is a budget of 0 in total and grants: exactly what was granted may be spent over all gateways, within a second
// of the grant, once however often it is asked for, and no more after it was taken back. A grant to a day's budget raises it.
// Long: one balance, from its first grant to its end.
func TestGrants(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{
		Limits: "\n  - {name: prepaid, tier: app, budget: {requests: 0, per: total}}\n" +
			"  - {name: key-day, tier: key, budget: {requests: 2, per: day}}\n",
		Gateways: 2, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	call := spread(t, s, key, embedding(3))
	n := 0
	send := func() int { n++; return call(n).Status }
	grant := func(args ...string) string {
		return s.CLI(append([]string{"grant", "add", "--policy", s.PolicyFile, "--app", system.App}, args...)...)
	}
	awaitLimit := func(name string, want int64) {
		s.Eventually(system.Patience, "limit in finance", func() error {
			if got := s.Int(`SELECT coalesce(max(limit_value), -1)::bigint FROM finance.budget_status WHERE limit_name = $1`, name); got != want {
				return fmt.Errorf("%d, want %d", got, want)
			}
			return nil
		})
	}
	require.Equal(t, http.StatusTooManyRequests, send())

	refuseGrants(t, s)

	first := []string{"--limit", "prepaid", "--requests", "3", "--id", "top-up-1", "--reason", "invoice 7"}
	grant(first...)
	var prompt []time.Duration
	passes := func(what string, want int) {
		passed := 0
		took := s.Eventually(system.Patience, what, func() error {
			if send() == http.StatusOK {
				passed++
			}
			if passed == 0 && want > 0 {
				return fmt.Errorf("refused")
			}
			return nil
		})
		t.Logf("%s in force after %s", what, took)
		if want > 0 {
			prompt = append(prompt, took)
		}
		for range 8 {
			if send() == http.StatusOK {
				passed++
			}
		}
		require.Equal(t, want, passed, what)
	}
	passes("the day's two requests of the balance", 2)
	id, ok := s.Rows(`SELECT key_id FROM api_keys`)[0][0].(string)
	require.True(t, ok)
	grant("--limit", "key-day", "--subject", id, "--requests", "40")
	passes("the last request of the balance", 1)

	require.Contains(t, grant(first...), "as asked for before")
	_, err := s.TryCLI("grant", "add", "--policy", s.PolicyFile, "--app", system.App, "--limit", "prepaid", "--requests", "4", "--id", "top-up-1")
	require.ErrorContains(t, err, "other content")
	awaitLimit("prepaid", 3)
	awaitLimit("key-day", 42)
	passes("nothing granted twice", 0)

	grant("--limit", "prepaid", "--requests", "500", "--id", "top-up-2")
	took := s.Eventually(system.Patience, "the second balance", func() error {
		if send() != http.StatusOK {
			return fmt.Errorf("refused")
		}
		return nil
	})
	s.CLI("grant", "revoke", "top-up-2")
	require.Contains(t, s.CLI("grant", "revoke", "top-up-2"), "as asked for before")
	_, err = s.TryCLI("grant", "add", "--policy", s.PolicyFile, "--app", system.App, "--limit", "prepaid", "--requests", "500", "--id", "top-up-2")
	require.ErrorContains(t, err, "was taken back")
	awaitLimit("prepaid", 3)
	gone := s.Eventually(system.Patience, "the second balance to be gone", func() error {
		if send() == http.StatusOK {
			return fmt.Errorf("admitted")
		}
		return nil
	})
	// One may take longer because a process stood still.
	prompt = append(prompt, took, gone)
	slices.Sort(prompt)
	require.Less(t, prompt[len(prompt)/2], 2*time.Second, "in force after %s", prompt)
	require.Contains(t, s.CLI("grant", "list"), "revoked")
	s.Check()
}

// refuseGrants asks for what cannot be granted: each is refused before anything is published or noted.
func refuseGrants(t *testing.T, s *system.System) {
	t.Helper()
	for _, bad := range [][]string{
		{"--requests", "0"},
		{"--requests", "-1"},
		{"--requests", "9223372036854775808"},
		{"--requests", "1.5"},
		{"--usd", "1"},
		{"--usd", "0.0000000001"},
		{},
		{"--requests", "1", "--tokens", "1"},
		{"--requests", "1", "--limit", "none"},
		{"--requests", "1", "--app", "nobody"},
		{"--requests", "1", "--until", "2020-01-01"},
		{"--requests", "1", "--id", "a b"},
	} {
		args := append([]string{"grant", "add", "--policy", s.PolicyFile, "--app", system.App, "--limit", "prepaid"}, bad...)
		out, err := s.TryCLI(args...)
		require.Error(t, err, "%v: %s", bad, out)
	}
	require.Zero(t, s.Int(`SELECT count(*) FROM grant_orders`))
}
