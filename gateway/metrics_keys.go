package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/gateway/provider"
)

// keyMetrics shows how the providers' keys fare, by the names that the policy gives them.
type keyMetrics struct{ *Gateway }

var (
	keyRests = prometheus.NewDesc("tollgate_upstream_key_rests",
		"Models for which the key is not asked, by why: limited, refused, down. A rest of all models counts as one.", []string{"provider", "provider_key", "cause"}, nil)
	keyInFlight = prometheus.NewDesc("tollgate_upstream_in_flight",
		"Requests that wait for the provider's answer or read it, by key.", []string{"provider", "provider_key"}, nil)
)

// Describe implements prometheus.Collector.
func (keyMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- keyRests
	to <- keyInFlight
}

// Collect implements prometheus.Collector.
func (m keyMetrics) Collect(to chan<- prometheus.Metric) {
	upstreams := m.upstreams.Load()
	if upstreams == nil {
		return // no policy is in force yet
	}
	for name, u := range *upstreams {
		now := u.Now()
		for _, key := range u.Keys() {
			rests := key.Rests(now)
			for _, cause := range provider.Causes() {
				to <- prometheus.MustNewConstMetric(keyRests, prometheus.GaugeValue, float64(rests[cause]), name, key.Name, string(cause))
			}
			to <- prometheus.MustNewConstMetric(keyInFlight, prometheus.GaugeValue, float64(key.InFlight()), name, key.Name)
		}
	}
}
