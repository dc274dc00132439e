package outbox

import (
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/ledger/event"
)

type metrics struct {
	events *prometheus.CounterVec
	spool  prometheus.Gauge
	bytes  prometheus.Gauge
	limit  prometheus.Gauge
	oldest prometheus.Gauge
	lost   prometheus.Counter
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
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_outbox_bytes",
			Help: "Bytes of the outbox's segments: what Postgres is not known to hold, and the newest segment.",
		}),
		limit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_outbox_limit_bytes",
			Help: "The most that tollgate_outbox_bytes may be.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_outbox_oldest_unconfirmed_seconds",
			Help: "Age of the oldest event in the outbox that Postgres is not known to hold.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_outbox_lost_events_total",
			Help: "Events that the stream acknowledged and lost, found out and sent again; each time counts.",
		}),
	}
	for _, kind := range []event.Kind{event.KindReserved, event.KindExtended, event.KindUsed, event.KindReleased} {
		for _, outcome := range []string{"acknowledged", "spooled"} {
			m.events.WithLabelValues(string(kind), outcome)
		}
	}
	reg.MustRegister(m.events, m.spool, m.bytes, m.limit, m.oldest, m.lost)
	return m
}
