package provider

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

func TestStreamedCountsTextAndEvents(t *testing.T) {
	t.Parallel()
	chunk := func(text string) string {
		return `data: {"id":"1","choices":[{"index":0,"delta":{"content":"` + text + `"}}]}` + "\n\n"
	}
	for name, c := range map[string]struct {
		body        string
		least, most int64
	}{
		"nothing":                  {"", 0, 0},
		"a token an event":         {strings.Repeat(chunk("a"), 20), 20, 20},
		"many tokens an event":     {strings.Repeat(chunk("several words of text here"), 10), 50, 70},
		"an escaped quote":         {chunk(`he said \"no such thing\" and then left the room`), 10, 16},
		"an event without its end": {`data: {"choices":[{"delta":{"content":"some words of text`, 0, 6},
		"text in another alphabet": {chunk(strings.Repeat("語", 100)), 100, 120},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := Chat.RelayStream(discard{}, strings.NewReader(c.body), Passing{Withhold: true})
			require.ErrorIs(t, err, ErrUpstreamCut)
			require.GreaterOrEqual(t, int64(answer.Output), c.least)
			require.LessOrEqual(t, int64(answer.Output), c.most)
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Flush()                      {}

// A text is counted as the tokenizer counts it whole, however its model hands it over: nearly, for a token may be cut where a text
// without blanks is long.
func TestStreamedIsCountedExactly(t *testing.T) {
	t.Parallel()
	require.NoError(t, LoadVocabularies())
	text := strings.Repeat("The tokenizer's count of \"streamed\" text (naïve, 語の数, 12345 and so on) is that of the whole.\n", 60)
	for _, model := range []string{"gpt-4o-mini", "gpt-4", "claude-sonnet-4-6"} {
		whole := newEstimator(model)
		whole.text(text)
		for _, size := range []int{7, 50, 3000} {
			var body strings.Builder
			for rest := []rune(text); len(rest) > 0; {
				n := min(size, len(rest))
				delta, err := json.Marshal(string(rest[:n]))
				require.NoError(t, err)
				fmt.Fprintf(&body, "data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%s}}]}\n\n", delta)
				rest = rest[n:]
			}
			answer, err := Chat.RelayStream(discard{}, strings.NewReader(body.String()), Passing{Model: model})
			require.ErrorIs(t, err, ErrUpstreamCut)
			require.InEpsilon(t, int64(whole.tokens()), int64(answer.Output), 0.005, "%s in pieces of %d", model, size)
		}
	}
}

// Whatever part of an answer a delta carries is counted; what some providers say twice, once.
func TestStreamedCountsEveryPart(t *testing.T) {
	t.Parallel()
	require.NoError(t, LoadVocabularies())
	const words = " one two three four"
	for name, c := range map[string]struct {
		delta string
		want  int
	}{
		"content":        {`{"content":"` + words + `"}`, 4},
		"refusal":        {`{"refusal":"` + words + `"}`, 4},
		"reasoning":      {`{"content":null,"reasoning":"` + words + `","reasoning_content":"` + words + `"}`, 4},
		"its details":    {`{"content":"","reasoning":null,"reasoning_details":[{"type":"reasoning.text","text":"` + words + `"},{"type":"reasoning.summary","summary":" five"},{"type":"reasoning.encrypted","data":"AAAA"}]}`, 5},
		"said twice":     {`{"reasoning":"` + words + `","reasoning_details":[{"type":"reasoning.text","text":"` + words + `"}]}`, 4},
		"tool call":      {`{"tool_calls":[{"index":0,"function":{"name":" five","arguments":"` + words + `"}}]}`, 5},
		"own tool":       {`{"tool_calls":[{"index":0,"type":"custom","custom":{"name":" five","input":"` + words + `"}}]}`, 5},
		"function call":  {`{"function_call":{"arguments":"` + words + `"}}`, 4},
		"transcript":     {`{"audio":{"data":"AAAA","transcript":"` + words + `"}}`, 4},
		"list of parts":  {`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"` + words + `"}]},{"type":"text","text":" five"}]}`, 5},
		"nothing at all": {`{"role":"assistant","content":""}`, 0},
	} {
		body := `data: {"choices":[{"index":0,"delta":` + c.delta + "}]}\n\n"
		answer, err := Chat.RelayStream(discard{}, strings.NewReader(body), Passing{Model: "gpt-4o"})
		require.ErrorIs(t, err, ErrUpstreamCut, name)
		require.EqualValues(t, c.want, answer.Output, name)
	}
	both := `data: {"choices":[{"index":0,"delta":{"content":" one"}},{"index":1,"delta":{"content":" two"}}]}` + "\n\n"
	answer, err := Chat.RelayStream(discard{}, strings.NewReader(strings.Repeat(both, 300)), Passing{Model: "gpt-4o"})
	require.ErrorIs(t, err, ErrUpstreamCut)
	require.EqualValues(t, 600, answer.Output)
}

// Figures that come with every piece are those of an answer so far: where it breaks off, they are no report.
func TestInterimFiguresAreNoReport(t *testing.T) {
	t.Parallel()
	piece := func(n int, finish string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"content":" one"},"finish_reason":%s}],"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", finish, n, 5+n)
	}
	cut, err := Chat.RelayStream(discard{}, strings.NewReader(piece(1, "null")+piece(2, "null")), Passing{Model: "gpt-4o"})
	require.ErrorIs(t, err, ErrUpstreamCut)
	require.Equal(t, Reading{Usage: ledger.Usage{Input: 5, Output: 2}, State: ledger.UsageEstimated}, cut.Reading)
	whole, err := Chat.RelayStream(discard{}, strings.NewReader(piece(1, "null")+piece(2, `"stop"`)+doneChunk), Passing{Model: "gpt-4o"})
	require.NoError(t, err)
	require.Equal(t, Reading{Usage: ledger.Usage{Input: 5, Output: 2}, State: ledger.UsageReported}, whole.Reading)
}

// All streams together hold back no more than their bound: beyond it an event passes in pieces. Not parallel: the bound is the
// process's.
func TestHeldBackIsBounded(t *testing.T) {
	before := heldBack.Load()
	heldBack.Store(maxHeldBack - bufferSize)
	defer heldBack.Store(before)
	large := chunk(strings.Repeat("x", 10*bufferSize))
	s := &sink{}
	_, err := Chat.RelayStream(s, strings.NewReader(large+usageChunk+doneChunk), Passing{})
	require.NoError(t, err)
	require.True(t, s.String() == large+usageChunk+doneChunk)
	require.Greater(t, s.writes, 4)
	require.EqualValues(t, maxHeldBack-bufferSize, heldBack.Load())
}
