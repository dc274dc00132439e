package policy

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tollgate/ledger"
)

// text reads a text that is not empty, ${NAME} replaced.
func (v value) text() (string, bool) {
	if v.node.Kind != yaml.ScalarNode || v.null() {
		v.mismatch("a text")
		return "", false
	}
	if v.node.ShortTag() != "!!str" {
		v.fail("expected a text, found %s: put it in quotes", v.describe())
		return "", false
	}
	text, ok := v.expand(v.node.Value)
	if !ok {
		return "", false
	}
	if text == "" {
		v.fail("is empty: give a text, or remove the field")
		return "", false
	}
	return text, true
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces ${NAME} from the environment and $$ by $. A dollar sign before anything else stands for itself.
func (v value) expand(text string) (string, bool) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		switch {
		case !found:
			return b.String(), true
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "{"):
			name, after, closed := strings.Cut(rest[1:], "}")
			if !closed {
				v.fail("${ is never closed: write ${NAME}, or $$ for a dollar sign")
				return "", false
			}
			if !envName.MatchString(name) {
				v.fail("${%s}: %s is not the name of an environment variable", shorten(name), quote(name))
				return "", false
			}
			replacement, set := v.r.lookupEnv(name)
			if !set {
				v.fail("environment variable %s is not set", name)
				return "", false
			}
			b.WriteString(replacement)
			text = after
		default:
			b.WriteByte('$')
			text = rest
		}
	}
}

// choice reads one of the options; what names their kind.
func choice[T ~string](v value, what string, options ...T) (T, bool) {
	text, ok := v.text()
	if !ok {
		return "", false
	}
	names := make([]string, len(options))
	for i, option := range options {
		if text == string(option) {
			return option, true
		}
		names[i] = string(option)
	}
	v.fail("unknown %s %s; %s", what, quote(text), v.r.choices(text, names))
	return "", false
}

// texts reads one text or a list of at least one, each once.
func (v value) texts() []value {
	if v.node.Kind != yaml.SequenceNode {
		return []value{v}
	}
	if len(v.node.Content) == 0 {
		v.fail("is empty: name at least one, or remove the field")
	}
	return v.items()
}

var (
	wholeNumber = regexp.MustCompile(`^[0-9]{1,3}(_[0-9]{3})+$|^[0-9]+$`)
	decimal     = regexp.MustCompile(`^([0-9]{1,3}(_[0-9]{3})+|[0-9]+)(\.[0-9]+)?$`)
	fraction    = regexp.MustCompile(`^[0-9]*\.[0-9]+$|^[0-9]+\.$`)
	percentage  = regexp.MustCompile(`^([0-9]{1,3})(?:\.([0-9]{1,2}))?%$`)
)

// number checks that the node is an unquoted number of the given form and returns its digits without separators.
func (v value) number(form *regexp.Regexp, want string) (string, bool) {
	text := v.node.Value
	tag := v.node.ShortTag()
	if v.node.Kind == yaml.ScalarNode && tag == "!!str" && form.MatchString(text) {
		v.fail("expected %s, found %s: remove the quotes", want, v.describe())
		return "", false
	}
	if v.node.Kind != yaml.ScalarNode || tag != "!!int" && tag != "!!float" {
		v.mismatch(want)
		return "", false
	}
	switch {
	case strings.HasPrefix(text, "-"):
		v.fail("%s is negative: give zero or more", quote(text))
	case len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9':
		v.fail("%s begins with a zero, which some readers take for octal: remove it", quote(text))
	case !form.MatchString(text):
		v.fail("expected %s, found %s: write plain decimal digits", want, quote(text))
	default:
		return strings.ReplaceAll(text, "_", ""), true
	}
	return "", false
}

// count reads a whole number from least up to most.
func (v value) count(what string, least, most int64) (int64, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!float" && fraction.MatchString(v.node.Value) {
		v.fail("%s is a fraction: %s are counted whole", quote(v.node.Value), what)
		return 0, false
	}
	digits, ok := v.number(wholeNumber, "a whole number of "+what)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil || n > most:
		v.fail("%s %s are too many: at most %d", quote(v.node.Value), what, most)
	case n < least && n == 0:
		v.fail("0 %s allow nothing: give at least %d", what, least)
	case n < least:
		v.fail("%d %s are too few: give at least %d", n, what, least)
	default:
		return n, true
	}
	return 0, false
}

// usd reads a decimal number of dollars, zero or more.
func (v value) usd() (ledger.NanoUSD, bool) {
	digits, ok := v.number(decimal, "a number of dollars")
	if !ok {
		return 0, false
	}
	if len(digits) > 64 {
		v.fail("%s is too long for a number of dollars", quote(digits))
		return 0, false
	}
	amount, err := ledger.ParseUSD(digits)
	if err != nil {
		v.fail("%s", err)
		return 0, false
	}
	return amount, true
}

func (v value) boolean() bool {
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!bool" {
		v.mismatch("true or false")
		return false
	}
	return strings.EqualFold(v.node.Value, "true")
}

// duration reads a span such as 500ms, 10s or 15m, from least up to most.
func (v value) duration(least, most time.Duration) (time.Duration, bool) {
	if v.node.Kind == yaml.ScalarNode && (v.node.ShortTag() == "!!int" || v.node.ShortTag() == "!!float") {
		v.fail("%s has no unit: write a time such as 500ms, 10s or 15m", quote(v.node.Value))
		return 0, false
	}
	text, ok := v.text()
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		v.fail("%s is not a span of time: write one such as 500ms, 10s or 15m", quote(text))
	case d < least:
		v.fail("%s is too short: at least %s", quote(text), least)
	case d > most:
		v.fail("%s is too long: at most %s", quote(text), most)
	default:
		return d, true
	}
	return 0, false
}

// percent reads a share such as 30% or 2.5% below a whole, in hundredths of a percent.
func (v value) percent() (int64, bool) {
	if v.node.Kind != yaml.ScalarNode || v.null() {
		v.mismatch("a percentage such as 30%")
		return 0, false
	}
	parts := percentage.FindStringSubmatch(v.node.Value)
	if parts == nil {
		v.fail("%s is not a percentage: write one such as 30%% or 2.5%%, with at most two decimals", quote(v.node.Value))
		return 0, false
	}
	n, err := strconv.ParseInt(parts[1]+(parts[2] + "00")[:2], 10, 64)
	if err != nil || n >= 100_00 {
		v.fail("%s is too much: stay below 100%%", quote(v.node.Value))
		return 0, false
	}
	return n, true
}

// instant reads an RFC 3339 time; with dates, also a date, which means its first instant in UTC.
func (v value) instant(dates bool) (time.Time, bool) {
	if v.node.Kind != yaml.ScalarNode || v.null() {
		v.mismatch("a time such as 2026-12-02T00:00:00Z")
		return time.Time{}, false
	}
	if t, err := time.Parse(time.RFC3339, v.node.Value); err == nil {
		return t.UTC(), true
	}
	advice := "write it as 2026-12-02T00:00:00Z, with its offset from UTC"
	if dates {
		if t, err := time.Parse(time.DateOnly, v.node.Value); err == nil {
			return t, true
		}
		advice = "write a date as 2026-12-02, or a time as 2026-12-02T00:00:00Z"
	}
	v.fail("%s is not a time: %s", quote(v.node.Value), advice)
	return time.Time{}, false
}
