package admission

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	admission prometheus.Histogram
	reserve   prometheus.Observer
	extend    prometheus.Observer
	// extensions counts streams that outgrew what was held for them, each time they did.
	extensions *prometheus.CounterVec
	lines      atomic.Pointer[lines] // of the admission that is measured
}

// NewMetrics registers what admission measures.
func NewMetrics(reg prometheus.Registerer) *metrics {
	admission := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "tollgate_admission_seconds",
		Help:    "Time to decide on one request, Redis included.",
		Buckets: []float64{.0002, .0004, .0008, .0015, .003, .006, .012, .025, .05, .1, .25, 1, 5},
	})
	redis := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "tollgate_redis_seconds",
		Help:    "Time of one script call, as its caller sees it.",
		Buckets: []float64{.0001, .0002, .0004, .0008, .0015, .003, .006, .012, .025, .05, .1},
	}, []string{"script"})
	extensions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tollgate_extensions_total", Help: "Extensions that streams asked for because they outgrew what was held for them, by outcome.",
	}, []string{"outcome"})
	for _, outcome := range []string{extensionHeld, extensionRefused, extensionLocal} {
		extensions.WithLabelValues(outcome)
	}
	m := &metrics{
		admission: admission, reserve: redis.WithLabelValues("reserve"), extend: redis.WithLabelValues("extend"), extensions: extensions,
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tollgate_waiting_requests",
		Help: "Requests that wait for a limit to have room.",
	}, m.waiting)
	reg.MustRegister(admission, redis, extensions, waiting)
	return m
}

// waiting is how many requests wait in lines now.
func (m *metrics) waiting() float64 {
	l := m.lines.Load()
	if l == nil {
		return 0
	}
	return float64(l.waiting.Load())
}
