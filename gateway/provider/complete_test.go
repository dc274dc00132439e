package provider

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// spoken is an event of Gemini's with words of one candidate, "finish" for its last one, and usage for the figures so far.
func spoken(index int, text, finish, usage string) string {
	event := fmt.Sprintf(`{"candidates":[{"content":{"parts":[{"text":%q}]},"finishReason":%s,"index":%d}]`, text, finish, index)
	if usage != "" {
		event += `,"usageMetadata":` + usage
	}
	return event + `}`
}

const (
	geminiUsed = `{"promptTokenCount":10,"candidatesTokenCount":1}`
	noneUsed   = `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`
	openAIUsed = `{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}`
)

// choice is the same of OpenAI's.
func choice(index int, text, finish, usage string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"delta\":{\"content\":%q},\"finish_reason\":%s}],\"usage\":%s}\n\n", index, text, finish, usage)
}

func usageOnly(usage string) string { return `data: {"choices":[],"usage":` + usage + "}\n\n" }

// A stream is complete when each of its choices is: what one says when another has ended is metered, and its cut is noticed.
func TestEachChoiceHasItsEnd(t *testing.T) {
	t.Parallel()
	words := strings.Repeat(" one", 100)
	for name, c := range map[string]struct {
		endpoint Endpoint
		text     string
		whole    bool
		state    ledger.UsageState
		output   ledger.Tokens
	}{
		"Gemini, the second cut":         {StreamGenerate, geminiSSE(spoken(0, " a", `"STOP"`, geminiUsed), spoken(1, words, "null", "")), false, ledger.UsageEstimated, 101},
		"Gemini, the first cut":          {StreamGenerate, geminiSSE(spoken(0, words, "null", ""), spoken(1, " a", `"STOP"`, geminiUsed)), false, ledger.UsageEstimated, 101},
		"Gemini, one after the other":    {StreamGenerate, geminiSSE(spoken(0, " a", `"STOP"`, geminiUsed), spoken(1, " a", `null`, ""), spoken(1, " b", `"STOP"`, geminiUsed)), true, ledger.UsageReported, 1},
		"Gemini, figures before the end": {StreamGenerate, geminiSSE(spoken(0, " a", `"STOP"`, geminiUsed), spoken(1, words, `"STOP"`, "")), true, ledger.UsageEstimated, 101},
		"Gemini, an empty event behind":  {StreamGenerate, geminiSSE(spoken(0, " a", `"STOP"`, ""), spoken(0, "", "null", geminiUsed)), true, ledger.UsageReported, 1},
		"Gemini, a finish that is null":  {StreamGenerate, geminiSSE(spoken(0, words, "null", geminiUsed)), false, ledger.UsageEstimated, 100},
		"Gemini, a block that is null":   {StreamGenerate, geminiSSE(`{"promptFeedback":{"blockReason":null},"usageMetadata":` + geminiUsed + `}`), false, ledger.UsageEstimated, 1},
		"OpenAI, the second cut":         {Chat, choice(0, " a", `"stop"`, openAIUsed) + choice(1, words, "null", "null"), false, ledger.UsageEstimated, 101},
		"OpenAI, the first cut":          {Chat, choice(0, words, "null", openAIUsed) + choice(1, " a", `"stop"`, openAIUsed), false, ledger.UsageEstimated, 101},
		"OpenAI, both to their ends":     {Chat, choice(0, " a", `"stop"`, openAIUsed) + choice(1, words, `"stop"`, strings.ReplaceAll(openAIUsed, "1,", "101,")) + doneChunk, true, ledger.UsageInconsistent, 101},
		"OpenAI, an empty choice behind": {Chat, choice(0, " a", `"stop"`, "null") + choice(0, "", "null", openAIUsed) + doneChunk, true, ledger.UsageReported, 1},
	} {
		answer, err := c.endpoint.RelayStream(discard{}, strings.NewReader(c.text), Passing{Model: "gpt-4o"})
		require.Equal(t, c.whole, err == nil, name)
		require.Equal(t, c.whole, answer.Finish == ledger.ReasonOK, name)
		require.Equal(t, c.state, answer.State, name)
		require.Equal(t, c.output, answer.Usage.OutputTotal(), name)
	}
}

// A ceiling judges whatever comes, behind an end or an error too.
func TestCeilingJudgesBehindAnEnd(t *testing.T) {
	t.Parallel()
	more := strings.Repeat(" one", 50)
	event := func(kind, fields string) string { return sse(kind, `{"type":"`+kind+`",`+fields+`}`) }
	for name, c := range map[string]struct {
		endpoint    Endpoint
		first, next string
	}{
		"Gemini, a candidate ends":   {StreamGenerate, geminiSSE(spoken(0, " a", `"STOP"`, "")), geminiSSE(spoken(1, more, "null", ""))},
		"Gemini, it goes on":         {StreamGenerate, geminiSSE(spoken(0, " a", `"STOP"`, "")), geminiSSE(spoken(0, more, "null", ""))},
		"Gemini, an error":           {StreamGenerate, geminiSSE(geminiFailed), geminiSSE(spoken(0, more, "null", ""))},
		"OpenAI, an error":           {Chat, "data: {\"error\":{\"message\":\"x\"}}\n\n", choice(0, more, "null", "null")},
		"OpenAI, its end":            {Chat, doneChunk, choice(0, more, "null", "null")},
		"responses, an error":        {Responses, event("error", `"message":"x"`), event("response.output_text.delta", `"output_index":0,"delta":"`+more+`"`)},
		"Anthropic, an error":        {Messages, overloaded, event("content_block_delta", `"index":0,"delta":{"type":"text_delta","text":"`+more+`"}`)},
		"nothing before, to compare": {Chat, "", choice(0, more, "null", "null")},
	} {
		s := &sink{}
		refuse := func(ledger.Tokens) (ledger.Tokens, *Stop) {
			return 100, &Stop{Reason: ledger.ReasonAppQuota, Told: []byte(`{}`)}
		}
		answer, err := c.endpoint.RelayStream(s, strings.NewReader(c.first+strings.Repeat(c.next, 50)),
			Passing{Model: "gpt-4o", Ceiling: &Ceiling{Output: 100, Extend: refuse}})
		require.NoError(t, err, name)
		require.Equal(t, ledger.ReasonAppQuota, answer.Finish, name)
		require.LessOrEqual(t, answer.Output, ledger.Tokens(150), name)
		require.Less(t, strings.Count(s.String(), more), 4, name)
	}
}

// A 0 behind a count, or behind text, is a figure left out; and what comes behind [DONE] takes nothing back.
func TestFiguresAreNotTakenBack(t *testing.T) {
	t.Parallel()
	said := choice(0, " a b c", "null", "null") + choice(0, "", `"stop"`, "null")
	for name, c := range map[string]struct {
		text string
		want Reading
	}{
		"zeros behind figures":     {said + usageOnly(openAIUsed) + usageOnly(noneUsed) + doneChunk, Reading{ledger.Usage{Input: 10, Output: 1}, ledger.UsageReported}},
		"zeros behind text":        {said + usageOnly(noneUsed) + doneChunk, Reading{}},
		"no output behind text":    {said + usageOnly(`{"prompt_tokens":10,"completion_tokens":0}`) + doneChunk, Reading{ledger.Usage{Input: 10, Output: 3}, ledger.UsageEstimated}},
		"no input behind a count":  {said + usageOnly(openAIUsed) + usageOnly(`{"prompt_tokens":0,"completion_tokens":3}`) + doneChunk, Reading{ledger.Usage{Input: 10, Output: 3}, ledger.UsageReported}},
		"zeros and nothing said":   {choice(0, "", `"stop"`, "null") + usageOnly(noneUsed) + doneChunk, Reading{State: ledger.UsageReportedZero}},
		"others behind the end":    {said + usageOnly(openAIUsed) + doneChunk + usageOnly(`{"prompt_tokens":7,"completion_tokens":9}`), Reading{ledger.Usage{Input: 10, Output: 1}, ledger.UsageReported}},
		"the first behind the end": {said + doneChunk + usageOnly(openAIUsed), Reading{ledger.Usage{Input: 10, Output: 1}, ledger.UsageReported}},
	} {
		answer, err := Chat.RelayStream(discard{}, strings.NewReader(c.text), Passing{Model: "gpt-4o"})
		require.NoError(t, err, name)
		require.Equal(t, c.want, answer.Reading, name)
	}
}

// An answer that is nothing but an error is none, in every protocol.
func TestAnErrorInSpiteOfItsStatusInEveryProtocol(t *testing.T) {
	t.Parallel()
	const failed = `{"error":{"code":503,"message":"overloaded"}}`
	for _, e := range Metered() {
		require.Equal(t, ledger.ReasonUpstreamFailed, answerOf(t, e, failed).Finish, e.Path)
	}
	require.Equal(t, ledger.ReasonUpstreamFailed, answerOf(t, Messages, `{"type":"error","error":{"type":"overloaded_error"},"request_id":"r"}`).Finish)
	for e, body := range map[Endpoint]string{
		Messages:   `{"type":"message","content":[{"type":"text","text":"an error"}]}`,
		Generate:   `{"candidates":[],"error":{"code":1}}`,
		Responses:  `{"status":"incomplete","error":{"code":"x"},"output":[]}`,
		Embeddings: `{"data":[],"error":{"code":1}}`,
		Speech:     `{"error":null}`,
	} {
		require.Equal(t, ledger.ReasonOK, answerOf(t, e, body).Finish, e.Path)
	}
}
