package admission

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
)

// What ended long ago is dropped, and looking for it is no work that every request does again.
func TestSpellForgetsWhatEndedLongAgo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s spell
		come := func(from, to int, end bool) {
			for i := from; i < to; i++ {
				id := strconv.Itoa(i)
				s.begin("shop", &event.Reservation{ID: id})
				if end {
					s.end(id)
				}
			}
		}
		come(0, spellMost+1, true)
		first := s.looked
		require.Equal(t, time.Now(), first)
		come(spellMost+1, 3*spellMost, true)
		time.Sleep(spellLook - 1)
		come(3*spellMost, 3*spellMost+1, false)
		require.Equal(t, first, s.looked, "not again within the second")
		require.Len(t, s.admitted, 3*spellMost+1)
		time.Sleep(spellKeep)
		come(-1, 0, false)
		require.Len(t, s.admitted, 2, "one in flight, one just come")
	})
}
