package gateway

import (
	"container/list"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/gateway/admission"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

const (
	// maxRemaining is how many budgets show what remains of them; the one not judged for the longest time makes room.
	maxRemaining = 500
	// remainingFor is how long figures are shown after the last decision on a budget, at most until its window ends.
	remainingFor = 15 * time.Minute
)

// remaining is the metric tollgate_budget_remaining_ratio: what is left of budgets, as the last decision on each saw it. It
// knows budgets of apps and of what apps share; those of single keys, users and addresses are too many for a metric, and
// finance.budget_status has them. It is its own collector, because a decision must cost no label look-up in each budget.
// It is safe for concurrent use.
type remaining struct {
	desc *prometheus.Desc
	now  func() time.Time // the local clock

	mu     sync.Mutex // guards what follows
	series map[budgetSeries]*list.Element
	order  *list.List // of *budgetShare, the last judged first
}

type budgetSeries struct{ limit, subject string }

// budgetShare is the state of one series.
type budgetShare struct {
	budgetSeries
	tier  ledger.Tier
	ratio float64
	until time.Time
}

func newRemaining(reg prometheus.Registerer) *remaining {
	r := &remaining{
		desc: prometheus.NewDesc("tollgate_budget_remaining_ratio",
			"Share of a budget that is neither used nor held, by the last decision here.", []string{"tier", "subject", "limit"}, nil),
		now: time.Now, series: map[budgetSeries]*list.Element{}, order: list.New(),
	}
	reg.MustRegister(r)
	return r
}

// observe takes in the figures of a decision, with what it has just set aside itself. now is the decision's time.
func (r *remaining) observe(states []admission.LimitState, held ledger.Amounts, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	local := time.Time{}
	for i := range states {
		s := &states[i]
		if !isShown(s.Applied.Limit) || s.Applied.Value <= 0 {
			continue
		}
		if local.IsZero() {
			local = r.now()
		}
		shown := remainingFor
		if !s.Reset.IsZero() {
			shown = min(shown, s.Reset.Sub(now))
		}
		b := r.shareLocked(s)
		b.ratio = float64(s.Remaining(held)) / float64(s.Applied.Value)
		b.until = local.Add(shown)
	}
}

// isShown reports whether the limit is a budget with few subjects that refuses when it is spent. Neither the name of a key,
// a user or an address belongs into a label, also where the policy itself names it.
func isShown(l *policy.Limit) bool {
	if l.Budget == nil || l.Shadow || isPersonal(policy.Dimension(l.Tier)) {
		return false
	}
	return !slices.ContainsFunc(l.By, isPersonal) && !slices.ContainsFunc(l.Match, func(c policy.Condition) bool { return isPersonal(c.Key) })
}

func isPersonal(d policy.Dimension) bool {
	return d == policy.DimensionKey || d == policy.DimensionUser || d == policy.DimensionIP
}

func (r *remaining) shareLocked(s *admission.LimitState) *budgetShare {
	limit := s.Applied.Limit
	if e, ok := r.series[budgetSeries{limit.Name, s.Applied.Subject}]; ok {
		r.order.MoveToFront(e)
		return e.Value.(*budgetShare)
	}
	if r.order.Len() >= maxRemaining {
		r.removeLocked(r.order.Back())
	}
	// The subject is a piece of a longer text, which must not be kept for it.
	b := &budgetShare{budgetSeries: budgetSeries{limit.Name, strings.Clone(s.Applied.Subject)}, tier: limit.Tier}
	r.series[b.budgetSeries] = r.order.PushFront(b)
	return b
}

func (r *remaining) removeLocked(e *list.Element) {
	delete(r.series, e.Value.(*budgetShare).budgetSeries)
	r.order.Remove(e)
}

// forget drops every figure: those of another policy are measured against other limits.
func (r *remaining) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.series)
	r.order.Init()
}

// Describe is a method of prometheus.Collector.
func (r *remaining) Describe(descs chan<- *prometheus.Desc) { descs <- r.desc }

// Collect is a method of prometheus.Collector.
func (r *remaining) Collect(metrics chan<- prometheus.Metric) {
	for _, b := range r.current() {
		metrics <- prometheus.MustNewConstMetric(r.desc, prometheus.GaugeValue, b.ratio, string(b.tier), b.subject, b.limit)
	}
}

// current drops what is out of date and copies the rest: sending metrics on waits for others, which needs no lock.
func (r *remaining) current() []budgetShare {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	shares := make([]budgetShare, 0, r.order.Len())
	for e := r.order.Front(); e != nil; {
		next := e.Next()
		if b := e.Value.(*budgetShare); now.Before(b.until) {
			shares = append(shares, *b)
		} else {
			r.removeLocked(e)
		}
		e = next
	}
	return shares
}
