package price

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"tollgate/ledger"
)

// Errors of Row.Cost and Row.UpperBound, wrapped with the class and the row.
var (
	ErrMissingPrice  = errors.New("no price")
	ErrOverflow      = errors.New("more than can be counted")
	ErrNegativeUsage = errors.New("negative usage")
)

// million is the number of units that a price is given for.
const million = 1_000_000

// Cost is what a usage costs: the components sum to the total.
type Cost struct {
	Total      ledger.NanoUSD `json:"total_nanousd"`
	Components []Component    `json:"components"`
	RowID      string         `json:"row"` // the price row that was used
}

// Component is the cost of one class that has tokens.
type Component struct {
	Class  ledger.Class   `json:"class"`
	Tokens ledger.Tokens  `json:"tokens"`
	Price  ledger.NanoUSD `json:"nanousd_per_million"`
	Cost   ledger.NanoUSD `json:"nanousd"` // Tokens × Price / 1,000,000, rounded half-up
}

// Cost prices a usage. at is the instant that decides the time of day, where the row has daily prices; whether the row
// covers that date is the caller's affair, because a pinned row prices its request for ever.
//
// It returns ErrMissingPrice when a class that has tokens has no price, ErrNegativeUsage and ErrOverflow. On an error the
// Cost is empty.
func (r *Row) Cost(u ledger.Usage, at time.Time) (Cost, error) {
	if u.Negative() {
		return Cost{}, fmt.Errorf("price row %s: %w", r.ID, ErrNegativeUsage)
	}
	input, err := inputTotal(u)
	if err != nil {
		return Cost{}, fmt.Errorf("price row %s: input tokens: %w", r.ID, err)
	}
	cost := Cost{RowID: r.ID, Components: make([]Component, 0, 4)}
	add := func(class ledger.Class, tokens ledger.Tokens, price ledger.NanoUSD) error {
		c := Component{Class: class, Tokens: tokens, Price: price}
		if c.Cost, err = scale(tokens, price, million/2); err == nil {
			cost.Total, err = sum(cost.Total, c.Cost)
		}
		cost.Components = append(cost.Components, c)
		return err
	}
	prices := r.prices(at)
	for _, c := range u.Classes() {
		if c.Tokens == 0 {
			continue
		}
		p, ok := r.lookup(prices, c.Class)
		if !ok {
			return Cost{}, fmt.Errorf("price row %s: %s: %w", r.ID, c.Class, ErrMissingPrice)
		}
		if err := add(c.Class, c.Tokens, p.At(input)); err != nil {
			return Cost{}, fmt.Errorf("price row %s: %s: %w", r.ID, c.Class, err)
		}
	}
	if fee, ok := r.PerCall[CallRequest]; ok {
		if err := add(ClassRequest, 1, fee); err != nil {
			return Cost{}, fmt.Errorf("price row %s: %s: %w", r.ID, ClassRequest, err)
		}
	}
	return cost, nil
}

// UpperBound is the most that a request of up to input and output tokens can cost at an instant, however its input splits
// into input, cached_input and cache_write_5m and its output into output and reasoning. A cache write is considered because
// some providers write caches, and bill for it, unasked; a row that does not price it pays the input price.
//
// What a plain request cannot incur is left out: audio, images, caches of an hour. A caller whose request can adds those
// classes in also. It returns ErrMissingPrice when input, output or a class of also could have tokens and has no price, and
// ErrOverflow.
func (r *Row) UpperBound(input, output ledger.Tokens, at time.Time, also ...ledger.Class) (ledger.NanoUSD, error) {
	if input < 0 || output < 0 {
		return 0, fmt.Errorf("price row %s: %w", r.ID, ErrNegativeUsage)
	}
	in := side{tokens: input, plain: []ledger.Class{ledger.ClassCachedInput, ledger.ClassCacheWrite5m}}
	out := side{tokens: output, plain: []ledger.Class{ledger.ClassReasoning}}
	in.needed = append(in.needed, ledger.ClassInput)
	out.needed = append(out.needed, ledger.ClassOutput)
	for _, class := range also {
		if class.IsOutput() {
			out.needed = append(out.needed, class)
		} else {
			in.needed = append(in.needed, class)
		}
	}
	prices := r.prices(at)
	total := ledger.NanoUSD(0)
	for _, s := range []side{in, out} {
		most, err := r.dearest(prices, s, input)
		if err == nil {
			total, err = sum(total, most)
		}
		if err != nil {
			return 0, err
		}
	}
	if fee, ok := r.PerCall[CallRequest]; ok {
		most, err := scale(1, fee, million/2)
		if err == nil {
			total, err = sum(total, most)
		}
		if err != nil {
			return 0, fmt.Errorf("price row %s: %s: %w", r.ID, ClassRequest, err)
		}
	}
	return total, nil
}

// side is the input or the output of a request of unknown split.
type side struct {
	tokens ledger.Tokens
	needed []ledger.Class // must have a price
	plain  []ledger.Class // considered where they have one
}

// dearest prices all tokens of a side at the highest price that any of its classes can meet. Rounding each of k components
// half-up adds at most k/2 to the exact sum, and nothing where every product is a whole number of nano-dollars.
func (r *Row) dearest(prices Prices, s side, input ledger.Tokens) (ledger.NanoUSD, error) {
	if s.tokens == 0 {
		return 0, nil
	}
	highest, rounded := ledger.NanoUSD(0), ledger.Tokens(0)
	consider := func(class ledger.Class) bool {
		p, ok := r.lookup(prices, class)
		if !ok {
			return false
		}
		inexact := false
		for _, price := range p.reachable(input) {
			highest = max(highest, price)
			inexact = inexact || price%million != 0
		}
		if inexact {
			rounded++
		}
		return true
	}
	for _, class := range s.needed {
		if !consider(class) {
			return 0, fmt.Errorf("price row %s: %s: %w", r.ID, class, ErrMissingPrice)
		}
	}
	for _, class := range s.plain {
		consider(class)
	}
	most, err := scale(s.tokens, highest, uint64(min(rounded, s.tokens))*(million/2))
	if err != nil {
		return 0, fmt.Errorf("price row %s: upper bound: %w", r.ID, err)
	}
	return most, nil
}

// scale is floor((tokens × price + extra) / 1,000,000), computed in 128 bits. Neither is negative.
func scale(tokens ledger.Tokens, price ledger.NanoUSD, extra uint64) (ledger.NanoUSD, error) {
	hi, lo := bits.Mul64(uint64(tokens), uint64(price))
	lo, carry := bits.Add64(lo, extra, 0)
	hi += carry
	if hi >= million {
		return 0, ErrOverflow
	}
	quo, _ := bits.Div64(hi, lo, million)
	if quo > math.MaxInt64 {
		return 0, ErrOverflow
	}
	return ledger.NanoUSD(quo), nil
}

func sum(a, b ledger.NanoUSD) (ledger.NanoUSD, error) {
	if a > math.MaxInt64-b {
		return 0, ErrOverflow
	}
	return a + b, nil
}

// inputTotal is u.InputTotal, checked: a provider's figures are not trusted to fit.
func inputTotal(u ledger.Usage) (ledger.Tokens, error) {
	total := ledger.Tokens(0)
	for _, c := range u.Classes() {
		if c.Class.IsOutput() {
			continue
		}
		if total > math.MaxInt64-c.Tokens {
			return 0, ErrOverflow
		}
		total += c.Tokens
	}
	return total, nil
}
