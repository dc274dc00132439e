package policy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tollgate/ledger"
)

// Family is a family of counters, read back from its text: it says which requests its counters count, and under which
// subject, without the policy that had the limit. It never changes; any number of goroutines may use it.
type Family struct {
	limit      Limit // of which only Tier, By, Family and suffix are set
	conditions []escapedCondition
}

// escapedCondition is a Condition as a family's text has it: long values are digests, so they are compared in this form.
type escapedCondition struct {
	key    Dimension
	values []string
}

// byDimensions are what limits can be split by, matchDimensions what they can match.
var (
	byDimensions = []Dimension{
		DimensionModel, DimensionEndpoint, DimensionProvider, DimensionPlan, DimensionUser, DimensionIP, DimensionApp,
		DimensionProviderKey,
	}
	matchDimensions = []Dimension{
		DimensionPlan, DimensionApp, DimensionKey, DimensionUser, DimensionProvider, DimensionModel, DimensionEndpoint,
		DimensionProviderKey,
	}
)

// ParseFamily reads the text that Limit.Family and ledger.Counter.Family give. It errors on every other text.
func ParseFamily(text string) (*Family, error) {
	f, err := parseFamily(text)
	if err != nil {
		return nil, fmt.Errorf("family %s: %w", quote(text), err)
	}
	return f, nil
}

func parseFamily(text string) (*Family, error) {
	f := &Family{limit: Limit{Family: text}}
	head, conditions, conditioned := strings.Cut(text, "?")
	tier, by, split := strings.Cut(head, "[")
	if f.limit.Tier = ledger.Tier(tier); !slices.Contains(ledger.Tiers(), f.limit.Tier) {
		return nil, fmt.Errorf("unknown tier %s", quote(tier))
	}
	if split {
		by, closed := strings.CutSuffix(by, "]")
		if !closed {
			return nil, errors.New("what splits it is not closed")
		}
		for name := range strings.SplitSeq(by, ",") {
			d := Dimension(name)
			if !slices.Contains(byDimensions, d) || name == tier {
				return nil, fmt.Errorf("cannot be split by %s", quote(name))
			}
			if n := len(f.limit.By); n > 0 && f.limit.By[n-1] >= d {
				return nil, fmt.Errorf("%s is out of order", quote(name))
			}
			f.limit.By = append(f.limit.By, d)
		}
	}
	if !conditioned {
		return f, nil
	}
	f.limit.suffix = "?" + conditions
	for condition := range strings.SplitSeq(conditions, ",") {
		name, value, _ := strings.Cut(condition, "=")
		key := Dimension(name)
		if !slices.Contains(matchDimensions, key) || !isEscaped(value) {
			return nil, fmt.Errorf("cannot match %s", quote(condition))
		}
		switch n := len(f.conditions); {
		case n > 0 && f.conditions[n-1].key == key:
			f.conditions[n-1].values = append(f.conditions[n-1].values, value)
		case n > 0 && f.conditions[n-1].key > key:
			return nil, fmt.Errorf("%s is out of order", quote(condition))
		default:
			f.conditions = append(f.conditions, escapedCondition{key, []string{value}})
		}
	}
	return f, nil
}

// isEscaped reports whether appendName could have written the text for a name that is not empty.
func isEscaped(text string) bool {
	if digest, long := strings.CutPrefix(text, "%sha256-"); long {
		return len(digest) == 64 && strings.Trim(digest, "0123456789abcdef") == ""
	}
	length := 0
	for i := 0; i < len(text); i++ {
		length++
		b := text[i]
		if b == '%' {
			if i+2 >= len(text) {
				return false
			}
			high, low := strings.IndexByte(digits, text[i+1]), strings.IndexByte(digits, text[i+2])
			if high < 0 || low < 0 || !escaped[high<<4|low] {
				return false
			}
			i += 2
		} else if escaped[b] {
			return false
		}
	}
	return length > 0 && length <= maxName
}

// String is the text that the family was read from.
func (f *Family) String() string { return f.limit.Family }

// Tier is whose counters they are.
func (f *Family) Tier() ledger.Tier { return f.limit.Tier }

// Subject is the subject that Match gives the request in limits of the family, and false when they do not match it. upstream
// is the model asked of the provider.
func (f *Family) Subject(r Request, upstream string) (string, bool) {
	if r.Plan == "" {
		r.Plan = DefaultPlan
	}
	model := r.Model
	if f.limit.Tier == ledger.TierProvider {
		model = upstream
	}
	for i := range f.conditions {
		if !f.conditions[i].holds(&r, model) {
			return "", false
		}
	}
	var scratch [256]byte
	return string(f.limit.appendSubject(scratch[:0], &r, model)), true
}

func (c *escapedCondition) holds(r *Request, model string) bool {
	names := [2]string{r.dimension(c.key, model), ""}
	switch c.key {
	case DimensionEndpoint:
		names = [2]string{r.Endpoint, r.EndpointKind}
	case DimensionUser:
		// Of a value with slashes the first one ends the app's name.
		if strings.Contains(r.User, "/") {
			names[0] = ""
		}
		if r.User != "" && !strings.Contains(r.App, "/") {
			names[1] = r.App + "/" + r.User
		}
	}
	var scratch [256]byte
	for _, name := range names {
		if name == "" {
			continue // no value is empty
		}
		text := appendName(scratch[:0], name, false)
		if slices.ContainsFunc(c.values, func(value string) bool { return bytes.Equal(text, []byte(value)) }) {
			return true
		}
	}
	return false
}

// Dimensions lists, in order, what the family looks at in a request, the owner of its counters included: requests that are
// alike in them have the same counter.
func (f *Family) Dimensions() []Dimension {
	var found []Dimension
	switch f.limit.Tier {
	case ledger.TierPlatform, ledger.TierCluster:
	case ledger.TierUser:
		found = append(found, DimensionApp, DimensionKey, DimensionUser)
	case ledger.TierKey:
		found = append(found, DimensionApp, DimensionKey)
	default:
		found = append(found, Dimension(f.limit.Tier))
	}
	for _, d := range f.limit.By {
		if d == DimensionUser {
			found = append(found, DimensionApp, DimensionKey)
		}
		found = append(found, d)
	}
	for _, c := range f.conditions {
		if c.key == DimensionUser {
			found = append(found, DimensionApp)
		}
		found = append(found, c.key)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Fillable reports whether the ledger can say what the family's counters count: it knows no IP addresses.
func (f *Family) Fillable() bool { return f.limit.fillable() }

func (l *Limit) fillable() bool {
	return l.Tier != ledger.TierIP && !slices.Contains(l.By, DimensionIP)
}

// EndpointKind is the kind that limits know the path by, "" for a path without one.
func EndpointKind(path string) string { return endpointKinds[path] }
