package admission

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A barrier waits for the sections that had begun and not for those that begin after it, and one that gave up loses none.
func TestBarrierWaitsForSections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSections()
		old := s.begin()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.passed(ctx), context.DeadlineExceeded)

		young := s.begin()
		passed := make(chan error, 1)
		go func() { passed <- s.passed(t.Context()) }()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, passed, "a section that an earlier barrier gave up waiting for")
		old.end()
		old.end()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, passed, "a section that had begun before this barrier")
		young.end()
		require.NoError(t, <-passed)

		after := s.begin()
		after.end()
		require.NoError(t, s.passed(t.Context()))
	})
}

// A barrier adopts its generation at once, a generation that is only read is adopted when what was admitted before is on record;
// and neither goes back.
func TestGenerationIsAdopted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewControl(nil, nil, func(context.Context) error { return nil })
		open := c.sections.begin()
		passed := make(chan error, 1)
		go func() { passed <- c.Barrier(t.Context(), "10") }()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, "10", c.Generation())
		require.Empty(t, passed, "a decision of before is not on record")
		open.end()
		require.NoError(t, <-passed)
		require.NoError(t, c.Barrier(t.Context(), "9"))
		require.Equal(t, "10", c.Generation())
	})
}

func BenchmarkSection(b *testing.B) {
	s := newSections()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			section := s.begin()
			section.end()
		}
	})
}
