package admission

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// callResult is what became of a call, or of the wish to make one.
type callResult int

const (
	callAnswered callResult = iota
	callBroken              // answered: the state of its keys is of no use
	callOutage              // Redis as a whole could not be asked
	callUnsent              // the call itself was wrong
	callShed                // too many were under way
	callKept                // the breaker was open
	callResults
)

var (
	resultNames  = [callResults]string{"answered", "broken", "outage", "unsent", "shed", "open"}
	whys         = [...]string{whyTimeouts, whyErrors, whyLatency}
	probeResults = [...]string{"failed", "answered"}
)

// breakerCounts count since the start.
type breakerCounts struct {
	calls    [callResults]atomic.Int64
	openings [len(whys)]atomic.Int64
	probes   [len(probeResults)]atomic.Int64
}

func (c *breakerCounts) opened(why string) {
	for i, name := range whys {
		if name == why {
			c.openings[i].Add(1)
		}
	}
}

func (c *breakerCounts) probed(answered bool) {
	if answered {
		c.probes[1].Add(1)
	} else {
		c.probes[0].Add(1)
	}
}

var (
	breakerCallsDesc = prometheus.NewDesc("tollgate_breaker_calls_total",
		"Calls of Redis for a decision by result; shed and open were not made.", []string{"result"}, nil)
	breakerOpeningsDesc = prometheus.NewDesc("tollgate_breaker_openings_total",
		"How often Redis was given up for a while, by what the breaker opened on.", []string{"reason"}, nil)
	breakerProbesDesc = prometheus.NewDesc("tollgate_breaker_probes_total",
		"Probes of a Redis that was given up, by result.", []string{"result"}, nil)
)

// Breaker is what decides whether Redis may be asked, for its metrics.
func (a *Admission) Breaker() *Breaker { return a.breaker }

// Describe lists the breaker's metrics: a Breaker is a prometheus.Collector.
func (b *Breaker) Describe(descs chan<- *prometheus.Desc) {
	descs <- breakerCallsDesc
	descs <- breakerOpeningsDesc
	descs <- breakerProbesDesc
}

// Collect gives the breaker's metrics, each with every label value there is.
func (b *Breaker) Collect(metrics chan<- prometheus.Metric) {
	collect := func(desc *prometheus.Desc, names []string, counts []atomic.Int64) {
		for i, name := range names {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(counts[i].Load()), name)
		}
	}
	collect(breakerCallsDesc, resultNames[:], b.counts.calls[:])
	collect(breakerOpeningsDesc, whys[:], b.counts.openings[:])
	collect(breakerProbesDesc, probeResults[:], b.counts.probes[:])
}
