package price

import (
	"fmt"
	"math/big"
	"strings"
)

// ExactUSD is what components cost together in dollars, not rounded: a decimal of up to fifteen places, for people to compare.
// The ledger books Component.Cost.
func ExactUSD(parts ...Component) string {
	// Tokens times nano-dollars per million are femto-dollars.
	sum := new(big.Int)
	for _, p := range parts {
		sum.Add(sum, new(big.Int).Mul(big.NewInt(int64(p.Tokens)), big.NewInt(int64(p.Price))))
	}
	whole, rest := new(big.Int).DivMod(sum, big.NewInt(1_000_000_000_000_000), new(big.Int))
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%s.%015d", whole, rest), "0"), ".")
}
