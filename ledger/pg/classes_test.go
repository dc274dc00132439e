package pg_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// TestEveryClassIsCarried settles a usage whose classes all differ: people read each in finance.requests, the invariants hold,
// and a rebuild finds the same.
func TestEveryClassIsCarried(t *testing.T) {
	t.Parallel()
	ctx, url := context.Background(), stack.Postgres(t)
	store := openAt(t, url)
	r := reservation("checkout", 0, start)
	used := newEvent(event.KindUsed, "checkout", r, 2)
	o := used.Outcome
	o.ServiceTier = ledger.ServiceFlex
	o.Usage = ledger.Usage{
		Input: 1, CachedInput: 2, CacheWrite5m: 3, CacheWrite1h: 4, InputAudio: 5, InputImage: 6, InputVideo: 7, CachedInputAudio: 8,
		CachedInputImage: 9, Output: 10, Reasoning: 11, OutputAudio: 12, OutputImage: 13, OutputVideo: 14,
		Calls: ledger.Calls{WebSearch: 15, FileSearch: 16, CodeInterpreter: 17},
	}
	o.Components = nil
	for _, c := range o.Usage.Classes() {
		o.Components = append(o.Components, event.Component{Class: c.Class, Tokens: c.Tokens, Price: 1_000_000, Cost: ledger.NanoUSD(c.Tokens)})
	}
	for _, c := range o.Usage.Calls.Classes() {
		o.Components = append(o.Components, event.Component{Class: c.Class, Tokens: ledger.Tokens(c.Calls), Price: 1_000_000, Cost: ledger.NanoUSD(c.Calls)})
	}
	o.Cost = ledger.NanoUSD(17 * 18 / 2)
	mustPost(t, store, newEvent(event.KindReserved, "checkout", r, 1), used)
	require.Equal(t, []string{"1 2 7 5 6 7 8 9 10 11 12 13 14 15 16 17 flex 105"}, lines(t, url, `
SELECT concat_ws(' ', input_tokens, cached_input_tokens, cache_write_tokens, input_audio_tokens, input_image_tokens, input_video_tokens,
    cached_input_audio_tokens, cached_input_image_tokens, output_tokens, reasoning_tokens, output_audio_tokens, output_image_tokens,
    output_video_tokens, web_search_calls, file_search_calls, code_interpreter_calls, service_tier, charged_tokens)
FROM finance.requests`))
	requireVerified(t, store)
	differences, _, err := store.Rebuild(ctx, pg.RebuildOptions{Schema: "rebuilt"})
	require.NoError(t, err)
	for _, d := range differences {
		require.Zero(t, d.Differ, fmt.Sprint(d.Examples))
	}
}
