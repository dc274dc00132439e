package provider

import "unicode/utf8"

// What the heuristic counts, in hundredths of a token, measured with the two vocabularies that are known. A word has its
// first letters for one token, and falls into pieces where it is longer. The blank before a word is the word's.
const (
	perPiece    = 100 // a word, three digits, a run of blanks or newlines
	wordLetters = 5   // that come with the token of a word
	perLetter   = 22  // of those behind them
	capitals    = 3   // that come with the token of a word of capitals
	perCapital  = 35
	wordEnd     = 24 // behind so many letters it is no word
	perOdd      = 50 // a letter there
	digits      = 3  // of a token
	equalRun    = 64 // equal blanks or signs of a token
	newlinesRun = 16
	perSign     = 22 // of the first eight of a run of the same
	firstSign   = 45
	codedLength = 20 // coded data is at least so long: base64, keys, identifiers
	perChange   = 60 // a change there of what letters are, beyond three in ten bytes
)

// estimateText gives hundredths of a token. It is linear in the length of s.
func estimateText(s string) int64 {
	var sum int64
	checked := 0 // up to here it is known how much looks like coded data
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			sum += perRune(r)
			i += size
			continue
		}
		if i >= checked && asciiKinds[c] != 0 {
			n, cost := estimateCoded(s[i:])
			checked = i + n
			sum += cost
		}
		switch asciiKinds[c] {
		case asciiLower, asciiUpper:
			n, cost := estimateWord(s[i:])
			sum += cost
			i += n
		case asciiDigit:
			n := asciiRun(s[i:], asciiDigit)
			sum += int64((n+digits-1)/digits) * perPiece
			if i > 0 && s[i-1] == ' ' {
				sum += perPiece // which the number does not take
			}
			i += n
		default:
			n := sameRun(s[i:])
			switch {
			case c == ' ' && n == 1:
			case c <= ' ':
				sum += perPiece
			default:
				sum += firstSign + int64(min(n, 8))*perSign
			}
			if c == '\n' {
				sum += int64(n/newlinesRun) * perPiece
			} else {
				sum += int64(n/equalRun) * perPiece
			}
			i += n
		}
	}
	return sum
}

// The kinds of ASCII that coded data is made of.
const (
	asciiLower = 1 << iota
	asciiUpper
	asciiDigit
	asciiJoin // + / - _ =
)

var asciiKinds = func() (kinds [utf8.RuneSelf]uint8) {
	for c := range kinds {
		switch {
		case c >= 'a' && c <= 'z':
			kinds[c] = asciiLower
		case c >= 'A' && c <= 'Z':
			kinds[c] = asciiUpper
		case c >= '0' && c <= '9':
			kinds[c] = asciiDigit
		case c == '+' || c == '/' || c == '-' || c == '_' || c == '=':
			kinds[c] = asciiJoin
		}
	}
	return kinds
}()

func asciiKind(s string, i int) uint8 {
	if i < len(s) && s[i] < utf8.RuneSelf {
		return asciiKinds[s[i]]
	}
	return 0
}

// estimateCoded gives the length of a run of what coded data is made of, and what it costs more than its words and digits
// do: where capitals, small letters and digits change more often than in names, the pieces are no words.
func estimateCoded(s string) (n int, cost int64) {
	changes := 0
	for kind := asciiKind(s, 0); kind != 0; {
		n++
		next := asciiKind(s, n)
		if next != kind && next != 0 {
			changes++
		}
		kind = next
	}
	if n < codedLength {
		return n, 0
	}
	return n, max(0, int64(10*changes-3*n)*perChange/10)
}

// estimateWord gives the length of a word and its cost. A capital behind a small letter begins another word.
func estimateWord(s string) (n int, cost int64) {
	n = asciiRun(s, asciiUpper)
	free, each := capitals, int64(perCapital)
	if n <= 1 {
		n += asciiRun(s[n:], asciiLower)
		free, each = wordLetters, perLetter
	}
	cost = perPiece + int64(max(0, min(n, wordEnd)-free))*each + int64(max(0, n-wordEnd))*perOdd
	return n, cost
}

func asciiRun(s string, kind uint8) int {
	n := 0
	for asciiKind(s, n) == kind {
		n++
	}
	return n
}

// sameRun is how often the first byte of s stands there.
func sameRun(s string) int {
	n := 1
	for n < len(s) && s[n] == s[0] {
		n++
	}
	return n
}

// perRune is a character outside ASCII.
func perRune(r rune) int64 {
	for _, script := range scripts {
		if r < script.end {
			return script.cost
		}
	}
	return 300
}

// scripts gives what a character costs, by the end of its block.
var scripts = []struct {
	end  rune
	cost int64
}{
	{0x00c0, 100}, // signs of Latin
	{0x0250, 80},  // Latin with accents
	{0x0370, 100}, // phonetics, accents
	{0x0400, 90},  // Greek
	{0x0530, 48},  // Cyrillic
	{0x0590, 180}, // Armenian
	{0x0600, 90},  // Hebrew
	{0x0780, 80},  // Arabic
	{0x0900, 180}, // Syriac, Thaana, NKo
	{0x0980, 95},  // Devanagari
	{0x0e00, 130}, // other scripts of India
	{0x0f00, 85},  // Thai, Lao
	{0x1e00, 180}, // Tibetan to Khmer
	{0x1f00, 60},  // Latin with more accents
	{0x2000, 150}, // Greek with more accents
	{0x2070, 100}, // punctuation
	{0x2e80, 120}, // signs, arrows, mathematics, boxes
	{0xa000, 105}, // Chinese, Japanese
	{0xac00, 180}, // Yi to Meetei
	{0xd7b0, 100}, // Korean
	{0xf900, 200}, // private
	{0x1f000, 150},
	{0x1fb00, 220}, // emoji
}
