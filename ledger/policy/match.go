package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"tollgate/ledger"
)

// Request is what limits look at. App and Key come from the caller's key, never from the caller.
type Request struct {
	App          string
	Key          string // key id
	User         string // "" when the caller named none: the key stands in
	Plan         string // "" is DefaultPlan
	Provider     string
	ProviderKey  string // name of the key that the provider is asked with
	Model        string // as the caller asked for it
	Endpoint     string // path, e.g. /v1/chat/completions
	EndpointKind string // e.g. chat, completions, embeddings, responses, messages
	IP           string
}

// Applied is one limit that a request meets.
type Applied struct {
	Limit   *Limit
	Subject string // see the package comment
	Value   int64  // what Limit allows Subject now, in the limit's unit (nano-dollars for usd); requests for concurrency
	Burst   int64  // capacity of a token bucket for Subject now; else 0
}

// overrideKey names the subject of an override; app is only set for a user of one app.
type overrideKey struct{ app, name string }

// spans is how many subjects a Match places without allocating.
const spans = 32

// Match appends to dst every limit that r meets at now, in the order of judging: tiers widest first, priority limits just
// before the user tier, otherwise as in the file. All subjects of one call share one allocation.
func (p *Policy) Match(r Request, now time.Time, dst []Applied) []Applied {
	if r.Plan == "" {
		r.Plan = DefaultPlan
	}
	upstream := r.Model
	if m := p.Models[r.Model]; m != nil {
		upstream = m.Upstream
	}
	var (
		scratch [1024]byte
		text    = scratch[:0]
		placed  [spans][2]int
		places  = placed[:0]
		first   = len(dst)
		last    *Limit
	)
	for _, l := range p.judged {
		model := r.Model
		if l.Tier == ledger.TierProvider {
			model = upstream
		}
		if !l.matches(&r, model) {
			continue
		}
		switch {
		case last != nil && last.Family == l.Family:
			places = append(places, places[len(places)-1])
		default:
			start := len(text)
			text = l.appendSubject(text, &r, model)
			places = append(places, [2]int{start, len(text)})
		}
		last = l
		value, burst := l.allows(&r, now)
		dst = append(dst, Applied{Limit: l, Value: value, Burst: burst})
	}
	subjects := string(text)
	for i, place := range places {
		dst[first+i].Subject = subjects[place[0]:place[1]]
	}
	return dst
}

func (l *Limit) matches(r *Request, model string) bool {
	for i := range l.Match {
		if !l.Match[i].holds(r, model) {
			return false
		}
	}
	return true
}

func (c *Condition) holds(r *Request, model string) bool {
	for _, want := range c.Values {
		switch c.Key {
		case DimensionEndpoint:
			if want == r.Endpoint || want == r.EndpointKind {
				return true
			}
		case DimensionUser:
			app, user, scoped := strings.Cut(want, "/")
			if scoped && app == r.App && user == r.User || !scoped && want == r.User {
				return true
			}
		default:
			if want == r.dimension(c.Key, model) {
				return true
			}
		}
	}
	return false
}

// allows is the value and burst of the limit for the request's subject, overrides included.
func (l *Limit) allows(r *Request, now time.Time) (value, burst int64) {
	if len(l.overrides) > 0 {
		if l.Tier == ledger.TierUser {
			if o := l.overrides[overrideKey{r.App, r.User}]; o.inForce(now) {
				return o.Value, o.Burst
			}
		}
		if o := l.overrides[overrideKey{"", r.subject(l.Tier)}]; o.inForce(now) {
			return o.Value, o.Burst
		}
	}
	switch {
	case l.Budget != nil:
		return l.Budget.Default, 0
	case l.Rate != nil:
		return l.Rate.Amount, l.Rate.Burst
	default:
		return l.Concurrency, 0
	}
}

func (o *Override) inForce(now time.Time) bool {
	return o != nil && (o.Until.IsZero() || now.Before(o.Until))
}

// subject is the plain name that the tier counts by; "" for the tiers with one subject.
func (r *Request) subject(tier ledger.Tier) string {
	switch tier {
	case ledger.TierProvider:
		return r.Provider
	case ledger.TierPlan:
		return r.Plan
	case ledger.TierApp:
		return r.App
	case ledger.TierKey:
		return r.Key
	case ledger.TierUser:
		return r.User
	case ledger.TierEndpoint:
		return r.Endpoint
	case ledger.TierIP:
		return r.IP
	default:
		return ""
	}
}

// dimension is the plain value of a dimension; of DimensionEndpoint the kind, where there is one.
func (r *Request) dimension(dimension Dimension, model string) string {
	switch dimension {
	case DimensionApp:
		return r.App
	case DimensionEndpoint:
		return cmp.Or(r.EndpointKind, r.Endpoint)
	case DimensionIP:
		return r.IP
	case DimensionKey:
		return r.Key
	case DimensionModel:
		return model
	case DimensionPlan:
		return r.Plan
	case DimensionProvider:
		return r.Provider
	case DimensionProviderKey:
		return r.ProviderKey
	default:
		return r.User
	}
}

// compile derives what Match needs from Limits.
func (p *Policy) compile() {
	rank := make(map[ledger.Tier]int)
	for i, tier := range ledger.Tiers() {
		rank[tier] = 2 * i
	}
	order := func(l *Limit) int {
		if l.Priority {
			return rank[ledger.TierUser] - 1
		}
		return rank[l.Tier]
	}
	for _, l := range p.Limits {
		l.setFamily()
		l.overrides = make(map[overrideKey]*Override, len(l.Overrides))
		for i := range l.Overrides {
			o := &l.Overrides[i]
			l.overrides[l.overrideKey(o.Name)] = o
		}
	}
	p.judged = slices.Clone(p.Limits)
	slices.SortStableFunc(p.judged, func(a, b *Limit) int { return cmp.Compare(order(a), order(b)) })
}

func (l *Limit) overrideKey(name string) overrideKey {
	if l.Tier == ledger.TierUser {
		if app, user, scoped := strings.Cut(name, "/"); scoped {
			return overrideKey{app, user}
		}
	}
	return overrideKey{"", name}
}
