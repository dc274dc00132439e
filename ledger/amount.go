package ledger

import (
	"fmt"
	"math/big"
	"strings"
)

// Tokens counts model tokens of every class together. Never negative in an event.
type Tokens int64

// NanoUSD is money: one billionth of a US dollar. An int64 spans about ±9.2 billion dollars.
type NanoUSD int64

// Dollar is one US dollar.
const Dollar NanoUSD = 1_000_000_000

// String gives dollars with nine decimals, e.g. "0.000150000".
func (n NanoUSD) String() string {
	sign := ""
	u := uint64(n)
	if n < 0 {
		sign, u = "-", -u
	}
	return fmt.Sprintf("%s%d.%09d", sign, u/uint64(Dollar), u%uint64(Dollar))
}

// ParseUSD reads a decimal number of dollars ("20000", "0.15") exactly.
// It errors when the text is no decimal number, is finer than a nano-dollar, or leaves the range of NanoUSD.
func ParseUSD(text string) (NanoUSD, error) {
	if strings.ContainsAny(text, "/_xXpP") {
		return 0, fmt.Errorf("%q is not a decimal number of dollars", text)
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, fmt.Errorf("%q is not a decimal number of dollars", text)
	}
	r.Mul(r, new(big.Rat).SetInt64(int64(Dollar)))
	if !r.IsInt() {
		return 0, fmt.Errorf("%q is finer than a nano-dollar (nine decimals)", text)
	}
	if !r.Num().IsInt64() {
		return 0, fmt.Errorf("%q dollars is more than can be counted (about 9.2 billion)", text)
	}
	return NanoUSD(r.Num().Int64()), nil
}

// Amounts is what one request takes from every budget above it. All fields are zero or positive when held.
type Amounts struct {
	Requests int64   `json:"requests"`
	Tokens   Tokens  `json:"tokens"`
	NanoUSD  NanoUSD `json:"nanousd"`
}

// In returns the amount counted in unit, as a plain integer (nano-dollars for UnitUSD).
func (a Amounts) In(unit Unit) int64 {
	switch unit {
	case UnitRequests:
		return a.Requests
	case UnitTokens:
		return int64(a.Tokens)
	default:
		return int64(a.NanoUSD)
	}
}

// Add returns a + b, field by field.
func (a Amounts) Add(b Amounts) Amounts {
	return Amounts{a.Requests + b.Requests, a.Tokens + b.Tokens, a.NanoUSD + b.NanoUSD}
}

// Sub returns a - b, field by field; fields may become negative.
func (a Amounts) Sub(b Amounts) Amounts {
	return Amounts{a.Requests - b.Requests, a.Tokens - b.Tokens, a.NanoUSD - b.NanoUSD}
}

// Unit is what a limit counts.
type Unit string

// The units of the policy file.
const (
	UnitRequests Unit = "requests"
	UnitTokens   Unit = "tokens"
	UnitUSD      Unit = "usd"
)
