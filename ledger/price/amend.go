package price

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tollgate/ledger"
)

// Amend gives a book in which each row prices its model from row.From on. What the book had for the model by then ends there,
// and what it had for later is superseded; rows as such are never changed, and Row still finds all of them. Later rows of the
// list win over earlier ones. A model that the book did not know is tried before those it knew. The receiver is not changed.
func (b *Book) Amend(rows []Row) (*Book, error) {
	out := &Book{providers: make(map[string]*shelf, len(b.providers)), overrides: b.overrides, rows: maps.Clone(b.rows)}
	copies := map[*shelf]*shelf{}
	for alias, s := range b.providers {
		c := copies[s]
		if c == nil {
			c = &shelf{id: s.id, borrow: s.borrow, entries: slices.Clone(s.entries), exact: s.exact, patterns: s.patterns}
			copies[s] = c
		}
		out.providers[alias] = c
	}
	var errs []error
	touched := map[*shelf]bool{}
	for i := range rows {
		row := rows[i]
		id := row.identify()
		if row.ID != "" && row.ID != id {
			errs = append(errs, fmt.Errorf("price row %s: its content belongs to %s", row.ID, id))
			continue
		}
		if err := row.validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		row.ID = id
		out.rows[id] = &row
		s := out.shelf(row.Provider)
		s.amend(&row)
		touched[s] = true
	}
	for s := range touched {
		errs = append(errs, s.index())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

func (s *shelf) amend(row *Row) {
	at := slices.IndexFunc(s.entries, func(e entry) bool { return strings.EqualFold(e.model, row.Model) })
	if at < 0 {
		s.entries = slices.Insert(s.entries, 0, entry{model: row.Model, match: row.Match, rows: []*Row{row}})
		return
	}
	e := &s.entries[at]
	if !row.Match.IsZero() {
		e.match = row.Match
	}
	var kept []*Row
	for _, old := range e.rows {
		switch {
		case !old.From.Before(row.From): // superseded
		case old.Until.IsZero() || old.Until.After(row.From):
			ended := *old
			ended.Until = row.From
			kept = append(kept, &ended)
		default:
			kept = append(kept, old)
		}
	}
	e.rows = append(kept, row)
}

// rowsOf lists the rows of one model by their beginning; none for a model that only a pattern of another one matches.
func (b *Book) rowsOf(provider, model string) []*Row {
	s := b.providers[strings.ToLower(provider)]
	if s == nil {
		return nil
	}
	at := slices.IndexFunc(s.entries, func(e entry) bool { return strings.EqualFold(e.model, model) })
	if at < 0 {
		return nil
	}
	return slices.SortedFunc(slices.Values(s.entries[at].rows), func(x, y *Row) int { return x.From.Compare(y.From) })
}

// figures are everything that the row prices, by what people call it, in nano-dollars per million.
func (r *Row) figures() map[string]ledger.NanoUSD {
	out := map[string]ledger.NanoUSD{}
	add := func(prefix string, prices Prices) {
		for class, p := range prices {
			out[prefix+string(class)] = p.Base
			for _, s := range p.Steps {
				out[fmt.Sprintf("%s%s above %d", prefix, class, s.Above)] = s.Price
			}
		}
	}
	add("", r.Prices)
	for tier, prices := range r.Service {
		add(string(tier)+" ", prices)
	}
	for _, d := range r.Daily {
		from, _ := d.From.MarshalText() // never errs
		add(string(from)+" ", d.Prices)
	}
	for call, price := range r.PerCall {
		out["a million calls "+string(call)] = price
	}
	return out
}
