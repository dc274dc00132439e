package policy

import (
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"tollgate/ledger"
)

const (
	// maxRate bounds the amounts of rates, whose arithmetic in Redis is in doubles.
	maxRate = 1_000_000_000_000
	// maxRefill is the longest an empty bucket may take to fill, for the same reason.
	maxRefill = 366 * 24 * time.Hour
	// maxConditions keeps a subject, with its names, below what an index of the ledger takes.
	maxConditions = 1500
	// logWarning is how many requests a sliding log keeps, in memory, for each subject before it is worth a warning.
	logWarning = 10_000
)

// Throttling when the policy says no more.
const (
	defaultMaxWait  = 10 * time.Second
	defaultMaxDepth = 100
)

// listPath is the endpoint that is free of all limits, although they can name it.
const listPath = "/v1/models"

// endpointKinds are the endpoints that limits can name, by path.
var endpointKinds = map[string]string{
	"/v1/chat/completions": "chat",
	"/v1/completions":      "completions",
	"/v1/embeddings":       "embeddings",
	"/v1/messages":         "messages",
	listPath:               "models",
	"/v1/responses":        "responses",

	"/v1/images/generations":   "images",
	"/v1/images/edits":         "images",
	"/v1/audio/speech":         "speech",
	"/v1/audio/transcriptions": "transcriptions",
	"/v1/audio/translations":   "transcriptions",
	"/v1/moderations":          "moderations",

	"/v1beta/models:generateContent":       "generate",
	"/v1beta/models:streamGenerateContent": "generate",
	"/v1beta/models:embedContent":          "embed",
	"/v1beta/models:batchEmbedContents":    "embed",
}

var endpointPaths, endpointNames = func() (paths, names []string) {
	paths = sorted(endpointKinds)
	for _, path := range paths {
		names = append(names, endpointKinds[path])
	}
	names = append(names, paths...)
	slices.Sort(names)
	return paths, slices.Compact(names)
}()

func (f *file) limits(top record) {
	lines := make(map[string]int)
	if v, ok := top.get("limits"); ok {
		for _, item := range v.items() {
			l := f.limit(item)
			if line := lines[l.Name]; line > 0 && l.Name != "" {
				item.fail("the name %s is taken by the limit in line %d: use another", quote(l.Name), line)
			}
			lines[l.Name] = l.Line
			f.policy.Limits = append(f.policy.Limits, l)
		}
	}
	if len(f.policy.Limits) == 0 {
		top.warn("no limits are declared: nothing is limited")
	}
}

func (f *file) limit(item value) *Limit {
	l := &Limit{Line: item.node.Line}
	rec := item.record("name", "tier", "match", "by", "budget", "rate", "concurrency", "hard", "overrides", "priority",
		"shadow", "on_exceed")
	if v, ok := rec.require("name", "refusals and reports name the limit by it"); ok {
		l.Name, _ = v.text()
		if len(l.Name) > maxOwnName || strings.Trim(l.Name, nameBytes+".") != "" {
			v.fail("%s cannot be a limit's name: use at most %d letters, digits, ., _ and -", quote(l.Name), maxOwnName)
		}
	}
	if v, ok := rec.require("tier", "say whose counters they are, e.g. app"); ok {
		l.Tier, _ = choice(v, "tier", ledger.Tiers()...)
	}
	if v, ok := rec.get("by"); ok {
		l.By = f.by(v, l.Tier)
	}
	if v, ok := rec.get("match"); ok {
		l.Match = f.match(v, l.Tier)
		if l.setFamily(); len(l.suffix) > maxConditions {
			v.fail("the conditions take %d bytes in the name of every counter, at most %d: match fewer names, or a plan that they share",
				len(l.suffix), maxConditions)
		}
	}
	f.measure(l, rec)
	f.switches(l, rec)
	if v, ok := rec.get("on_exceed"); ok {
		answer := v.onExceed()
		l.OnExceed = &answer
	}
	if v, ok := rec.get("overrides"); ok {
		f.overrides(l, v)
	}
	return l
}

// measure reads what the limit limits: exactly one of budget, rate and concurrency.
func (f *file) measure(l *Limit, rec record) {
	var found []string
	if v, ok := rec.get("budget"); ok {
		found = append(found, "budget")
		_, overridden := rec.get("overrides")
		l.Budget = v.budget(overridden)
	}
	if v, ok := rec.get("rate"); ok {
		found = append(found, "rate")
		l.Rate = v.rate()
	}
	if v, ok := rec.get("concurrency"); ok {
		found = append(found, "concurrency")
		l.Concurrency, _ = v.count("requests in flight", 1, maxRate)
	}
	switch {
	case len(found) > 1:
		rec.fail("%s in one limit: make a limit of each", strings.Join(found, " and "))
		l.Budget, l.Rate, l.Concurrency = nil, nil, 0
	case len(found) == 0 && rec.isMap():
		rec.fail("the limit limits nothing: give budget, rate or concurrency")
	}
}

func (f *file) switches(l *Limit, rec record) {
	if v, ok := rec.get("hard"); ok {
		l.Hard = v.boolean()
		if _, budget := rec.get("budget"); l.Hard && !budget {
			v.fail("hard belongs to budgets: remove it")
		}
	}
	if v, ok := rec.get("priority"); ok {
		l.Priority = v.boolean()
		if l.Priority && l.Tier != ledger.TierEndpoint {
			v.fail("priority belongs to the tier endpoint: remove it")
		}
	}
	if v, ok := rec.get("shadow"); ok {
		l.Shadow = v.boolean()
	}
}

func (v value) budget(overridden bool) *Budget {
	rec := v.record("usd", "tokens", "requests", "per")
	b := &Budget{}
	if unit, amount, ok := rec.amount("usd", "tokens", "requests"); ok {
		b.Unit = unit
		b.Default, ok = quantity(amount, unit, 0, math.MaxInt64)
		// Of 0 in total is a prepaid balance: what is granted may be spent.
		if per, _ := rec.get("per"); ok && b.Default == 0 && !overridden && (per.node == nil || per.node.Value != string(ledger.PeriodTotal)) {
			amount.fail("a budget of 0 refuses everyone: give more, or overrides for those who may pass")
		}
	}
	if v, ok := rec.require("per", "give day, week, month or total"); ok {
		b.Period, _ = choice(v, "period", ledger.PeriodDay, ledger.PeriodWeek, ledger.PeriodMonth, ledger.PeriodTotal)
	}
	return b
}

// amount finds the one field that gives the amount.
func (rec record) amount(units ...string) (ledger.Unit, value, bool) {
	var unit string
	for _, name := range units {
		if _, ok := rec.get(name); !ok {
			continue
		}
		if unit != "" {
			rec.fail("%s and %s in one limit: make a limit of each", unit, name)
			return "", value{}, false
		}
		unit = name
	}
	if unit == "" {
		if rec.isMap() {
			rec.fail("no amount: give %s", strings.Join(units, " or "))
		}
		return "", value{}, false
	}
	return ledger.Unit(unit), rec.fields[unit], true
}

// quantity reads an amount in the unit: nano-dollars for usd.
func quantity(v value, unit ledger.Unit, least, most int64) (int64, bool) {
	if unit == ledger.UnitUSD {
		amount, ok := v.usd()
		return int64(amount), ok
	}
	return v.count(string(unit), least, most)
}

var windows = map[string]time.Duration{
	"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
}

func (v value) rate() *Rate {
	rec := v.record("requests", "tokens", "per", "algorithm", "burst", "headroom")
	rate := &Rate{Algorithm: ledger.AlgorithmSlidingLog}
	if v, ok := rec.get("headroom"); ok {
		rate.Headroom, _ = v.percent()
	}
	if unit, amount, ok := rec.amount("requests", "tokens"); ok {
		rate.Unit = unit
		rate.Declared, _ = quantity(amount, unit, 1, maxRate)
		rate.Amount = rate.less(rate.Declared, amount)
	}
	if v, ok := rec.require("per", "give second, minute, hour or day"); ok {
		name, _ := choice(v, "window", "second", "minute", "hour", "day")
		rate.Window = windows[name]
	}
	if v, ok := rec.get("algorithm"); ok {
		rate.Algorithm, _ = choice(v, "algorithm", ledger.AlgorithmTokenBucket, ledger.AlgorithmSlidingLog,
			ledger.AlgorithmSlidingCounter, ledger.AlgorithmFixedWindow)
	}
	if v, ok := rec.get("burst"); ok {
		rate.Burst = rate.burst(v, rate.Amount)
	} else if rate.Algorithm == ledger.AlgorithmTokenBucket {
		rate.Burst = rate.Amount
	}
	if rate.Algorithm == ledger.AlgorithmSlidingLog && rate.Unit == ledger.UnitRequests && rate.Amount > logWarning {
		v.warn("a sliding_log keeps each of %d requests in memory for every subject: consider token_bucket", rate.Amount)
	}
	return rate
}

// less takes the headroom off a declared amount, rounding down.
func (r *Rate) less(declared int64, v value) int64 {
	const whole = 100_00
	hi, lo := bits.Mul64(uint64(declared), uint64(whole-r.Headroom))
	amount, _ := bits.Div64(hi, lo, whole)
	if amount == 0 && declared > 0 {
		v.fail("nothing is left of %d after headroom: give more, or less headroom", declared)
	}
	return int64(amount)
}

// burst reads the capacity of a bucket that refills at amount a window.
func (r *Rate) burst(v value, amount int64) int64 {
	if r.Algorithm != ledger.AlgorithmTokenBucket {
		v.fail("burst belongs to algorithm token_bucket: remove it, or change the algorithm")
		return 0
	}
	burst, ok := v.count(string(r.Unit), 1, maxRate)
	if !ok || amount == 0 || r.Window == 0 {
		return burst
	}
	// burst / amount windows, compared without overflow.
	fillHi, fillLo := bits.Mul64(uint64(burst), uint64(r.Window))
	mostHi, mostLo := bits.Mul64(uint64(amount), uint64(maxRefill))
	if fillHi > mostHi || fillHi == mostHi && fillLo > mostLo {
		v.fail("an empty bucket would take more than a year to fill: give a smaller burst or a faster rate")
	}
	return burst
}

func (v value) onExceed() OnExceed {
	rec := v.record("action", "max_wait", "max_depth")
	answer := OnExceed{Action: ActionReject}
	v, ok := rec.require("action", "give reject, throttle, fallback or flag")
	if !ok {
		return answer
	}
	if answer.Action, ok = choice(v, "action", ActionReject, ActionThrottle, ActionFallback, ActionFlag); !ok {
		return answer
	}
	wait, hasWait := rec.get("max_wait")
	depth, hasDepth := rec.get("max_depth")
	if answer.Action != ActionThrottle {
		for _, v := range []struct {
			value
			has bool
		}{{wait, hasWait}, {depth, hasDepth}} {
			if v.has {
				v.fail("belongs to action throttle, and this is %s: remove it", answer.Action)
			}
		}
		return answer
	}
	answer.MaxWait, answer.MaxDepth = defaultMaxWait, defaultMaxDepth
	if hasWait {
		answer.MaxWait, _ = wait.duration(time.Millisecond, time.Hour)
	}
	if hasDepth {
		n, _ := depth.count("waiting requests", 1, 1_000_000)
		answer.MaxDepth = int(n)
	}
	return answer
}

// endpoint reports an endpoint that is neither one of the paths nor, where kinds may stand too, one of those.
func (f *file) endpoint(v value, name string, names []string) bool {
	if !contains(names, name) {
		what := "endpoint"
		if strings.HasPrefix(name, "/") {
			what = "path"
		}
		v.fail("unknown %s %s; %s", what, quote(name), f.r.choices(name, names))
		return false
	}
	if name == listPath || name == endpointKinds[listPath] {
		v.warn("%s never binds: the list of models is answered from this policy, and takes from no limit", quote(name))
	}
	return true
}

// ip reports what no client's address is counted as: IPv4 addresses stand for themselves, IPv6 addresses for their /64, both
// in their usual form, because no request is matched by another spelling.
func (f *file) ip(v value, name string) {
	addr, err := netip.ParseAddr(name)
	prefix, prefixErr := netip.ParsePrefix(name)
	if prefixErr == nil {
		addr = prefix.Addr()
	}
	addr = addr.Unmap()
	switch {
	case err != nil && prefixErr != nil || addr.Zone() != "":
		v.fail("%s is not an IP address", quote(name))
	case addr.Is4() && prefixErr == nil:
		v.fail("%s is a network: IPv4 is counted by single address, so write one", quote(name))
	case addr.Is4() && addr.String() != name:
		v.fail("%s: write the address as %s", quote(name), addr)
	case prefixErr == nil && prefix.Bits() != 64:
		v.fail("%s: IPv6 is counted by network of 64 bits: name each of them", quote(name))
	case addr.Is6():
		if counted := netip.PrefixFrom(addr, 64).Masked().String(); counted != name {
			v.fail("%s: IPv6 is counted by network of 64 bits: write %s", quote(name), counted)
		}
	}
}
