package price

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"tollgate/ledger"
)

// Proposal is what a sheet would change in a book from an instant on.
type Proposal struct {
	Changes []Change
	Gone    []string // models of the sheet's providers that it does not list; their prices stay
}

// Change is what a proposal does to one model.
type Change struct {
	Provider, Model string
	Kind            ChangeKind
	Rows            []Row // to amend the book with, by their beginning
	Figures         []FigureChange
}

// ChangeKind is what happens to a model's prices.
type ChangeKind string

// The kinds of changes.
const (
	ChangeAdded   ChangeKind = "added"
	ChangeChanged ChangeKind = "changed"
	ChangeEnded   ChangeKind = "ended" // it has no price from some instant on
)

// FigureChange is one price before and after, in nano-dollars per million. Not known is another thing than zero.
type FigureChange struct {
	What           string
	Before, After  ledger.NanoUSD
	Was, Is        bool   // whether it is known before and after
	Doubt          string // why a person must look again, "" for no doubt
	From           time.Time
	PercentRounded int64 // of the change; 0 when it was not known or zero
}

// Name is provider/model, by which a doubtful change is accepted.
func (c Change) Name() string { return c.Provider + "/" + c.Model }

// Doubtful reports whether a figure of the change must be looked at again.
func (c Change) Doubtful() bool {
	return slices.ContainsFunc(c.Figures, func(f FigureChange) bool { return f.Doubt != "" })
}

// Rows are those that the accepted changes amend a book with.
func (p Proposal) Rows() []Row {
	var rows []Row
	for _, c := range p.Changes {
		rows = append(rows, c.Rows...)
	}
	return rows
}

// Propose compares a sheet with the book from an instant on. What was before it stays as it is: a row of the sheet that began
// earlier begins there. Rows that say the same change nothing.
func (b *Book) Propose(sheet *Sheet, from time.Time) Proposal {
	byModel := map[name][]Row{}
	var order []name
	providers := map[string]bool{}
	for _, row := range sheet.Rows {
		key := name{row.Provider, row.Model}
		if _, met := byModel[key]; !met {
			order = append(order, key)
		}
		byModel[key] = append(byModel[key], row)
		providers[strings.ToLower(row.Provider)] = true
	}
	var p Proposal
	for _, key := range order {
		after := clip(pointers(byModel[key]), from)
		before := clip(b.rowsOf(key.provider, key.model), from)
		if len(after) == 0 || same(before, after) {
			continue
		}
		c := Change{Provider: key.provider, Model: key.model, Kind: ChangeChanged, Rows: after, Figures: compare(before, after)}
		switch last := after[len(after)-1]; {
		case len(before) == 0:
			c.Kind = ChangeAdded
		case !last.Until.IsZero() && before[len(before)-1].Until.IsZero():
			c.Kind = ChangeEnded
		}
		p.Changes = append(p.Changes, c)
	}
	for id := range providers {
		if s := b.providers[id]; s != nil {
			for _, e := range s.entries {
				if _, listed := byModel[name{s.id, e.model}]; !listed {
					p.Gone = append(p.Gone, s.id+"/"+e.model)
				}
			}
		}
	}
	slices.Sort(p.Gone)
	return p
}

func pointers(rows []Row) []*Row {
	out := make([]*Row, len(rows))
	for i := range rows {
		out[i] = &rows[i]
	}
	return out
}

// clip gives the rows that are in force at the instant or later, those that began earlier beginning there.
func clip(rows []*Row, from time.Time) []Row {
	var out []Row
	for _, r := range rows {
		if !r.Until.IsZero() && !r.Until.After(from) || !r.priced() {
			continue
		}
		row := *r
		if row.From.Before(from) {
			row.From = from
		}
		row.ID = row.identify()
		out = append(out, row)
	}
	slices.SortFunc(out, func(x, y Row) int { return x.From.Compare(y.From) })
	return out
}

func same(x, y []Row) bool {
	return slices.EqualFunc(x, y, func(a, b Row) bool {
		return a.ID == b.ID && a.Until.Equal(b.Until) && reflect.DeepEqual(a.Match, b.Match)
	})
}

// compare lists the figures that differ: each row of after with the one of before that it takes the place of.
func compare(before, after []Row) []FigureChange {
	var out []FigureChange
	for _, row := range after {
		var old map[string]ledger.NanoUSD
		for i := range before {
			if before[i].covers(row.From) {
				old = before[i].figures()
			}
		}
		now := row.figures()
		names := maps.Clone(old)
		if names == nil {
			names = map[string]ledger.NanoUSD{}
		}
		maps.Copy(names, now)
		for _, what := range slices.Sorted(maps.Keys(names)) {
			f := FigureChange{What: what, From: row.From}
			f.Before, f.Was = old[what]
			f.After, f.Is = now[what]
			if f.Was == f.Is && f.Before == f.After {
				continue
			}
			f.judge(len(old) > 0)
			out = append(out, f)
		}
	}
	return out
}

// judge tells what a change of a known price may be that nobody meant.
func (f *FigureChange) judge(known bool) {
	switch {
	case !known || !f.Was: // a new model, or a class that was not told apart
	case !f.Is:
		f.Doubt = "the price vanishes"
	case f.Before == 0 || f.After == 0:
		f.Doubt = "from or to free of charge"
	default:
		ratio := float64(f.After) / float64(f.Before) // a figure for people, and for a threshold; no money is made of it
		f.PercentRounded = int64(math.Round((ratio - 1) * 100))
		power := math.Round(math.Log10(ratio))
		switch off := math.Abs(math.Log10(ratio) - power); {
		case power != 0 && off < 0.05:
			f.Doubt = fmt.Sprintf("about 10^%d times: is it another unit?", int(power))
		case beyondFifth(f.Before, f.After):
			f.Doubt = "more than 20 %"
		}
	}
}

// beyondFifth reports whether after differs from before by more than a fifth of it.
func beyondFifth(before, after ledger.NanoUSD) bool {
	apart := after - before
	if apart < 0 {
		apart = -apart
	}
	return apart > before/5
}
