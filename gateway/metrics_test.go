package gateway

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// Series with known labels are there from the start: a counter that appears with its first step is one whose first step
// no rate sees.
func TestMetricsBegin(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	// Seven tiers with a quota and four reasons of rates, two with one of their own.
	require.Equal(t, 1+7*5+2, testutil.CollectAndCount(m.decisions))
	require.Equal(t, 2*(7*5+2), testutil.CollectAndCount(m.passed))
	require.Equal(t, 2, testutil.CollectAndCount(m.degraded))
	require.Equal(t, 3, testutil.CollectAndCount(m.windowTurn))

	m.passedOver(admission.ActionShadow, ledger.ReasonAppQuota, ledger.TierApp)
	m.passedOver(policy.ActionFlag, ledger.ReasonEndpointLimit, ledger.TierEndpoint)
	require.Equal(t, 1.0, testutil.ToFloat64(m.passed.WithLabelValues("shadow", "APP_QUOTA", "app")))
	require.Equal(t, 1.0, testutil.ToFloat64(m.passed.WithLabelValues("flag", "ENDPOINT_LIMIT", "endpoint")))
	require.Equal(t, 2*(7*5+2), testutil.CollectAndCount(m.passed), "both were there")
	for _, on := range []bool{true, false} {
		m.setDegraded(componentRedis, on)
		require.Equal(t, map[bool]float64{true: 1, false: 0}[on], testutil.ToFloat64(m.degraded.WithLabelValues("redis")))
	}
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// A request counts for each period that began less than five seconds before it, and once however many budgets have it.
func TestWindowTurn(t *testing.T) {
	t.Parallel()
	m := newMetrics(prometheus.NewRegistry())
	turn := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) // a Tuesday
	admit := func(at time.Time) {
		res := &event.Reservation{ReservedAt: at, Counters: []ledger.Counter{{Period: ledger.PeriodTotal}}}
		for _, period := range []ledger.Period{ledger.PeriodDay, ledger.PeriodWeek, ledger.PeriodMonth, ledger.PeriodDay} {
			res.Counters = append(res.Counters, ledger.Counter{Period: period, Window: ledger.Calendar{WeekStart: time.Monday}.Window(period, at)})
		}
		m.admitted(res)
	}
	for _, at := range []time.Duration{-1, 0, windowTurnSpan - 1, windowTurnSpan, 24 * time.Hour, 6 * 24 * time.Hour} {
		admit(turn.Add(at))
	}
	for period, want := range map[string]float64{"day": 4, "week": 1, "month": 2} {
		require.Equal(t, want, testutil.ToFloat64(m.windowTurn.WithLabelValues(period)), period)
	}
}

// The board's share of 429s counts the reasons that are answered so, and no other.
func TestBoardKnowsTheReasonsOf429(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("..", "ledger", "reason.go"))
	require.NoError(t, err)
	board, err := os.ReadFile(filepath.Join("..", "dashboards", "grafana", "boards", "budgets.json"))
	require.NoError(t, err)
	matcher := regexp.MustCompile(`reason=~\\"([^"\\]+)`).FindSubmatch(board)
	require.NotNil(t, matcher)
	counted := regexp.MustCompile("^(?:" + string(matcher[1]) + ")$") // as PromQL anchors it
	reasons := regexp.MustCompile(`Reason += "([A-Z_]+)"`).FindAllSubmatch(source, -1)
	require.Greater(t, len(reasons), 20)
	for _, reason := range reasons {
		code := kindOf(ledger.Reason(reason[1])).status
		refused := code == http.StatusTooManyRequests && string(reason[1]) != string(ledger.ReasonOK)
		require.Equal(t, refused, counted.Match(reason[1]), "%s is answered %d", reason[1], code)
	}
}
