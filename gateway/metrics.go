package gateway

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

type metrics struct {
	decisions        *prometheus.CounterVec
	upstreamRequests *prometheus.CounterVec
	upstreamSeconds  prometheus.Histogram
	retries          *prometheus.CounterVec
	firstToken       prometheus.Histogram
	tokens           *prometheus.CounterVec
	toolCalls        *prometheus.CounterVec
	cost             *prometheus.CounterVec
	passed           *prometheus.CounterVec
	degraded         *prometheus.GaugeVec
	windowTurn       *prometheus.CounterVec
}

// Models in labels are those of the policy, never a caller's text.
func newMetrics(reg prometheus.Registerer) *metrics {
	slow := []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_decisions_total", Help: "Decisions by outcome, reason and the layer that refused.",
		}, []string{"decision", "reason", "layer"}),
		upstreamRequests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_upstream_requests_total", Help: "Answers of providers by HTTP status; 0 is no answer.",
		}, []string{"provider", "model", "code"}),
		upstreamSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_upstream_seconds", Help: "Time from sending a request to the provider's answer header.", Buckets: slow,
		}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_upstream_retries_total", Help: "Requests sent once more, by what the attempt before met: connect, or a status.",
		}, []string{"provider", "cause"}),
		firstToken: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_time_to_first_token_seconds", Help: "Time from a streamed request to the first event sent on.", Buckets: slow,
		}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_tokens_total", Help: "Tokens used, by class.",
		}, []string{"provider", "model", "class"}),
		toolCalls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_tool_calls_total", Help: "Calls of tools that providers run and bill by the call.",
		}, []string{"provider", "model", "tool"}),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_cost_usd_total", Help: "Cost of what was used, in dollars. The ledger has it exactly.",
		}, []string{"provider", "model"}),
		passed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_passed_over_total", Help: "Limits without room that refused nobody: they are shadows, or flag.",
		}, []string{"action", "reason", "layer"}),
		degraded: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tollgate_degraded", Help: "1 while the component cannot be used and its fallback is.",
		}, []string{"component"}),
		windowTurn: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_window_turn_admitted_total",
			Help: "Requests admitted within 5 s after a budget's window began, by the window's period.",
		}, []string{"period"}),
	}
	reg.MustRegister(m.decisions, m.upstreamRequests, m.upstreamSeconds, m.retries, m.firstToken, m.tokens, m.toolCalls, m.cost, m.passed, m.degraded, m.windowTurn)
	m.begin()
	return m
}

// begin makes the series whose labels are known, so that the first step of each is seen as one.
func (m *metrics) begin() {
	m.decisions.WithLabelValues("allow", "OK", "")
	for _, tier := range ledger.Tiers() {
		for _, reason := range tierReasons(tier) {
			m.decisions.WithLabelValues("refuse", string(reason), string(tier))
			m.passed.WithLabelValues(string(admission.ActionShadow), string(reason), string(tier))
			m.passed.WithLabelValues(string(policy.ActionFlag), string(reason), string(tier))
		}
	}
	m.setDegraded(componentRedis, false)
	m.setDegraded(componentLedger, false)
	for _, period := range []ledger.Period{ledger.PeriodDay, ledger.PeriodWeek, ledger.PeriodMonth} {
		m.windowTurn.WithLabelValues(string(period))
	}
}

// tierReasons are the reasons that a limit of the tier gives when it has no room.
func tierReasons(tier ledger.Tier) []ledger.Reason {
	if tier == ledger.TierEndpoint || tier == ledger.TierIP {
		return []ledger.Reason{tier.Quota()}
	}
	return []ledger.Reason{tier.Quota(), ledger.ReasonTokenBucket, ledger.ReasonRPMLimit, ledger.ReasonTPMLimit, ledger.ReasonConcurrency}
}

// passedOver counts a limit that had no room and let the request pass, with the reason and layer of the refusal that it was
// not.
func (m *metrics) passedOver(action policy.Action, reason ledger.Reason, layer ledger.Tier) {
	m.passed.WithLabelValues(string(action), string(reason), string(layer)).Inc()
}

// componentRedis is the component whose fallback is the local limiter.
const componentRedis = "redis"

// componentLedger is the one that fills new budgets; without it they begin at zero.
const componentLedger = "ledger"

// setDegraded says whether the component's fallback is in use.
func (m *metrics) setDegraded(component string, on bool) {
	value := 0.0
	if on {
		value = 1
	}
	m.degraded.WithLabelValues(component).Set(value)
}

// windowTurnSpan is how long after its beginning a window counts as just begun.
const windowTurnSpan = 5 * time.Second

// admitted looks whether the request was let in by budgets that were new again: everybody who had waited for a window's end
// comes at once. A request counts once for each period that has just turned over.
func (m *metrics) admitted(res *event.Reservation) {
	var seen [4]ledger.Period
	turned := seen[:0]
	for i := range res.Counters {
		c := &res.Counters[i]
		if c.End.IsZero() || res.ReservedAt.Sub(c.Start) >= windowTurnSpan || slices.Contains(turned, c.Period) {
			continue
		}
		turned = append(turned, c.Period)
		m.windowTurn.WithLabelValues(string(c.Period)).Inc()
	}
}

func (m *metrics) upstream(provider, model string, code int, took time.Duration) {
	m.upstreamRequests.WithLabelValues(provider, model, strconv.Itoa(code)).Inc()
	m.upstreamSeconds.Observe(took.Seconds())
}

func (m *metrics) used(provider, model string, o *event.Outcome) {
	for _, c := range o.Usage.Classes() {
		if c.Tokens > 0 {
			m.tokens.WithLabelValues(provider, model, string(c.Class)).Add(float64(c.Tokens))
		}
	}
	for _, c := range o.Usage.Calls.Classes() {
		if c.Calls > 0 {
			m.toolCalls.WithLabelValues(provider, model, string(c.Class)).Add(float64(c.Calls))
		}
	}
	m.cost.WithLabelValues(provider, model).Add(float64(o.Cost) / 1e9)
}
