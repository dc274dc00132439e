package settler

import (
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// The outcome of a message that never became an event.
const (
	kindUnknown   = "unknown"
	outcomeParked = "parked"
)

type metrics struct {
	lag        prometheus.Gauge
	batchSize  prometheus.Histogram
	events     *prometheus.CounterVec
	open       prometheus.Gauge
	gaps       prometheus.Counter
	missing    prometheus.Gauge
	drift      prometheus.Gauge
	unsealed   prometheus.Gauge
	partitions prometheus.Gauge
	restored   prometheus.Counter
	redisDown  prometheus.Gauge
	negative   prometheus.Counter
	lost       prometheus.Counter
	settle     prometheus.Observer
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_settlement_lag_seconds", Help: "Age of the oldest event that is on the stream and not settled.",
		}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tollgate_settlement_batch_size", Help: "Events settled in one transaction.", Buckets: prometheus.ExponentialBuckets(1, 4, 7),
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tollgate_events_total", Help: "Events by kind and by what became of them.",
		}, []string{"kind", "outcome"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_open_reservations", Help: "Reservations without an end, by the ledger.",
		}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_sequence_gaps_total", Help: "Events that a producer numbered and that have not arrived in time.",
		}),
		missing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_missing_events", Help: "Of the events counted in tollgate_sequence_gaps_total, those that are still missing.",
		}),
		drift: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_ledger_drift", Help: "Apps whose settled amounts Redis is known not to have yet.",
		}),
		unsealed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_ledger_unsealed_rows", Help: "Serials of the journal that the last sealing found and left unsealed.",
		}),
		partitions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_ledger_partitions_missing", Help: "Monthly partitions that the journal lacks now or will lack in ten days.",
		}),
		restored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_ledger_restored_total", Help: "How often Postgres was another database or an older copy, and was filled up from the stream.",
		}),
		redisDown: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tollgate_settler_redis_failing", Help: "1 while the last write-back to Redis failed.",
		}),
		negative: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_settler_negative_held_total", Help: "Held amounts in Redis that would have gone below zero, because they were lost.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tollgate_settler_counters_lost_total", Help: "Counters and open reservations that Redis had lost, or somebody changed, while their mark stood.",
		}),
	}
	redis := prometheus.NewHistogramVec(prometheus.HistogramOpts{ // as the gateway says, whose metrics may stand beside these
		Name: "tollgate_redis_seconds", Help: "Time of one script call, as its caller sees it.",
		Buckets: []float64{.0001, .0002, .0004, .0008, .0015, .003, .006, .012, .025, .05, .1},
	}, []string{"script"})
	m.settle = redis.WithLabelValues("settle")
	for _, kind := range []event.Kind{
		event.KindReserved, event.KindExtended, event.KindUsed, event.KindReleased, event.KindExpired, event.KindRefused, event.KindPolicy, event.KindAdjusted,
	} {
		for _, fate := range []pg.Fate{pg.FatePosted, pg.FateDuplicate, pg.FateConflict, outcomeParked} { // an increase needs a zero first
			m.events.WithLabelValues(string(kind), string(fate))
		}
	}
	m.events.WithLabelValues(kindUnknown, outcomeParked)
	reg.MustRegister(m.lag, m.batchSize, m.events, m.open, m.gaps, m.missing, m.drift, m.unsealed, m.partitions, m.restored, m.redisDown, m.negative, m.lost, redis)
	return m
}
