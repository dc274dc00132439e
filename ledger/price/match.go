package price

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Match says which names of a model a row prices. Exactly one field is set; the zero Match accepts nothing by itself.
// Upper and lower case are the same.
type Match struct {
	Equals   string  `json:"equals,omitempty"`
	Prefix   string  `json:"prefix,omitempty"`
	Suffix   string  `json:"suffix,omitempty"`
	Contains string  `json:"contains,omitempty"`
	Regex    string  `json:"regex,omitempty"` // RE2, found anywhere in the name in lower case
	Any      []Match `json:"any,omitempty"`
	All      []Match `json:"all,omitempty"`
}

// IsZero reports whether no rule is set.
func (m Match) IsZero() bool {
	return m.Equals == "" && m.Prefix == "" && m.Suffix == "" && m.Contains == "" && m.Regex == "" &&
		len(m.Any) == 0 && len(m.All) == 0
}

// matcher judges a name in lower case.
type matcher func(name string) bool

// compile turns the rule into a function, or says what is wrong with it.
func (m Match) compile() (matcher, error) {
	var made []matcher
	text := func(value string, judge func(name, value string) bool) {
		if value != "" {
			value = strings.ToLower(value)
			made = append(made, func(name string) bool { return judge(name, value) })
		}
	}
	text(m.Equals, func(name, value string) bool { return name == value })
	text(m.Prefix, strings.HasPrefix)
	text(m.Suffix, strings.HasSuffix)
	text(m.Contains, strings.Contains)
	if m.Regex != "" {
		re, err := regexp.Compile(m.Regex)
		if err != nil {
			return nil, fmt.Errorf("match: %w", err)
		}
		made = append(made, re.MatchString)
	}
	for _, group := range []struct {
		rules []Match
		stop  bool // the answer of one rule that settles the group
	}{{m.Any, true}, {m.All, false}} {
		if len(group.rules) == 0 {
			continue
		}
		parts, err := compileAll(group.rules)
		if err != nil {
			return nil, err
		}
		made = append(made, func(name string) bool {
			for _, part := range parts {
				if part(name) == group.stop {
					return group.stop
				}
			}
			return !group.stop
		})
	}
	if len(made) != 1 {
		return nil, errors.New("match: exactly one rule must be set")
	}
	return made[0], nil
}

func compileAll(rules []Match) ([]matcher, error) {
	parts := make([]matcher, 0, len(rules))
	for _, rule := range rules {
		part, err := rule.compile()
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// alternatives splits the rule into names that it accepts by equality, in lower case, and all else.
func (m Match) alternatives() (names []string, rest []Match) {
	if m.Equals != "" {
		return []string{strings.ToLower(m.Equals)}, nil
	}
	if len(m.Any) == 0 {
		return nil, []Match{m}
	}
	for _, part := range m.Any {
		n, r := part.alternatives()
		names, rest = append(names, n...), append(rest, r...)
	}
	return names, rest
}
