package settler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger/pg"
)

func TestGapFilledInPartStaysOne(t *testing.T) {
	t.Parallel()
	found, later := time.Unix(0, 0), time.Unix(1, 0)
	filled, open := gaps(nil).update([]pg.Gap{{Producer: "gw-1", From: 5, Until: 10}}, found)
	require.Empty(t, filled)
	require.Len(t, open, 1)
	filled, open = open.update([]pg.Gap{{Producer: "gw-1", From: 5, Until: 7}, {Producer: "gw-1", From: 8, Until: 10}}, later)
	require.Empty(t, filled)
	require.Len(t, open, 1)
	require.Equal(t, gap{Gap: pg.Gap{Producer: "gw-1", From: 5, Until: 10}, since: found, left: 4}, *open[0])
	filled, open = open.update(nil, later)
	require.Len(t, filled, 1)
	require.Empty(t, open)
}

// Whatever arrives and goes missing, each event that is missing is in one gap, since it was first seen missing.
func TestGapsAgainstModel(t *testing.T) {
	t.Parallel()
	type place struct {
		producer string
		sequence uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		var open gaps
		since := map[place]time.Time{}
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			now, still := time.Unix(int64(step), 0), map[place]time.Time{}
			var missing []pg.Gap
			for _, producer := range []string{"gw-1", "gw-2"} {
				away := rapid.SliceOfN(rapid.Bool(), 12, 12).Draw(t, producer)
				for i, lacks := range away {
					at := place{producer, uint64(i)}
					if !lacks {
						continue
					}
					still[at] = now
					if before, known := since[at]; known {
						still[at] = before
					}
					if i > 0 && away[i-1] {
						missing[len(missing)-1].Until++
					} else {
						missing = append(missing, pg.Gap{Producer: producer, From: at.sequence, Until: at.sequence + 1})
					}
				}
			}
			_, open = open.update(missing, now)
			since = still
			total := uint64(0)
			for _, g := range open {
				left := uint64(0)
				for sequence := g.From; sequence < g.Until; sequence++ {
					// What had arrived and is missing anew counts from then where its gap was filled, else from the gap's beginning.
					if first, is := since[place{g.Producer, sequence}]; is {
						require.False(t, first.Before(g.since))
						left++
					}
				}
				require.Equal(t, left, g.left)
				require.Positive(t, left)
				total += left
			}
			require.Equal(t, uint64(len(since)), total)
		}
	})
}
