package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// field is one member of a structured field that is a list of strings: "name";q=10;qu="unit".
type field struct {
	name   string
	params map[string]any // int64 or string
}

// parseFields reads a list of strings with parameters that are integers or strings (RFC 9651, section 4.2). It is strict, because
// readers throw away a field that breaks a rule.
func parseFields(text string) ([]field, error) {
	p := &fieldParser{rest: strings.Trim(text, " ")}
	var list []field
	for {
		item, err := p.item()
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		list = append(list, item)
		if p.rest == "" {
			return list, nil
		}
		p.rest = strings.TrimLeft(p.rest, " \t")
		if !p.take(",") {
			return nil, fmt.Errorf("%q: want a comma before %q", text, p.rest)
		}
		p.rest = strings.TrimLeft(p.rest, " \t")
	}
}

type fieldParser struct{ rest string }

func (p *fieldParser) take(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	p.rest = rest
	return ok
}

func (p *fieldParser) item() (field, error) {
	name, err := p.str()
	if err != nil {
		return field{}, err
	}
	f := field{name, map[string]any{}}
	for p.take(";") {
		p.rest = strings.TrimLeft(p.rest, " ")
		key := p.while(func(c byte) bool {
			return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("_-.*", c) >= 0
		})
		if key == "" || key[0] != '*' && (key[0] < 'a' || key[0] > 'z') || !p.take("=") {
			return field{}, fmt.Errorf("no key with a value at %q", p.rest)
		}
		if strings.HasPrefix(p.rest, `"`) {
			f.params[key], err = p.str()
		} else {
			f.params[key], err = p.integer()
		}
		if err != nil {
			return field{}, err
		}
	}
	return f, nil
}

func (p *fieldParser) while(belongs func(byte) bool) string {
	n := 0
	for n < len(p.rest) && belongs(p.rest[n]) {
		n++
	}
	text := p.rest[:n]
	p.rest = p.rest[n:]
	return text
}

func (p *fieldParser) str() (string, error) {
	if !p.take(`"`) {
		return "", fmt.Errorf("no string at %q", p.rest)
	}
	var b strings.Builder
	for p.rest != "" {
		c := p.rest[0]
		p.rest = p.rest[1:]
		switch {
		case c == '"':
			return b.String(), nil
		case c == '\\' && p.rest != "" && (p.rest[0] == '"' || p.rest[0] == '\\'):
			c, p.rest = p.rest[0], p.rest[1:]
		case c < ' ' || c > '~' || c == '\\':
			return "", fmt.Errorf("byte %#x in a string", c)
		}
		b.WriteByte(c)
	}
	return "", fmt.Errorf("a string does not end")
}

// integer has at most fifteen digits.
func (p *fieldParser) integer() (int64, error) {
	sign := ""
	if p.take("-") {
		sign = "-"
	}
	digits := p.while(func(c byte) bool { return c >= '0' && c <= '9' })
	if digits == "" || len(digits) > 15 || strings.HasPrefix(p.rest, ".") {
		return 0, fmt.Errorf("no integer at %q", digits+p.rest)
	}
	return strconv.ParseInt(sign+digits, 10, 64)
}

func TestParseFields(t *testing.T) {
	t.Parallel()
	list, err := parseFields(`"a";q=10;qu="x-y" , "b\"c\\"; r=-999999999999999,"d"`)
	require.NoError(t, err)
	require.Equal(t, []field{
		{"a", map[string]any{"q": int64(10), "qu": "x-y"}}, {`b"c\`, map[string]any{"r": int64(-999999999999999)}}, {"d", map[string]any{}},
	}, list)
	for _, bad := range []string{
		``, `a;q=1`, `"a`, `"a" "b"`, `"a",`, `"a";q=`, `"a";q`, `"a";Q=1`, `"a";q=1.5`, `"a";q=1000000000000000`, `"a\n"`, "\"\x01\"", `"ä"`, `"a";q=1e3`,
	} {
		_, err := parseFields(bad)
		require.Error(t, err, bad)
	}
}
