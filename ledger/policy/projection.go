package policy

import (
	"slices"
	"strings"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// Projection is what finance needs to read budgets against their limits: the budgets, without overrides that have lapsed at
// now. Limits on rates and concurrency have no books.
//
// The name of an override is what ledger.Counter.Name gives for the counters that it is for, so escaped as in subjects. In
// the tier user a name without "/" is that user in every app, and "app/user" goes before it.
func (p *Policy) Projection(now time.Time) event.Policy {
	projected := event.Policy{Revision: p.Revision, Limits: []event.PolicyLimit{}}
	for _, l := range p.Limits {
		if l.Budget == nil {
			continue
		}
		limit := event.PolicyLimit{
			Name: l.Name, Tier: l.Tier, Family: l.Family, Unit: l.Budget.Unit, Period: l.Budget.Period,
			Limit: l.Budget.Default, Hard: l.Hard,
		}
		for i := range l.Overrides {
			if o := &l.Overrides[i]; o.inForce(now) {
				limit.Overrides = append(limit.Overrides, event.PolicyOverride{
					Name: l.counterName(o.Name), Limit: o.Value, Until: o.Until,
				})
			}
		}
		projected.Limits = append(projected.Limits, limit)
	}
	return projected
}

// counterName escapes an override's name as subjects do.
func (l *Limit) counterName(name string) string {
	if l.Tier != ledger.TierUser {
		return string(appendName(nil, name, false))
	}
	app, user, scoped := strings.Cut(name, "/")
	if !scoped {
		return string(appendName(nil, name, true))
	}
	return string(appendName(append(appendName(nil, app, true), '/'), user, true))
}

// Fill asks for what the policy's budgets must know of the requests before it: every family and period once. Families that
// the ledger cannot fill are left out.
func (p *Policy) Fill() *event.Fill {
	fill := &event.Fill{Timezone: p.Timezone, WeekStart: p.Calendar.WeekStart}
	for _, l := range p.Limits {
		if l.Budget == nil || !l.fillable() {
			continue
		}
		if f := (event.FillFamily{Family: l.Family, Period: l.Budget.Period}); !slices.Contains(fill.Families, f) {
			fill.Families = append(fill.Families, f)
		}
	}
	return fill
}
