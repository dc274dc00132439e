package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// openEnded is a chat request without a bound of its answer.
const openEnded = `{"model":"gpt-4o-mini","messages":[{"role":"user","content":"Go on."}],"stream":true}`

// A thousand streams at once, over two gateways, that want twice what a hard budget has: not a token more is used, each ends as a
// whole answer, and the ledger verifies. That no more than the budget is ever held is package lua's to show.
func TestHardCeiling(t *testing.T) {
	t.Parallel()
	const budget, streams, wanted = 1_000_000, 1000, 2000
	s := system.New(t, system.Options{
		Limits: fmt.Sprintf("  - {name: app-month, tier: app, budget: {tokens: %d, per: total}, hard: true}\n", budget) +
			"  - {name: platform, tier: platform, budget: {usd: 1000, per: month}, hard: true}\n",
		Gateways: 2, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	ask := func(i int, tokens, chunks string, delay string) system.Answer {
		return s.Send(t.Context(), s.Gateways[i%2].URL, system.Request{
			Key: key, Path: "/v1/chat/completions", Body: openEnded,
			Header: map[string]string{"X-Sim-Completion-Tokens": tokens, "X-Sim-Chunks": chunks, "X-Sim-Chunk-Delay": delay},
		})
	}
	// What short answers teach is held for the long ones, so that they all begin.
	for _, a := range system.Load(60, 10, func(i int) system.Answer { return ask(i, "40", "4", "0s") }) {
		require.True(t, a.Passed(), a.String())
	}
	ended := map[string]int{}
	for _, a := range system.Load(streams, streams, func(i int) system.Answer { return ask(i, fmt.Sprint(wanted), "50", "200ms") }) {
		switch text := string(a.Body); {
		case a.Passed() && strings.HasSuffix(text, "data: [DONE]\n\n") && strings.Contains(text, `"tollgate":{"reason":"APP_QUOTA"`):
			ended["at the budget"]++
		case a.Passed() && strings.HasSuffix(text, "data: [DONE]\n\n"):
			ended["by itself"]++
		case a.Status == 429:
			ended["refused"]++
		default:
			t.Errorf("neither whole nor refused: %s", a)
		}
	}
	s.Check()
	used := s.Int(`SELECT tokens FROM budgets WHERE period = 'total'`)
	asked := 0.0
	for _, g := range s.Gateways {
		n, err := s.Metric(t.Context(), g, "tollgate_extensions_total")
		require.NoError(t, err)
		asked += n
	}
	totals, err := s.Sim.Totals(t.Context())
	require.NoError(t, err)
	t.Logf("streams %v; budget %d, used %d; provider's books %d in, %d out; %.2f calls of Redis a stream",
		ended, budget, used, totals.InputTokens, totals.OutputTokens, asked/streams)
	require.LessOrEqual(t, used, int64(budget))
	// On a busy machine streams begin one after the other, and more of them end by themselves or are refused.
	require.Greater(t, used, int64(budget/2), "streams are not ended early")
	require.Greater(t, ended["at the budget"], streams/4)
	require.Zero(t, s.Int(`SELECT count(*) FROM finance.requests WHERE charged_tokens > (SELECT held_tokens FROM reservations WHERE reservation_id = request_id)`))
	require.EqualValues(t, ended["at the budget"], s.Int(`SELECT count(*) FROM finance.requests WHERE flags @> '{hard_limit}' AND finish = 'APP_QUOTA' AND usage_state = 'estimated'`))
}
