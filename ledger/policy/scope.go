package policy

import (
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tollgate/ledger"
)

// contains searches sorted names.
func contains(names []string, name string) bool {
	_, found := slices.BinarySearch(names, name)
	return found
}

// match reads the conditions of a limit of the tier.
func (f *file) match(v value, tier ledger.Tier) []Condition {
	var known []string
	for _, d := range matchDimensions {
		known = append(known, string(d))
	}
	rec := v.record(known...)
	if v.null() || v.node.Kind == yaml.MappingNode && len(v.node.Content) == 0 {
		v.fail("is empty: remove it, or say what the limit matches")
	}
	var conditions []Condition
	for _, name := range sorted(rec.fields) {
		key := Dimension(name)
		values := f.distinct(rec.fields[name].texts(), func(v value, name string) bool { return f.known(v, key, name, tier) })
		if len(values) > 0 {
			conditions = append(conditions, Condition{key, values})
		}
	}
	return conditions
}

// known reports a value that a condition on key can never meet.
func (f *file) known(v value, key Dimension, name string, tier ledger.Tier) bool {
	switch key {
	case DimensionPlan:
		return f.plan(v, name)
	case DimensionProvider:
		return f.knownProvider(v, name)
	case DimensionProviderKey:
		return v.ofProviders(tier) && f.providerKey(v, name)
	case DimensionModel:
		if tier == ledger.TierProvider {
			return f.model(v, name, f.upstreamNames)
		}
		return f.model(v, name, f.modelNames)
	case DimensionEndpoint:
		return f.endpoint(v, name, endpointNames)
	case DimensionApp:
		return v.app(name)
	case DimensionUser:
		return v.user(name)
	default:
		return true
	}
}

// ofProviders reports the dimension provider_key in another tier: a key is its provider's, and one of the same name another's.
func (v value) ofProviders(tier ledger.Tier) bool {
	if tier != ledger.TierProvider {
		v.fail("provider_key belongs to the tier provider: make it a limit of that tier")
	}
	return tier == ledger.TierProvider
}

// providerKey reports a key that no provider has.
func (f *file) providerKey(v value, name string) bool {
	if !contains(f.providerKeyNames, name) {
		v.fail("unknown key of a provider %s; %s", quote(name), f.r.choices(name, f.providerKeyNames))
		return false
	}
	return true
}

func (v value) app(name string) bool {
	if err := CheckApp(name); err != nil {
		v.fail("%s", err)
		return false
	}
	return true
}

// user checks a user's name, or "app/user"; only the first slash separates.
func (v value) user(name string) bool {
	app, user, scoped := strings.Cut(name, "/")
	if scoped && user == "" {
		v.fail("%s names no user: write app/user, or user for every app", quote(name))
		return false
	}
	return !scoped || v.app(app)
}

// by reads what splits the counters of a limit of the tier.
func (f *file) by(v value, tier ledger.Tier) []Dimension {
	var dimensions []Dimension
	for _, v := range v.texts() {
		d, ok := choice(v, "dimension", byDimensions...)
		switch {
		case !ok:
		case string(d) == string(tier):
			v.fail("the tier %s has a counter for each %s already: remove it", tier, d)
		case d == DimensionProviderKey && !v.ofProviders(tier):
		case slices.Contains(dimensions, d):
			v.fail("%s is repeated: keep one", quote(string(d)))
		default:
			dimensions = append(dimensions, d)
		}
	}
	return dimensions
}

func (f *file) overrides(l *Limit, v value) {
	if l.Tier == ledger.TierPlatform || l.Tier == ledger.TierCluster {
		v.fail("the tier %s has one subject: change the limit itself", l.Tier)
		return
	}
	for _, e := range v.entries() {
		f.subject(e.key, l.Tier, e.name)
		l.Overrides = append(l.Overrides, l.override(e))
	}
}

// subject reports a name that no subject of the tier can have.
func (f *file) subject(v value, tier ledger.Tier, name string) {
	switch tier {
	case ledger.TierProvider:
		f.knownProvider(v, name)
	case ledger.TierPlan:
		f.plan(v, name)
	case ledger.TierApp:
		v.app(name)
	case ledger.TierUser:
		v.user(name)
	case ledger.TierEndpoint:
		f.endpoint(v, name, endpointPaths)
	case ledger.TierIP:
		f.ip(v, name)
	case ledger.TierPlatform, ledger.TierCluster, ledger.TierKey:
	}
}

// override reads another value in the limit's own unit.
func (l *Limit) override(e entry) Override {
	o := Override{Name: e.name, Line: e.key.node.Line}
	unit := string(l.Unit())
	if l.Concurrency > 0 {
		unit = "concurrency"
	}
	rec := e.record("usd", "tokens", "requests", "concurrency", "burst", "until")
	if v, ok := rec.get("until"); ok {
		o.Until, _ = v.instant(false)
	}
	if unit == "" {
		return o // what the limit limits has been reported
	}
	for _, other := range []string{"usd", "tokens", "requests", "concurrency"} {
		if v, ok := rec.get(other); ok && other != unit {
			v.fail("the limit is on %s: an override must be so too", unit)
			return o
		}
	}
	amount, ok := rec.require(unit, "an override gives the subject another amount")
	if !ok {
		return o
	}
	burst, hasBurst := rec.get("burst")
	switch {
	case l.Rate != nil:
		declared, _ := quantity(amount, l.Rate.Unit, 1, maxRate)
		o.Value = l.Rate.less(declared, amount)
		if hasBurst {
			o.Burst = l.Rate.burst(burst, o.Value)
		} else if l.Rate.Algorithm == ledger.AlgorithmTokenBucket {
			o.Burst = o.Value
		}
		return o
	case l.Budget != nil:
		o.Value, _ = quantity(amount, l.Budget.Unit, 0, math.MaxInt64)
	default:
		o.Value, _ = amount.count("requests in flight", 1, maxRate)
	}
	if hasBurst {
		burst.fail("burst belongs to rates: remove it")
	}
	return o
}
