package price

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"tollgate/ledger"
)

// ClassOutputCitation is a class that the book knows and a ledger.Usage does not count apart. It is kept as a fact and never
// charged.
const ClassOutputCitation ledger.Class = "output_citation"

// ClassRequest names the component of a flat fee for each request, whose Tokens is always 1.
const ClassRequest ledger.Class = "request"

// Call is something billed by the call, not by the token.
type Call string

// The calls of the book. Row.Cost charges CallRequest once; see "Not guaranteed" for the others.
const (
	CallRequest   Call = "request"
	CallWebSearch Call = "web_search"
)

// Price is the price of one class: Base, or the last step that the request's input passes.
type Price struct {
	Base  ledger.NanoUSD // nano-dollars per million tokens; zero is explicitly free
	Steps []Step         // ascending by Above
}

// Step re-prices the whole request when its input, cached or not, is more than Above tokens.
type Step struct {
	Above ledger.Tokens
	Price ledger.NanoUSD // nano-dollars per million tokens
}

// Flat is a price without steps, in nano-dollars per million tokens.
func Flat(perMillion ledger.NanoUSD) Price { return Price{Base: perMillion} }

// At is the price, in nano-dollars per million tokens, in a request of input tokens in all.
func (p Price) At(input ledger.Tokens) ledger.NanoUSD {
	price := p.Base
	for _, s := range p.Steps {
		if input > s.Above {
			price = s.Price
		}
	}
	return price
}

// reachable lists every price that a request of up to input tokens can meet.
func (p Price) reachable(input ledger.Tokens) []ledger.NanoUSD {
	prices := []ledger.NanoUSD{p.Base}
	for _, s := range p.Steps {
		if input > s.Above {
			prices = append(prices, s.Price)
		}
	}
	return prices
}

func (p Price) validate() error {
	if p.Base < 0 {
		return fmt.Errorf("price %s is negative", p.Base)
	}
	above := ledger.Tokens(0)
	for _, s := range p.Steps {
		if s.Price < 0 {
			return fmt.Errorf("price %s above %d tokens is negative", s.Price, s.Above)
		}
		if s.Above <= above {
			return fmt.Errorf("step above %d tokens does not ascend", s.Above)
		}
		above = s.Above
	}
	return nil
}

// Prices is the price of each class that a row lists.
type Prices map[ledger.Class]Price

// Daily replaces a row's prices between two times of the day, UTC, from included and until excluded.
type Daily struct {
	From   TimeOfDay `json:"from"`
	Until  TimeOfDay `json:"until"`
	Prices Prices    `json:"usd_per_million"`
}

// TimeOfDay is the time passed since midnight UTC. Its text is "16:30:00".
type TimeOfDay time.Duration

// MarshalText gives hours, minutes and seconds.
func (t TimeOfDay) MarshalText() ([]byte, error) {
	return []byte(time.Time{}.Add(time.Duration(t)).Format(time.TimeOnly)), nil
}

// UnmarshalText reads hours, minutes and seconds.
func (t *TimeOfDay) UnmarshalText(text []byte) error {
	at, err := time.Parse(time.TimeOnly, string(text))
	if err != nil {
		return fmt.Errorf("time of day: %w", err)
	}
	*t = timeOfDay(at)
	return nil
}

func timeOfDay(at time.Time) TimeOfDay {
	h, m, s := at.UTC().Clock()
	return TimeOfDay(time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(s)*time.Second)
}

// Row is one dated price of one model, or of the models that Match accepts. A row never changes once published: a new price
// is a new row. Rows that a Book hands out are shared and must not be modified.
type Row struct {
	ID       string // pins the prices for ever; Book fills it in where it is empty
	Provider string
	Model    string    // the book's name of the model; what a request asks for is decided by Match
	Match    Match     // zero means exactly Model
	From     time.Time // the first instant, UTC; zero means since ever
	Until    time.Time // the first instant no longer covered, UTC; zero means until further notice
	Prices   Prices
	Unpriced []ledger.Class // classes whose price is known to exist but not to us: missing, without fallback
	Daily    []Daily
	PerCall  map[Call]ledger.NanoUSD // nano-dollars per million calls
	Source   string                  // where the prices come from, and of which date
}

// covers reports whether at is in [From, Until).
func (r *Row) covers(at time.Time) bool {
	return !at.Before(r.From) && (r.Until.IsZero() || at.Before(r.Until))
}

// priced reports whether the row lists any price.
func (r *Row) priced() bool { return len(r.Prices) > 0 || len(r.PerCall) > 0 }

// prices are those in force at the time of day of at.
func (r *Row) prices(at time.Time) Prices {
	if len(r.Daily) == 0 {
		return r.Prices
	}
	now := timeOfDay(at)
	for _, d := range r.Daily {
		if d.From <= now && now < d.Until {
			return d.Prices
		}
	}
	return r.Prices
}

// lookup finds the price of a class by the rules in the package comment. False means missing.
func (r *Row) lookup(prices Prices, class ledger.Class) (Price, bool) {
	for class != "" {
		if p, ok := prices[class]; ok {
			return p, true
		}
		if slices.Contains(r.Unpriced, class) {
			return Price{}, false
		}
		class = r.fallback(prices, class)
	}
	return Price{}, false
}

func (r *Row) fallback(prices Prices, class ledger.Class) ledger.Class {
	switch class {
	case ledger.ClassCachedInput, ledger.ClassCacheWrite5m, ledger.ClassInputImage:
		return ledger.ClassInput
	case ledger.ClassInputVideo:
		return ledger.ClassInputImage
	case ledger.ClassCachedInputAudio:
		return cachedAs(prices, ledger.ClassInputAudio)
	case ledger.ClassCachedInputImage:
		return cachedAs(prices, ledger.ClassInputImage)
	case ledger.ClassCacheWrite1h:
		if _, ok := prices[ledger.ClassCacheWrite5m]; ok || slices.Contains(r.Unpriced, ledger.ClassCacheWrite5m) {
			return ""
		}
		return ledger.ClassInput
	case ledger.ClassReasoning:
		return ledger.ClassOutput
	default:
		return ""
	}
}

// cachedAs is what the cached tokens of a kind cost where the row does not list them: as cached text where the row prices the
// kind as text, else as the kind itself, because reading from a cache is never dearer than reading the prompt.
func cachedAs(prices Prices, kind ledger.Class) ledger.Class {
	if p, ok := prices[kind]; ok && !reflect.DeepEqual(p, prices[ledger.ClassInput]) {
		return kind
	}
	if _, ok := prices[kind]; !ok && kind == ledger.ClassInputAudio {
		return kind // missing
	}
	return ledger.ClassCachedInput
}

// Price is the price of a class for a request of input tokens in all at an instant, in nano-dollars per million tokens.
// False means missing.
func (r *Row) Price(class ledger.Class, input ledger.Tokens, at time.Time) (ledger.NanoUSD, bool) {
	p, ok := r.lookup(r.prices(at), class)
	return p.At(input), ok
}

// identify gives the row's ID: provider, model, first day and a hash of all that decides a cost.
func (r *Row) identify() string {
	var b strings.Builder
	fmt.Fprintf(&b, "provider %s\nmodel %s\nfrom %s\n", r.Provider, r.Model, r.From.UTC().Format(time.RFC3339Nano))
	writePrices(&b, r.Prices)
	for _, class := range slices.Sorted(slices.Values(r.Unpriced)) {
		fmt.Fprintf(&b, "unpriced %s\n", class)
	}
	for _, d := range r.Daily {
		fmt.Fprintf(&b, "daily %d %d\n", d.From, d.Until)
		writePrices(&b, d.Prices)
	}
	for _, call := range slices.Sorted(maps.Keys(r.PerCall)) {
		fmt.Fprintf(&b, "call %s %d\n", call, r.PerCall[call])
	}
	sum := sha256.Sum256([]byte(b.String()))
	from := "start"
	if !r.From.IsZero() {
		from = r.From.UTC().Format(time.DateOnly)
	}
	return fmt.Sprintf("%s/%s@%s#%s", r.Provider, r.Model, from, hex.EncodeToString(sum[:6]))
}

func writePrices(b *strings.Builder, prices Prices) {
	for _, class := range prices.classes() {
		fmt.Fprintf(b, "%s %d", class, prices[class].Base)
		for _, s := range prices[class].Steps {
			fmt.Fprintf(b, " >%d %d", s.Above, s.Price)
		}
		b.WriteByte('\n')
	}
}

// validate joins everything that is wrong with the row.
func (r *Row) validate() error {
	var errs []error
	if r.Provider == "" || r.Model == "" {
		errs = append(errs, errors.New("provider and model must be named"))
	}
	if !r.Until.IsZero() && !r.From.Before(r.Until) {
		errs = append(errs, fmt.Errorf("until %s is not after from %s", r.Until, r.From))
	}
	errs = append(errs, r.Prices.validate())
	for _, d := range r.Daily {
		if d.From >= d.Until {
			errs = append(errs, errors.New("daily prices must end after they begin, on the same day"))
		}
		errs = append(errs, d.Prices.validate())
	}
	for call, price := range r.PerCall {
		if price < 0 {
			errs = append(errs, fmt.Errorf("price of a call %s is negative", call))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("price row %s/%s: %w", r.Provider, r.Model, err)
	}
	return nil
}

func (p Prices) validate() error {
	var errs []error
	for class, price := range p {
		if !knownClass(class) {
			errs = append(errs, fmt.Errorf("unknown class %q", class))
		}
		if err := price.validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", class, err))
		}
	}
	return errors.Join(errs...)
}

func knownClass(class ledger.Class) bool {
	if class == ClassOutputCitation {
		return true
	}
	for _, c := range (ledger.Usage{}).Classes() {
		if c.Class == class {
			return true
		}
	}
	return false
}
