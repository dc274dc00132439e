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

// The calls of the book: the request itself, which Row.Cost charges once, and the classes of ledger.Calls.
const (
	CallRequest         Call = "request"
	CallWebSearch            = Call(ledger.ClassWebSearch)
	CallFileSearch           = Call(ledger.ClassFileSearch)
	CallCodeInterpreter      = Call(ledger.ClassCodeInterpreter)
)

// Calls lists them.
var Calls = []Call{CallRequest, CallWebSearch, CallFileSearch, CallCodeInterpreter}

// Price is the price of one class: Base, or what its steps say.
type Price struct {
	Base  ledger.NanoUSD // nano-dollars per million tokens; zero is explicitly free
	Steps []Step         // ascending by Above
	// Marginal: a step prices only the tokens of the class above it. Else the last step that the request's input passes
	// re-prices the whole request.
	Marginal bool
}

// Step is another price above a number of tokens: of the request's input, cached or not, or of the class itself where the
// price is marginal.
type Step struct {
	Above ledger.Tokens
	Price ledger.NanoUSD // nano-dollars per million tokens
}

// Flat is a price without steps, in nano-dollars per million tokens.
func Flat(perMillion ledger.NanoUSD) Price { return Price{Base: perMillion} }

// slice is tokens at one price.
type slice struct {
	tokens ledger.Tokens
	price  ledger.NanoUSD
}

// split lays the tokens of the class, in a request of input tokens in all, out over the prices that they cost.
func (p Price) split(tokens, input ledger.Tokens, into []slice) []slice {
	if !p.Marginal {
		price := p.Base
		for _, s := range p.Steps {
			if input > s.Above {
				price = s.Price
			}
		}
		return append(into, slice{tokens, price})
	}
	price, from := p.Base, ledger.Tokens(0)
	for _, s := range p.Steps {
		if tokens <= s.Above {
			break
		}
		into = append(into, slice{s.Above - from, price})
		price, from = s.Price, s.Above
	}
	return append(into, slice{tokens - from, price})
}

// reachable lists every price that a request of up to input tokens, of which up to tokens are of the class, can meet.
func (p Price) reachable(tokens, input ledger.Tokens) []ledger.NanoUSD {
	prices := []ledger.NanoUSD{p.Base}
	for _, s := range p.Steps {
		if !p.Marginal && input > s.Above || p.Marginal && tokens > s.Above {
			prices = append(prices, s.Price)
		}
	}
	return prices
}

func (p Price) validate() error {
	if p.Base < 0 {
		return fmt.Errorf("price %s is negative", p.Base)
	}
	if p.Marginal && len(p.Steps) == 0 {
		return errors.New("a marginal price has no steps")
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
	// Service is what a service tier costs at any time of the day, by class. A class that it does not list costs the usual
	// price in a cheaper tier, and is missing in a dearer one.
	Service map[ledger.ServiceTier]Prices
	PerCall map[Call]ledger.NanoUSD // nano-dollars per million calls
	Source  string                  // where the prices come from, and of which date
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

// find is the price of a class in a service tier. False means missing.
func (r *Row) find(tier ledger.ServiceTier, at time.Time, class ledger.Class) (Price, bool) {
	usual := r.prices(at)
	if tier == ledger.ServiceStandard {
		return r.lookup(usual, class)
	}
	if p, ok := r.Service[tier][class]; ok {
		return p, true
	}
	if _, apart := usual[class]; !apart {
		if p, ok := r.lookup(r.Service[tier], class); ok {
			return p, true
		}
	}
	if tier != ledger.ServiceBatch && tier != ledger.ServiceFlex {
		return Price{}, false
	}
	return r.lookup(usual, class)
}

// Price is the usual price of a class in a request of input tokens in all at an instant, in nano-dollars per million tokens: of
// the class's first token, where the price is marginal. False means missing.
func (r *Row) Price(class ledger.Class, input ledger.Tokens, at time.Time) (ledger.NanoUSD, bool) {
	p, ok := r.find(ledger.ServiceStandard, at, class)
	return p.split(0, input, nil)[0].price, ok
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
	for _, tier := range slices.Sorted(maps.Keys(r.Service)) {
		fmt.Fprintf(&b, "service %s\n", tier)
		writePrices(&b, r.Service[tier])
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
		if prices[class].Marginal {
			b.WriteString(" marginal")
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
	for tier, prices := range r.Service {
		switch tier {
		case ledger.ServiceBatch, ledger.ServiceFlex, ledger.ServicePriority:
			errs = append(errs, prices.validate())
		default:
			errs = append(errs, fmt.Errorf("unknown service tier %q", tier))
		}
	}
	for call, price := range r.PerCall {
		if price < 0 {
			errs = append(errs, fmt.Errorf("price of a call %s is negative", call))
		}
		if !slices.Contains(Calls, call) {
			errs = append(errs, fmt.Errorf("unknown call %q", call))
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
