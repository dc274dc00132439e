package sim

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const chatPath = "/v1/chat/completions"

// readCut reads an answer that must break off, and returns what came before.
func readCut(t *testing.T, answer *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(answer.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a cut must not look like an end")
	return string(body)
}

func TestCutStreamIsBilledWhatWasGenerated(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	body := readCut(t, do(t, "POST", url+chatPath,
		streamed("[[sim prompt_tokens=60 completion_tokens=45 reasoning_tokens=5 chunks=20 cut_after=7]]")))
	require.Equal(t, 1+7, strings.Count(body, "data: "), "a role and seven chunks")
	require.NotContains(t, body, "[DONE]")
	require.True(t, strings.HasSuffix(body, "\n\n"), "cut between two events")
	r := onlyRecord(t, s)
	require.Equal(t, OutcomeCut, r.Outcome)
	require.False(t, r.ClientLeft)
	require.EqualValues(t, 60, r.InputTokens)
	require.EqualValues(t, 5, r.ReasoningTokens)
	require.EqualValues(t, 5+40*7/20, r.OutputTokens)
	require.EqualValues(t, 60*150+19*600, r.CostNanoUSD)
}

func TestCutBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		streamed("[[sim cut_after=0]]"), strings.Replace(hello, "Say", "[[sim cut_after=0]]", 1),
	} {
		s, url := start(t, DefaultConfig())
		r, err := http.NewRequestWithContext(t.Context(), "POST", url+chatPath, strings.NewReader(body))
		require.NoError(t, err)
		_, err = httpClient(t).Do(r) //nolint:bodyclose // there is no answer
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, OutcomeCut, onlyRecord(t, s).Outcome)
	}
}

func TestCutPlainAnswerIsBilledInFull(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		chatPath:         strings.Replace(hello, "Say", "[[sim completion_tokens=9 cut_after=1]]", 1),
		"/v1/embeddings": `{"model":"text-embedding-3-small","input":"[[sim cut_after=1]]"}`,
	}
	for path, body := range tests {
		s, url := start(t, DefaultConfig())
		answer := do(t, "POST", url+path, body)
		require.NotEmpty(t, readCut(t, answer))
		r := onlyRecord(t, s)
		require.Equal(t, OutcomeCut, r.Outcome)
		require.Positive(t, r.CostNanoUSD)
		if path == chatPath {
			require.EqualValues(t, 9, r.OutputTokens)
		}
	}
}

func TestStreamWithoutDoneEndsCleanly(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	body := text(t, do(t, "POST", url+chatPath, streamed("[[sim no_done no_usage]]")))
	require.NotContains(t, body, "[DONE]")
	require.NotContains(t, body, "usage")
	require.Contains(t, body, `"finish_reason":"stop"`)
	r := onlyRecord(t, s)
	require.Equal(t, OutcomeComplete, r.Outcome)
	require.EqualValues(t, 40, r.OutputTokens, "what is not told is billed all the same")
}

func TestZeroUsage(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	body := text(t, do(t, "POST", url+chatPath, streamed("[[sim zero_usage]]")))
	require.Contains(t, body, `"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,`)
	require.Contains(t, body, `"content":"The meter"`, "there is an answer all the same")
	r := onlyRecord(t, s)
	require.Zero(t, r.InputTokens+r.OutputTokens+r.CostNanoUSD)
}

func TestReaderThatLeavesMidStream(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", url+chatPath,
		strings.NewReader(streamed("[[sim prompt_tokens=60 completion_tokens=100 chunks=100 chunk_delay=200ms]]")))
	require.NoError(t, err)
	answer, err := httpClient(t).Do(r)
	require.NoError(t, err)
	lines := bufio.NewScanner(answer.Body)
	seen := 0
	for seen < 4 && lines.Scan() {
		if strings.Contains(lines.Text(), `"content":"`) && !strings.Contains(lines.Text(), `"role"`) {
			seen++
		}
	}
	leave()
	require.NoError(t, answer.Body.Close())
	record := onlyRecord(t, s)
	require.True(t, record.ClientLeft)
	require.Equal(t, OutcomeClientLeft, record.Outcome)
	require.EqualValues(t, 60, record.InputTokens)
	require.GreaterOrEqual(t, record.OutputTokens, int64(4), "one token a chunk, and four were seen")
	require.Less(t, record.OutputTokens, int64(100))
	require.EqualValues(t, 1, s.Totals().ClientLeft)
}

func TestReaderThatLeavesBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		output     int64
	}{
		{"stream", streamed("[[sim latency=1m]]"), 0},
		{"plain", strings.Replace(hello, "Say", "[[sim latency=1m]]", 1), 40},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, url := start(t, DefaultConfig())
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, "POST", url+chatPath, strings.NewReader(tt.body))
			require.NoError(t, err)
			left := make(chan error, 1)
			go func() {
				_, err := httpClient(t).Do(r) //nolint:bodyclose // there is no answer
				left <- err
			}()
			require.Eventually(t, func() bool { return s.Totals().Calls == 1 }, deadline, 1)
			leave()
			require.ErrorIs(t, <-left, context.Canceled)
			record := onlyRecord(t, s)
			require.True(t, record.ClientLeft)
			require.Positive(t, record.InputTokens)
			require.Equal(t, tt.output, record.OutputTokens)
		})
	}
}

func TestManyTokensLittleText(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	for _, body := range []string{
		streamed("[[sim completion_tokens=100000000 prompt_tokens=100000000]]"),
		strings.Replace(hello, "Say", "[[sim completion_tokens=100000000 prompt_tokens=100000000]]", 1),
	} {
		s.Reset()
		require.Less(t, len(text(t, do(t, "POST", url+chatPath, body))), 1<<17)
		require.EqualValues(t, 100_000_000*(150+600), onlyRecord(t, s).CostNanoUSD)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.ShutdownTimeout = deadline
	ctx, stop := context.WithCancel(t.Context())
	s, url, stopped := runUntil(ctx, t, cfg)
	answer := do(t, "POST", url+chatPath, streamed("[[sim chunks=10 chunk_delay=10ms]]"))
	first := make([]byte, 6)
	_, err := io.ReadFull(answer.Body, first)
	require.NoError(t, err)
	stop()
	require.True(t, strings.HasSuffix(text(t, answer), "data: [DONE]\n\n"), "an answer under way finishes")
	require.NoError(t, <-stopped)
	require.Equal(t, OutcomeComplete, onlyRecord(t, s).Outcome)
}

func TestShutdownCutsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.ShutdownTimeout = 1
	ctx, stop := context.WithCancel(t.Context())
	s, url, stopped := runUntil(ctx, t, cfg)
	answer := do(t, "POST", url+chatPath, streamed("[[sim chunk_delay=1m]]"))
	first := make([]byte, 6)
	_, err := io.ReadFull(answer.Body, first)
	require.NoError(t, err)
	stop()
	readCut(t, answer)
	require.NoError(t, <-stopped)
	require.Len(t, s.Books(0), 1, "Run returns when all is billed")
	require.Equal(t, OutcomeClientLeft, s.Books(0)[0].Outcome, "to the answer a closed connection is a reader that left")
}
