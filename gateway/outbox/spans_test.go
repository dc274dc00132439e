package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSpansAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s spans
		model := map[uint64]bool{}
		for _, step := range rapid.SliceOf(rapid.IntRange(-20, 20)).Draw(t, "steps") {
			sequence := uint64(max(step, -step))
			if step > 0 {
				require.Equal(t, !model[sequence], s.add(sequence))
				model[sequence] = true
			} else {
				require.Equal(t, model[sequence], s.remove(sequence))
				delete(model, sequence)
			}
			total := 0
			for i := range uint64(25) {
				require.Equal(t, model[i], s.has(i))
				if model[i] {
					total++
				}
				require.Equal(t, total, s.until(i))
			}
			require.Equal(t, total, s.count())
			for i, run := range s {
				require.Less(t, run.From, run.Until)
				require.True(t, i == 0 || s[i-1].Until < run.From)
			}
		}
	})
}
