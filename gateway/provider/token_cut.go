package provider

import (
	"unicode"
	"unicode/utf8"
)

// kind is a set of what a character is to the vocabularies' patterns.
type kind uint8

const (
	kindBlank   kind = 1 << iota
	kindNewline      // a blank, too
	kindNumber
	kindUpper // a letter that can begin a word of o200k: upper or title case
	kindLower // one that can go on with it: lower case
	kindBoth  // a letter without case, or a mark
	kindMark  // no letter, but both to o200k

	kindLetter  = kindUpper | kindLower | kindBoth
	kindSpecial = kindBlank | kindNumber | kindLetter
)

// kinds has the kinds of the characters below its length; the few letters behind it are in unicode's tables.
var kinds = func() []kind {
	k := make([]kind, 0x20000)
	set := func(table *unicode.RangeTable, is kind) {
		each := func(from, to, stride uint32) {
			for r := from; r <= to && r < uint32(len(k)); r += stride {
				k[r] |= is
			}
		}
		for _, r := range table.R16 {
			each(uint32(r.Lo), uint32(r.Hi), uint32(r.Stride))
		}
		for _, r := range table.R32 {
			each(r.Lo, r.Hi, r.Stride)
		}
	}
	for _, s := range kindTables {
		set(s.table, s.kind)
	}
	k['\r'] |= kindNewline
	k['\n'] |= kindNewline
	return k
}()

var kindTables = []struct {
	table *unicode.RangeTable
	kind  kind
}{
	{unicode.White_Space, kindBlank},
	{unicode.N, kindNumber},
	{unicode.Lu, kindUpper},
	{unicode.Lt, kindUpper},
	{unicode.Ll, kindLower},
	{unicode.Lm, kindBoth},
	{unicode.Lo, kindBoth},
	{unicode.M, kindBoth | kindMark},
}

// kindAt gives the kind and the length of the character at the start of s; 0 and 0 at the end. A byte that is no UTF-8 has
// no kind, like a sign.
func kindAt(s string) (kind, int) {
	if len(s) == 0 {
		return 0, 0
	}
	if c := s[0]; c < utf8.RuneSelf {
		return kinds[c], 1
	}
	r, size := utf8.DecodeRuneInString(s)
	if int(r) < len(kinds) {
		return kinds[r], size
	}
	var k kind
	for _, t := range kindTables {
		if unicode.Is(t.table, r) {
			k |= t.kind
		}
	}
	return k, size
}

// run is the length of the characters at the start of s that have one of the kinds in want and none of those in but.
func run(s string, want, but kind) int {
	n := 0
	for n < len(s) {
		k, size := kindAt(s[n:])
		if k&want == 0 || k&but != 0 {
			break
		}
		n += size
	}
	return n
}

// cutO200K cuts by the pattern of o200k_base, in its order: a word with the character before it and a contraction behind it,
// where a new word begins at a capital after a small letter; up to three digits; signs with the blank before them and the
// newlines and slashes behind them; blanks.
func cutO200K(s string) int {
	first, size := kindAt(s)
	canLead := first&(kindNumber|kindNewline) == 0 && (first&kindLetter == 0 || first&kindMark != 0)
	if canLead {
		if n := lowerWord(s[size:]); n > 0 {
			n += size
			return n + contraction(s[n:])
		}
	}
	if n := lowerWord(s); n > 0 {
		return n + contraction(s[n:])
	}
	if canLead {
		if n := upperWord(s[size:]); n > 0 {
			n += size
			return n + contraction(s[n:])
		}
	}
	if n := upperWord(s); n > 0 {
		return n + contraction(s[n:])
	}
	return cutRest(s, first, size, true)
}

// lowerWord is the length of a word that has a small letter, or one without case, at its end: capitals first.
func lowerWord(s string) int {
	n, both := 0, 0
	for n < len(s) {
		k, size := kindAt(s[n:])
		if k&(kindUpper|kindBoth) == 0 {
			if k&kindLower != 0 {
				return n + run(s[n:], kindLower|kindBoth, 0)
			}
			break
		}
		n += size
		if k&kindBoth != 0 {
			both = n // what follows are capitals: they begin another word
		}
	}
	return both
}

// upperWord is the length of a word of capitals.
func upperWord(s string) int { return run(s, kindUpper|kindBoth, 0) }

// contraction is the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of s.
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch lower(s[1]) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && lower(s[2]) == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && lower(s[2]) == 'l' {
			return 3
		}
	case 0xc5: // ſ is an s to a pattern that ignores case
		if len(s) > 2 && s[2] == 0xbf {
			return 3
		}
	}
	return 0
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// cutCL100K cuts by the pattern of cl100k_base: contractions stand alone, a word is any letters, a mark is a sign.
func cutCL100K(s string) int {
	if n := contraction(s); n > 0 {
		return n
	}
	first, size := kindAt(s)
	if isLetter(first) {
		return run(s, kindLetter, kindMark)
	}
	if first&(kindNumber|kindNewline) == 0 {
		if n := run(s[size:], kindLetter, kindMark); n > 0 {
			return size + n
		}
	}
	return cutRest(s, first, size, false)
}

func isLetter(k kind) bool { return k&kindLetter != 0 && k&kindMark == 0 }

// cutRest cuts what begins with no word: digits, signs, blanks. slash tells whether slashes go on behind signs and newlines.
func cutRest(s string, first kind, size int, slash bool) int {
	if first&kindNumber != 0 {
		n := size
		for range 2 {
			k, more := kindAt(s[n:])
			if k&kindNumber == 0 {
				break
			}
			n += more
		}
		return n
	}
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	if n := signs(s[lead:]); n > 0 {
		n += lead
		for n < len(s) && (s[n] == '\r' || s[n] == '\n' || slash && s[n] == '/') {
			n++
		}
		return n
	}
	return blanks(s)
}

// signs is the length of what is no blank, no letter and no number; marks are signs where they stand in no word.
func signs(s string) int {
	n := 0
	for n < len(s) {
		k, size := kindAt(s[n:])
		if k&kindSpecial != 0 && k&kindMark == 0 {
			break
		}
		n += size
	}
	return n
}

// blanks is the length of a run of blanks up to its last newline; without one it is the run, less its last blank where
// something follows, which that blank belongs to.
func blanks(s string) int {
	n, newline, last := 0, 0, 0
	for n < len(s) {
		k, size := kindAt(s[n:])
		if k&kindBlank == 0 {
			break
		}
		n += size
		last = size
		if k&kindNewline != 0 {
			newline = n
		}
	}
	switch {
	case newline > 0:
		return newline
	case n < len(s) && n > last:
		return n - last
	default:
		return n
	}
}
