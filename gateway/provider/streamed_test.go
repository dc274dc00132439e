package provider

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
		"nothing":                  {"", 1, 1},
		"a token an event":         {strings.Repeat(chunk("a"), 20), 20, 20},
		"many tokens an event":     {strings.Repeat(chunk("several words of text here"), 10), 50, 70},
		"an escaped quote":         {chunk(`he said \"no such thing\" and then left the room`), 10, 16},
		"a text without its end":   {`data: {"choices":[{"delta":{"content":"some words of text`, 4, 6},
		"text in another alphabet": {chunk(strings.Repeat("語", 100)), 100, 120},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := Chat.RelayStream(discard{}, strings.NewReader(c.body), true, false)
			require.ErrorIs(t, err, ErrUpstreamCut)
			require.GreaterOrEqual(t, int64(answer.Streamed()), c.least)
			require.LessOrEqual(t, int64(answer.Streamed()), c.most)
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Flush()                      {}
