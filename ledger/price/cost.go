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

// Component is the cost of one class that has tokens or calls; a class with a marginal price has one for each step it reaches.
type Component struct {
	Class  ledger.Class   `json:"class"`
	Tokens ledger.Tokens  `json:"tokens"` // or calls
	Price  ledger.NanoUSD `json:"nanousd_per_million"`
	Cost   ledger.NanoUSD `json:"nanousd"` // Tokens × Price / 1,000,000, rounded half-up
}

// Cost prices a usage in a service tier. at is the instant that decides the time of day, where the row has daily prices; whether
// the row covers that date is the caller's affair, because a pinned row prices its request for ever.
//
// It returns ErrMissingPrice when a class that has tokens or calls has no price, ErrNegativeUsage and ErrOverflow. On an error
// the Cost is empty.
func (r *Row) Cost(u ledger.Usage, tier ledger.ServiceTier, at time.Time) (Cost, error) {
	if u.Negative() {
		return Cost{}, fmt.Errorf("price row %s: %w", r.ID, ErrNegativeUsage)
	}
	input, err := inputTotal(u)
	if err != nil {
		return Cost{}, fmt.Errorf("price row %s: input tokens: %w", r.ID, err)
	}
	cost := Cost{RowID: r.ID, Components: make([]Component, 0, 4)}
	var buffer [4]slice
	for _, c := range u.Classes() {
		if c.Tokens == 0 {
			continue
		}
		p, ok := r.find(tier, at, c.Class)
		if !ok {
			return Cost{}, r.missing(c.Class)
		}
		for _, part := range p.split(c.Tokens, input, buffer[:0]) {
			if err := cost.add(c.Class, part.tokens, part.price); err != nil {
				return Cost{}, fmt.Errorf("price row %s: %s: %w", r.ID, c.Class, err)
			}
		}
	}
	err = r.eachCall(u.Calls, func(class ledger.Class, calls int64, price ledger.NanoUSD) error {
		return cost.add(class, ledger.Tokens(calls), price)
	})
	if err != nil {
		return Cost{}, err
	}
	return cost, nil
}

func (c *Cost) add(class ledger.Class, tokens ledger.Tokens, price ledger.NanoUSD) error {
	part := Component{Class: class, Tokens: tokens, Price: price}
	var err error
	if part.Cost, err = scale(tokens, price, million/2); err == nil {
		c.Total, err = sum(c.Total, part.Cost)
	}
	c.Components = append(c.Components, part)
	return err
}

func (r *Row) missing(class ledger.Class) error {
	return fmt.Errorf("price row %s: %s: %w", r.ID, class, ErrMissingPrice)
}

// eachCall hands the price of everything billed by the call, the request's own fee included, to add.
func (r *Row) eachCall(calls ledger.Calls, add func(ledger.Class, int64, ledger.NanoUSD) error) error {
	if fee, ok := r.PerCall[CallRequest]; ok {
		if err := add(ClassRequest, 1, fee); err != nil {
			return fmt.Errorf("price row %s: %s: %w", r.ID, ClassRequest, err)
		}
	}
	for _, c := range calls.Classes() {
		if c.Calls == 0 {
			continue
		}
		price, ok := r.PerCall[Call(c.Class)]
		if !ok {
			return r.missing(c.Class)
		}
		if err := add(c.Class, c.Calls, price); err != nil {
			return fmt.Errorf("price row %s: %s: %w", r.ID, c.Class, err)
		}
	}
	return nil
}

// Ask is what a request can use at most.
type Ask struct {
	Input, Output ledger.Tokens
	Calls         ledger.Calls
	Also          []ledger.Class     // dearer classes that its tokens can be
	Tier          ledger.ServiceTier // that it asks for
}

// UpperBound is the most that a request of up to so many tokens and calls can cost at an instant, however its input splits
// into input, cached_input and cache_write_5m and its output into output and reasoning, and whether or not the provider serves
// it in the tier it asks for. A cache write is considered because some providers write caches, and bill for it, unasked; a row
// that does not price it pays the input price.
//
// What a plain request cannot incur is left out: audio, images, caches of an hour. A caller whose request can adds those
// classes in Also. It returns ErrMissingPrice when input, output, a class of Also or a call could occur and has no price, and
// ErrOverflow.
func (r *Row) UpperBound(ask Ask, at time.Time) (ledger.NanoUSD, error) {
	if ask.Input < 0 || ask.Output < 0 || (ledger.Usage{Calls: ask.Calls}).Negative() {
		return 0, fmt.Errorf("price row %s: %w", r.ID, ErrNegativeUsage)
	}
	in := side{tokens: ask.Input, plain: []ledger.Class{ledger.ClassCachedInput, ledger.ClassCacheWrite5m}}
	out := side{tokens: ask.Output, plain: []ledger.Class{ledger.ClassReasoning}}
	in.needed = append(in.needed, ledger.ClassInput)
	out.needed = append(out.needed, ledger.ClassOutput)
	for _, class := range ask.Also {
		if class.IsOutput() {
			out.needed = append(out.needed, class)
		} else {
			in.needed = append(in.needed, class)
		}
	}
	tiers := []ledger.ServiceTier{ledger.ServiceStandard}
	if ask.Tier != ledger.ServiceStandard {
		tiers = append(tiers, ask.Tier)
	}
	total := ledger.NanoUSD(0)
	for _, s := range []side{in, out} {
		worst := ledger.NanoUSD(0)
		for _, tier := range tiers {
			most, err := r.dearest(tier, at, s, ask.Input)
			if err != nil {
				return 0, err
			}
			worst = max(worst, most)
		}
		var err error
		if total, err = sum(total, worst); err != nil {
			return 0, fmt.Errorf("price row %s: upper bound: %w", r.ID, err)
		}
	}
	err := r.eachCall(ask.Calls, func(_ ledger.Class, calls int64, price ledger.NanoUSD) error {
		most, err := scale(ledger.Tokens(calls), price, million/2)
		if err == nil {
			total, err = sum(total, most)
		}
		return err
	})
	if err != nil {
		return 0, err
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
func (r *Row) dearest(tier ledger.ServiceTier, at time.Time, s side, input ledger.Tokens) (ledger.NanoUSD, error) {
	if s.tokens == 0 {
		return 0, nil
	}
	highest, rounded := ledger.NanoUSD(0), ledger.Tokens(0)
	consider := func(class ledger.Class) bool {
		p, ok := r.find(tier, at, class)
		if !ok {
			return false
		}
		inexact := ledger.Tokens(0)
		for _, price := range p.reachable(s.tokens, input) {
			highest = max(highest, price)
			if price%million != 0 {
				inexact++
			}
		}
		if !p.Marginal {
			inexact = min(inexact, 1)
		}
		rounded += inexact
		return true
	}
	for _, class := range s.needed {
		if !consider(class) {
			return 0, r.missing(class)
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
