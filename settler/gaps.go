package settler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"tollgate/ledger/pg"
)

// gap is a run of one producer's sequences that was found missing together. It stays the one gap while parts of it arrive.
type gap struct {
	pg.Gap           // as it was found
	since  time.Time // when it was
	left   uint64    // of its events, still missing
	late   bool      // missing for too long, and reported
}

// gaps are the runs that have been missing since the settler's start or later, in the order of producer and sequence.
type gaps []*gap

// update takes what is missing now, in the same order. What lies in a known gap is its rest, what does not is a gap of its own.
// filled are the known gaps of which nothing is missing any more; open are the others and the new ones.
func (known gaps) update(missing []pg.Gap, now time.Time) (filled, open gaps) {
	for _, g := range known {
		g.left = 0
	}
	next := 0 // the first known gap that does not end before what is looked at
	for _, rest := range missing {
		for next < len(known) && known[next].before(rest) {
			next++
		}
		for _, g := range known[next:] {
			if g.Producer != rest.Producer || g.From >= rest.Until {
				break
			}
			if rest.From < g.From {
				open = append(open, newGap(pg.Gap{Producer: rest.Producer, From: rest.From, Until: g.From}, now))
				rest.From = g.From
			}
			end := min(g.Until, rest.Until)
			g.left += end - rest.From
			rest.From = end
		}
		if rest.From < rest.Until {
			open = append(open, newGap(rest, now))
		}
	}
	for _, g := range known {
		if g.left == 0 {
			filled = append(filled, g)
		} else {
			open = append(open, g)
		}
	}
	slices.SortFunc(open, func(a, b *gap) int { return cmp.Or(cmp.Compare(a.Producer, b.Producer), cmp.Compare(a.From, b.From)) })
	return filled, open
}

func newGap(missing pg.Gap, now time.Time) *gap {
	return &gap{Gap: missing, since: now, left: missing.Until - missing.From}
}

// before tells whether the gap lies before the other and they share nothing.
func (g *gap) before(other pg.Gap) bool {
	return g.Producer < other.Producer || g.Producer == other.Producer && g.Until <= other.From
}

// gapReporter looks for sequences that are missing for too long, and reports each once.
func (s *Settler) gapReporter() func(context.Context) error {
	var known gaps
	return func(ctx context.Context) error {
		open, err := s.store.OpenCount(ctx)
		if err != nil {
			return err
		}
		s.metrics.open.Set(float64(open))
		missing, err := s.store.Gaps(ctx)
		if err != nil {
			return err
		}
		now := s.now()
		var filled gaps
		filled, known = known.update(missing, now)
		for _, g := range filled {
			if g.late {
				s.log.Info("missing events have arrived", "producer", g.Producer, "from", g.From, "until", g.Until)
			}
		}
		late := uint64(0)
		for _, g := range known {
			if !g.late && now.Sub(g.since) >= s.config.GapAge {
				g.late = true
				s.metrics.gaps.Add(float64(g.left))
				s.log.Error("events are missing", "producer", g.Producer, "from", g.From, "until", g.Until, "events", g.left)
			}
			if g.late {
				late += g.left
			}
		}
		s.metrics.missing.Set(float64(late))
		return nil
	}
}
