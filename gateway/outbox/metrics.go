package outbox

import (
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/ledger/event"
)

type metrics struct {
	events *prometheus.CounterVec
	spool  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_events_total",
			Help: "Events by kind and by what became of them.", // as the settler says, whose metrics may stand beside these
		}, []string{"kind", "outcome"}),
		spool: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_spool_events",
			Help: "Events in the outbox that the stream has not acknowledged.",
		}),
	}
	for _, kind := range []event.Kind{event.KindReserved, event.KindUsed, event.KindReleased} {
		for _, outcome := range []string{"acknowledged", "spooled"} {
			m.events.WithLabelValues(string(kind), outcome)
		}
	}
	reg.MustRegister(m.events, m.spool)
	return m
}
