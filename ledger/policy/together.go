package policy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tollgate/ledger"
)

// enoughHeadroom is what a limit should stay below the one that the provider enforces, in hundredths of a percent: estimates
// and clocks are never exact.
const enoughHeadroom = 20_00

// Larger policies are not compared limit by limit, and nobody reads more warnings: a hostile file costs little.
const (
	comparedLimits = 500
	mostWarnings   = 100
)

// parents are the tiers above a tier, of which each subject belongs to exactly one: what they allow is shared by all below.
var parents = map[ledger.Tier][]ledger.Tier{
	ledger.TierApp: {ledger.TierPlatform, ledger.TierCluster}, ledger.TierPlan: {ledger.TierPlatform, ledger.TierCluster},
	ledger.TierProvider: {ledger.TierPlatform, ledger.TierCluster}, ledger.TierEndpoint: {ledger.TierPlatform, ledger.TierCluster},
	ledger.TierKey:  {ledger.TierPlatform, ledger.TierCluster, ledger.TierApp},
	ledger.TierUser: {ledger.TierPlatform, ledger.TierCluster, ledger.TierApp},
}

// together warns of limits that cannot work together: each line names both and what to change. It never keeps a policy from
// being taken.
func (p *Policy) together() Problems {
	var found Problems
	for i, l := range p.Limits {
		warn := func(format string, args ...any) {
			found = append(found, Problem{Line: l.Line, Field: fmt.Sprintf("limits[%d]", i), Message: fmt.Sprintf(format, args...)})
		}
		if l.Budget != nil && !l.fillable() {
			warn("%s begins at zero inside a running window, because the ledger knows no IP addresses: prefer a rate", l.Name)
		}
		if l.Tier == ledger.TierProvider && l.Rate != nil && l.Rate.Headroom < enoughHeadroom {
			warn("%s keeps less than 20%% below what the provider enforces: give headroom: 20%% or more", l.Name)
		}
		if l.OnExceed != nil && l.OnExceed.Action == ActionFallback && !p.fallsBack() {
			warn("%s falls back, but no app names a fallback: name one under apps, or use another action", l.Name)
		}
		if l.Shadow || len(p.Limits) > comparedLimits {
			continue
		}
		for _, other := range p.Limits {
			if other != l && !other.Shadow && len(found) < mostWarnings {
				l.compare(other, warn)
			}
		}
	}
	for _, name := range sorted(p.Plans) {
		if plan := p.Plans[name]; plan.OnExceed.Action == ActionFallback && !p.fallsBack() {
			found = append(found, Problem{
				Line: plan.Line, Field: "plans." + shorten(name),
				Message: "falls back, but no app names a fallback: name one under apps, or use another action",
			})
		}
	}
	return found
}

func (p *Policy) fallsBack() bool {
	for _, app := range p.Apps {
		if len(app.Fallback) > 0 {
			return true
		}
	}
	return false
}

// compare warns when l can never bind because of other, or lets one subject take more than is there for all.
func (l *Limit) compare(other *Limit, warn func(string, ...any)) {
	mine, myWindow := l.measured()
	theirs, theirWindow := other.measured()
	if mine == 0 || theirs == 0 || l.Unit() != other.Unit() || (l.Budget == nil) != (other.Budget == nil) ||
		(l.Rate == nil) != (other.Rate == nil) {
		return
	}
	for i := range other.Overrides {
		if other.Tier != l.Tier {
			theirs = max(theirs, other.Overrides[i].Value)
		}
	}
	above := slices.Contains(parents[l.Tier], other.Tier) && len(other.By) == 0 && other.covers(l)
	for i := range l.Overrides {
		if o := &l.Overrides[i]; above && myWindow <= theirWindow && o.Value > theirs && mine <= theirs {
			warn("%s allows %s (line %d) more than %s in line %d, which stands above it: lower it, or raise %s", l.Name, quote(o.Name), o.Line,
				other.Name, other.Line, other.Name)
		}
	}
	switch {
	case l.Rate != nil && other.Tier == ledger.TierProvider && l.Tier != ledger.TierProvider && len(other.Match) == 0 &&
		!slices.Contains(other.By, DimensionUser) && myWindow == theirWindow && mine > theirs:
		warn("%s allows %d in its window, more than the %d that %s in line %d allows everybody upstream: lower it", l.Name, mine, theirs, other.Name, other.Line)
	case above && myWindow <= theirWindow && mine > theirs:
		warn("%s allows more than %s in line %d, which stands above it: it never binds; lower it, or raise %s", l.Name, other.Name, other.Line, other.Name)
	case l.Family == other.Family && myWindow < theirWindow && mine > theirs:
		warn("%s allows more than %s in line %d allows in its longer window: it never binds; lower it", l.Name, other.Name, other.Line)
	case l.Family == other.Family && myWindow == theirWindow && len(l.Overrides) == 0 && (mine > theirs || mine == theirs && l.Line > other.Line) &&
		len(other.Overrides) == 0 && (l.Rate == nil || l.Rate.Algorithm == other.Rate.Algorithm && l.Rate.Burst >= other.Rate.Burst):
		warn("%s never binds beside %s in line %d, which is stricter on the same requests: remove it", l.Name, other.Name, other.Line)
	}
}

// covers reports whether every request that below matches, l matches too.
func (l *Limit) covers(below *Limit) bool {
	return !slices.ContainsFunc(l.Match, func(c Condition) bool {
		return !slices.ContainsFunc(below.Match, func(b Condition) bool { return b.Key == c.Key && slices.Equal(b.Values, c.Values) })
	})
}

// measured is the most that the limit ever allows a subject without an override of its own to be smaller, with the length of
// its window. 0 when there is nothing to compare.
func (l *Limit) measured() (most int64, window time.Duration) {
	switch {
	case l.Budget != nil:
		most = l.Budget.Default
		window = map[ledger.Period]time.Duration{
			ledger.PeriodDay: 24 * time.Hour, ledger.PeriodWeek: 7 * 24 * time.Hour, ledger.PeriodMonth: 28 * 24 * time.Hour,
		}[l.Budget.Period]
		window = cmp.Or(window, 1<<62)
	case l.Rate != nil:
		most, window = l.Rate.Amount, l.Rate.Window
	default:
		most = l.Concurrency
	}
	if most == 0 {
		return 0, window // it is there for its overrides
	}
	return most, window
}
