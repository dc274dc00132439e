package provider

import "tollgate/ledger"

// What the heuristic counts, in hundredths of a token. Latin letters make about four to a token, digits three, punctuation
// two; a character outside ASCII counts as one. Blanks join the word that follows.
const (
	perLetter = 25
	perDigit  = 34
	perSymbol = 50
	perRune   = 100
)

// estimateText gives hundredths of a token.
func estimateText(s string) int64 {
	var sum int64
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			sum += perLetter
		case c >= '0' && c <= '9':
			sum += perDigit
		case c <= ' ':
		case c < 0x80:
			sum += perSymbol
		case c >= 0xc0: // the first byte of a longer character
			sum += perRune
		}
	}
	return sum
}

// tokens rounds hundredths up, with the correction.
func tokens(hundredths int64) ledger.Tokens {
	return ledger.Tokens((hundredths*correction + 9_999) / 10_000)
}
