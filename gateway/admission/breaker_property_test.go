package admission

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"tollgate/ledger/policy"
)

// plainBreaker keeps every call that counts and works everything out anew each time.
type plainBreaker struct {
	calls []plainCall
	since time.Time // what began before does not count
}

type plainCall struct {
	at      time.Time
	took    time.Duration
	outage  bool
	unsent  bool
	latency time.Duration // pushed before it
}

// add counts a call and says why the breaker must open now.
func (p *plainBreaker) add(config policy.Breaker, start time.Time, c plainCall) string {
	if c.unsent || c.at.Add(-c.took).Before(p.since) {
		return ""
	}
	p.calls = append(p.calls, c)
	row := 0
	for i := len(p.calls) - 1; i >= 0 && p.calls[i].outage; i-- {
		row++
	}
	var answers []time.Duration
	var recent, outages int64
	for _, c := range p.calls {
		if !c.outage {
			answers = append(answers, c.took)
		}
		if int64(p.calls[len(p.calls)-1].at.Sub(start)/time.Second)-int64(c.at.Sub(start)/time.Second) < 10 {
			recent++
			if c.outage {
				outages++
			}
		}
	}
	answers = answers[max(0, len(answers)-64):]
	slices.Sort(answers)
	switch {
	case c.outage && row >= config.ConsecutiveTimeouts:
		return whyTimeouts
	case c.outage && recent >= 20 && float64(outages)/float64(recent) >= float64(config.ErrorRatio)/10_000:
		return whyErrors
	case !c.outage && c.took > config.Latency && len(answers) >= 20 && answers[(len(answers)*9+9)/10-1] > config.Latency:
		return whyLatency
	default:
		return ""
	}
}

// Over random histories the breaker opens exactly when the plain one does, and for the same reason.
func TestBreakerAgainstReference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		config := policy.Breaker{
			ConsecutiveTimeouts: rapid.IntRange(2, 12).Draw(rt, "timeouts"),
			ErrorRatio:          rapid.SampledFrom([]int64{1000, 2000, 2500, 5000, 9999}).Draw(rt, "ratio"),
			Latency:             50 * time.Millisecond,
			ProbeEvery:          time.Hour,
		}
		mayFail := rapid.Bool().Draw(rt, "outages")
		calls := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) plainCall {
			kind := rapid.SampledFrom([]string{"answer", "answer", "answer", "answer", "answer", "outage", "unsent"}).Draw(t, "kind")
			return plainCall{
				at:     time.Time{}.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "pause")) * time.Millisecond),
				took:   time.Duration(rapid.SampledFrom([]int{0, 10, 20, 30, 30, 49, 50, 51}).Draw(t, "took")) * time.Millisecond,
				outage: kind == "outage" && mayFail, unsent: kind == "unsent",
				latency: time.Duration(rapid.SampledFrom([]int{50, 50, 50, 50, 50, 50, 29, 60}).Draw(t, "latency")) * time.Millisecond,
			}
		}), 100, 300).Draw(rt, "calls")
		tight := rapid.Bool().Draw(rt, "no pauses")
		problem := ""
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			b := NewBreaker(nil, nil, time.Now)
			b.SetConfig(config)
			plain := &plainBreaker{since: start}
			for _, c := range calls {
				if !tight {
					time.Sleep(c.at.Sub(time.Time{}))
				}
				if config.Latency != c.latency {
					config.Latency = c.latency
					b.SetConfig(config)
				}
				if !b.Allow() {
					problem = "it does not allow a call although it is closed"
					return
				}
				time.Sleep(c.took / 2) // half of them began before the breaker last changed
				c.at = time.Now()
				switch {
				case c.unsent:
					b.Done(c.took, errCall)
				case c.outage:
					b.Done(c.took, errLate)
				default:
					b.Done(c.took, nil)
				}
				want := plain.add(config, start, c)
				if b.Open() != (want != "") || b.Open() && b.why != want {
					problem = "opened for " + b.why + ", want " + want
					return
				}
				if want != "" {
					b.close()
					plain.calls, plain.since = nil, time.Now()
				}
			}
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}
