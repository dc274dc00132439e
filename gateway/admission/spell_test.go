package admission

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
)

// However many requests end during a spell, what is remembered of them is bounded, in number and in time.
func TestSpellForgetsWhatHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s spell
		s.begin(app, &event.Reservation{ID: "in flight"})
		for i := range 2 * spellMost {
			id := strconv.Itoa(i)
			s.begin(app, &event.Reservation{ID: id})
			s.end(id, time.Now())
		}
		require.Equal(t, spellMost+1, len(s.admitted))
		require.NotZero(t, s.admitted[strconv.Itoa(2*spellMost-1)], "the latest are kept")
		time.Sleep(spellKeep)
		require.Equal(t, spellMost+1, len(s.open()[app]))
		time.Sleep(time.Nanosecond)
		require.Len(t, s.open()[app], 1, "who is in flight")
		s.registered(s.open()[app])
		require.False(t, s.any())
	})
}
