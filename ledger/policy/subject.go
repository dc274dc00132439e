package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"tollgate/ledger"
)

// maxName is the longest name, in bytes, that stands in a subject as it is.
const maxName = 128

// escaped marks the bytes that a name in a subject never contains as they are.
var escaped = func() (set [256]bool) {
	for b := range set {
		set[b] = b <= ' ' || b >= 0x7f || strings.IndexByte("[]?,=:{}%~", byte(b)) >= 0
	}
	return set
}()

const digits = "0123456789ABCDEF"

// appendName appends a name so that different names give different bytes. In parts of a compound name "/" separates and is
// therefore escaped too.
func appendName(dst []byte, name string, part bool) []byte {
	switch {
	case name == "":
		return append(dst, "%-"...)
	case len(name) > maxName:
		sum := sha256.Sum256([]byte(name))
		return hex.AppendEncode(append(dst, "%sha256-"...), sum[:])
	}
	for i := range len(name) {
		b := name[i]
		if escaped[b] || part && b == '/' {
			dst = append(dst, '%', digits[b>>4], digits[b&15])
		} else {
			dst = append(dst, b)
		}
	}
	return dst
}

// appendUser appends the user within its app; the key stands in for a user without a name. No user's own name begins like
// that, because "~" is escaped.
func appendUser(dst []byte, r *Request) []byte {
	dst = append(appendName(dst, r.App, true), '/')
	if r.User == "" {
		return appendName(append(dst, '~'), r.Key, true)
	}
	return appendName(dst, r.User, true)
}

func (l *Limit) appendSubject(dst []byte, r *Request, model string) []byte {
	dst = append(append(dst, l.Tier...), ':')
	switch l.Tier {
	case ledger.TierPlatform, ledger.TierCluster:
		dst = append(dst, "all"...)
	case ledger.TierUser:
		dst = appendUser(dst, r)
	default:
		dst = appendName(dst, r.subject(l.Tier), false)
	}
	for i, dimension := range l.By {
		separator := byte(',')
		if i == 0 {
			separator = '['
		}
		dst = append(append(append(dst, separator), dimension...), '=')
		if dimension == DimensionUser {
			dst = appendUser(dst, r)
		} else {
			dst = appendName(dst, r.dimension(dimension, model), false)
		}
	}
	if len(l.By) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, l.suffix...)
}

// setFamily brings By and Match into their canonical order and derives Family and the end of every subject from them.
func (l *Limit) setFamily() {
	slices.Sort(l.By)
	slices.SortFunc(l.Match, func(a, b Condition) int { return strings.Compare(string(a.Key), string(b.Key)) })
	var suffix []byte
	for _, condition := range l.Match {
		slices.Sort(condition.Values)
		for _, value := range condition.Values {
			separator := byte(',')
			if len(suffix) == 0 {
				separator = '?'
			}
			suffix = append(append(append(suffix, separator), condition.Key...), '=')
			suffix = appendName(suffix, value, false)
		}
	}
	l.suffix = string(suffix)
	by := make([]string, len(l.By))
	for i, dimension := range l.By {
		by[i] = string(dimension)
	}
	l.Family = string(l.Tier)
	if len(by) > 0 {
		l.Family += "[" + strings.Join(by, ",") + "]"
	}
	l.Family += l.suffix
}
