package price

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Book finds the price of a model. It is immutable and safe for concurrent use.
type Book struct {
	providers map[string]*shelf // by name and alias, in lower case
	overrides map[name][]*Row   // ascending by From
	rows      map[string]*Row   // by ID
}

// name is a provider and a model, in lower case.
type name struct{ provider, model string }

// shelf is what the book knows about one provider. Its entries are tried in order: the first that accepts a name wins.
type shelf struct {
	id       string
	entries  []entry
	exact    map[string]int // name to the first entry that lists it
	patterns []pattern      // the rest, in the order of their entries
	borrow   []string       // providers whose entries are tried after these
}

// entry is one model: its rows do not overlap.
type entry struct {
	model string
	match Match
	rows  []*Row
}

type pattern struct {
	entry int
	match matcher
}

// Provider is what a sheet says about a provider besides its rows.
type Provider struct {
	ID      string   `json:"id"`
	Aliases []string `json:"aliases,omitempty"` // other names of the same provider
	// Borrow names providers whose rows price the models that this one sells and does not list, in order.
	Borrow []string `json:"borrow,omitempty"`
}

// NewBook makes a book of rows. Rows of the same provider and model must agree on their Match and must not overlap in time.
// Where several models of a provider match a name, the one whose row comes first wins. It joins all errors it finds.
func NewBook(rows ...Row) (*Book, error) { return newBook(nil, rows) }

func newBook(providers []Provider, rows []Row) (*Book, error) {
	b := &Book{providers: map[string]*shelf{}, rows: make(map[string]*Row, len(rows))}
	var errs []error
	for _, p := range providers {
		s := b.shelf(p.ID)
		s.borrow = p.Borrow
		for _, alias := range p.Aliases {
			if _, taken := b.providers[strings.ToLower(alias)]; taken {
				errs = append(errs, fmt.Errorf("provider %s: alias %q is taken", p.ID, alias))
			}
			b.providers[strings.ToLower(alias)] = s
		}
	}
	index := map[name]int{}
	for i := range rows {
		row := rows[i]
		if err := b.publish(&row); err != nil {
			errs = append(errs, err)
			continue
		}
		s := b.shelf(row.Provider)
		key := name{s.id, row.Model}
		at, ok := index[key]
		if !ok {
			at = len(s.entries)
			index[key] = at
			s.entries = append(s.entries, entry{model: row.Model, match: row.Match})
		}
		errs = append(errs, s.entries[at].add(&row))
	}
	for _, s := range b.providers {
		errs = append(errs, s.index())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Book) shelf(provider string) *shelf {
	key := strings.ToLower(provider)
	s, ok := b.providers[key]
	if !ok {
		s = &shelf{id: key}
		b.providers[key] = s
	}
	return s
}

// publish checks a row, gives it its ID and files it under it.
func (b *Book) publish(row *Row) error {
	if err := row.validate(); err != nil {
		return err
	}
	id := row.identify()
	if row.ID == "" {
		row.ID = id
	}
	if row.ID != id {
		return fmt.Errorf("price row %s: its content belongs to %s", row.ID, id)
	}
	if _, taken := b.rows[id]; taken {
		return fmt.Errorf("price row %s: given twice", id)
	}
	b.rows[id] = row
	return nil
}

func (e *entry) add(row *Row) error {
	if !reflect.DeepEqual(e.match, row.Match) {
		return fmt.Errorf("price row %s: matches other names than an earlier row of the model", row.ID)
	}
	for _, other := range e.rows {
		apart := !row.Until.IsZero() && !other.From.Before(row.Until) || !other.Until.IsZero() && !row.From.Before(other.Until)
		if !apart {
			return fmt.Errorf("price row %s: overlaps in time with %s", row.ID, other.ID)
		}
	}
	e.rows = append(e.rows, row)
	return nil
}

// index prepares the shelf for find.
func (s *shelf) index() error {
	s.exact, s.patterns = map[string]int{}, nil // a shelf is met once for each of its aliases
	for i, e := range s.entries {
		match := e.match
		if match.IsZero() {
			match = Match{Equals: e.model}
		}
		names, rest := match.alternatives()
		for _, n := range names {
			if _, earlier := s.exact[n]; !earlier {
				s.exact[n] = i
			}
		}
		for _, m := range rest {
			judge, err := m.compile()
			if err != nil {
				return fmt.Errorf("price of %s/%s: %w", s.id, e.model, err)
			}
			s.patterns = append(s.patterns, pattern{i, judge})
		}
	}
	return nil
}

// find is the first entry that accepts the model, in lower case.
func (s *shelf) find(model string) *entry {
	best, ok := s.exact[model]
	if !ok {
		best = len(s.entries)
	}
	for _, p := range s.patterns {
		if p.entry >= best {
			break
		}
		if p.match(model) {
			best = p.entry
			break
		}
	}
	if best == len(s.entries) {
		return nil
	}
	return &s.entries[best]
}

// Find gives the row that prices a model of a provider at an instant: the policy's override if one is in force, else the
// book's. False means missing: an unknown model or provider, a date that no row covers, or a row without any price.
func (b *Book) Find(provider, model string, at time.Time) (*Row, bool) {
	provider, model = strings.ToLower(provider), strings.ToLower(model)
	s := b.providers[provider]
	if s != nil {
		provider = s.id
	}
	overrides := b.overrides[name{provider, model}]
	for i := len(overrides) - 1; i >= 0; i-- {
		if row := overrides[i]; row.covers(at) {
			return row, row.priced()
		}
	}
	if s == nil {
		return nil, false
	}
	e := s.find(model)
	for i := 0; e == nil && i < len(s.borrow); i++ {
		if lender := b.providers[s.borrow[i]]; lender != nil {
			e = lender.find(model)
		}
	}
	if e == nil {
		return nil, false
	}
	for _, row := range e.rows {
		if row.covers(at) && row.priced() {
			return row, true
		}
	}
	return nil, false
}

// Row gives the row with an ID, as a transfer pins it.
func (b *Book) Row(id string) (*Row, bool) {
	row, ok := b.rows[id]
	return row, ok
}

// Rows lists every row of the book and of its overrides, by ID.
func (b *Book) Rows() []*Row {
	return slices.SortedFunc(maps.Values(b.rows), func(x, y *Row) int { return strings.Compare(x.ID, y.ID) })
}

// SourcePolicy is the Source of rows that come from a policy.
const SourcePolicy = "policy"

// With gives a book with rows of a policy laid on top. Each prices exactly its Model, from From until the next row of the model, and
// takes the place of the book's row as a whole: a class that it does not list follows the rules in the package comment, not the
// book. Before the first From of a model the book's own rows stay in force. The receiver is not changed. It joins all errors it
// finds: two rows of a model from the same instant, a class that does not exist, a negative price, no price at all.
func (b *Book) With(overlay []Row) (*Book, error) {
	out := &Book{providers: b.providers, overrides: map[name][]*Row{}, rows: maps.Clone(b.rows)}
	for key, rows := range b.overrides {
		out.overrides[key] = slices.Clone(rows)
	}
	var errs []error
	touched := map[name]bool{}
	for i := range overlay {
		row := overlay[i]
		row.Match, row.Until, row.Source = Match{}, time.Time{}, SourcePolicy
		if row.From = row.From.UTC(); row.From.IsZero() {
			row.From = time.Time{}
		}
		if !row.priced() {
			errs = append(errs, fmt.Errorf("price of %s/%s: names no price", row.Provider, row.Model))
			continue
		}
		key := name{strings.ToLower(row.Provider), strings.ToLower(row.Model)}
		if s := b.providers[key.provider]; s != nil {
			key.provider = s.id
		}
		if err := out.override(key, &row); err != nil {
			errs = append(errs, err)
		}
		touched[key] = true
	}
	for key := range touched {
		errs = append(errs, chain(out.overrides[key]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func (b *Book) override(key name, row *Row) error {
	if err := row.validate(); err != nil {
		return err
	}
	// The prefix keeps the ID apart from a row of the book with the same prices.
	row.ID = SourcePolicy + ":" + row.identify()
	b.rows[row.ID] = row
	b.overrides[key] = append(b.overrides[key], row)
	return nil
}

// chain orders the overrides of one model by From: Find takes the last one that has begun.
func chain(rows []*Row) error {
	slices.SortFunc(rows, func(x, y *Row) int { return x.From.Compare(y.From) })
	for i := 1; i < len(rows); i++ {
		if rows[i-1].From.Equal(rows[i].From) {
			return fmt.Errorf("price of %s/%s: stated twice from the same instant", rows[i].Provider, rows[i].Model)
		}
	}
	return nil
}
