package outbox

import (
	"slices"
	"sort"

	"tollgate/ledger/event"
)

// spans is a set of sequences as half-open runs, ascending, with a gap between any two: events come and go nearly in order, so
// millions of them are a few runs.
type spans []event.Span

// at is the index of the run that has the sequence, or of the first behind it.
func (s spans) at(sequence uint64) (i int, has bool) {
	i = sort.Search(len(s), func(i int) bool { return s[i].Until > sequence })
	return i, i < len(s) && s[i].From <= sequence
}

func (s spans) has(sequence uint64) bool {
	_, has := s.at(sequence)
	return has
}

// add tells whether the sequence was not there.
func (s *spans) add(sequence uint64) bool {
	i, has := s.at(sequence)
	if has {
		return false
	}
	runs := *s
	before := i > 0 && runs[i-1].Until == sequence
	behind := i < len(runs) && runs[i].From == sequence+1
	switch {
	case before && behind:
		runs[i-1].Until = runs[i].Until
		*s = slices.Delete(runs, i, i+1)
	case before:
		runs[i-1].Until++
	case behind:
		runs[i].From--
	default:
		*s = slices.Insert(runs, i, event.Span{From: sequence, Until: sequence + 1})
	}
	return true
}

// remove tells whether the sequence was there.
func (s *spans) remove(sequence uint64) bool {
	i, has := s.at(sequence)
	if !has {
		return false
	}
	runs := *s
	run := runs[i]
	switch {
	case run.Until == run.From+1:
		*s = slices.Delete(runs, i, i+1)
	case run.From == sequence:
		runs[i].From++
	case run.Until == sequence+1:
		runs[i].Until--
	default:
		runs[i].Until = sequence
		*s = slices.Insert(runs, i+1, event.Span{From: sequence + 1, Until: run.Until})
	}
	return true
}

// until counts the sequences up to and with the last.
func (s spans) until(last uint64) int {
	n := uint64(0)
	for _, run := range s {
		if run.From > last {
			break
		}
		n += min(run.Until, last+1) - run.From
	}
	return int(n)
}

func (s spans) count() int {
	n := uint64(0)
	for _, run := range s {
		n += run.Until - run.From
	}
	return int(n)
}
