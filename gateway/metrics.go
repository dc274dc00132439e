package gateway

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/ledger/event"
)

type metrics struct {
	decisions        *prometheus.CounterVec
	upstreamRequests *prometheus.CounterVec
	upstreamSeconds  prometheus.Histogram
	firstToken       prometheus.Histogram
	tokens           *prometheus.CounterVec
	cost             *prometheus.CounterVec
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
		firstToken: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_time_to_first_token_seconds", Help: "Time from a streamed request to the first event sent on.", Buckets: slow,
		}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_tokens_total", Help: "Tokens used, by class.",
		}, []string{"provider", "model", "class"}),
		cost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_cost_usd_total", Help: "Cost of what was used, in dollars. The ledger has it exactly.",
		}, []string{"provider", "model"}),
	}
	reg.MustRegister(m.decisions, m.upstreamRequests, m.upstreamSeconds, m.firstToken, m.tokens, m.cost)
	m.decisions.WithLabelValues("allow", "OK", "")
	return m
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
	m.cost.WithLabelValues(provider, model).Add(float64(o.Cost) / 1e9)
}
