package sim

import (
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

func askResponse(text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: "gpt-4o-mini", Input: responses.ResponseNewParamsInputUnion{OfString: param.NewOpt(text)},
	}
}

// set is the option that sets a setting by its header.
func set(name, value string) option.RequestOption { return option.WithHeader("X-Sim-"+name, value) }

func TestResponse(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-1")
	usage := []option.RequestOption{
		set("Prompt-Tokens", "60"), set("Cached-Tokens", "10"), set("Completion-Tokens", "9"), set("Reasoning-Tokens", "4"),
	}
	first, err := client.Responses.New(t.Context(), askResponse("Say hello."), usage...)
	require.NoError(t, err)
	require.Equal(t, "The meter reads what the", first.OutputText())
	require.Equal(t, responses.ResponseStatusCompleted, first.Status)
	u := first.Usage
	require.Equal(t, []int64{60, 10, 9, 4, 69}, []int64{u.InputTokens, u.InputTokensDetails.CachedTokens, u.OutputTokens, u.OutputTokensDetails.ReasoningTokens, u.TotalTokens})
	r := onlyRecord(t, s)
	require.Equal(t, []any{first.ID, "responses"}, []any{r.ID, r.Endpoint})

	again, err := client.Responses.Get(t.Context(), first.ID, responses.ResponseGetParams{})
	require.NoError(t, err)
	require.JSONEq(t, first.RawJSON(), again.RawJSON())
	next := askResponse("And again.")
	next.PreviousResponseID = param.NewOpt(first.ID)
	next.MaxOutputTokens = param.NewOpt[int64](3)
	second, err := client.Responses.New(t.Context(), next)
	require.NoError(t, err)
	require.Equal(t, first.ID, second.PreviousResponseID)
	require.EqualValues(t, 3+3+3+60+9, second.Usage.InputTokens, "what was said before is read again")
	require.Equal(t, []string{"incomplete", "max_output_tokens"}, []string{string(second.Status), second.IncompleteDetails.Reason})
	require.NoError(t, client.Responses.Delete(t.Context(), first.ID))
	_, err = client.Responses.New(t.Context(), next)
	var problem *openai.Error
	require.ErrorAs(t, err, &problem)
	require.Equal(t, "previous_response_not_found", problem.Code)
	require.EqualValues(t, 2, s.Totals().Requests)
}

func TestResponseStream(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-1")
	ask := askResponse("Say hello.")
	ask.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("rate", map[string]any{"type": "object"}, false)}
	stream := client.Responses.NewStreaming(t.Context(), ask, set("Use-Tool", "true"), set("Chunks", "2"), set("Completion-Tokens", "6"), set("Reasoning-Tokens", "1"))
	var kinds []string
	var text, arguments string
	var whole responses.Response
	for stream.Next() {
		event := stream.Current()
		require.EqualValues(t, len(kinds), event.SequenceNumber)
		kinds = append(kinds, strings.TrimPrefix(event.Type, "response."))
		switch event := event.AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			text += event.Delta
		case responses.ResponseFunctionCallArgumentsDeltaEvent:
			arguments += event.Delta
		case responses.ResponseCompletedEvent:
			whole = event.Response
		}
	}
	require.NoError(t, stream.Err())
	require.Equal(t, []string{
		"created", "in_progress", "output_item.added", "output_item.done", "output_item.added", "content_part.added", "output_text.delta",
		"output_text.delta", "output_text.done", "content_part.done", "output_item.done", "output_item.added", "function_call_arguments.delta",
		"function_call_arguments.done", "output_item.done", "completed",
	}, kinds)
	require.Equal(t, "The meter reads what the", text)
	require.Equal(t, text, whole.OutputText())
	require.Equal(t, arguments, whole.Output[2].Arguments.OfString)
	require.EqualValues(t, 6, whole.Usage.OutputTokens)
	require.Equal(t, whole.ID, onlyRecord(t, s).ID)
	failing := client.Responses.NewStreaming(t.Context(), askResponse("Say hello."), set("Error-After", "1"))
	var last string
	for failing.Next() {
		last = failing.Current().Type
	}
	require.Equal(t, "response.failed", last)
}

func TestChatCallsAFunction(t *testing.T) {
	t.Parallel()
	_, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-1")
	params := openai.ChatCompletionNewParams{
		Model: "gpt-4o-mini", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Rate it. [[sim use_tool]]")},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "rate"})},
	}
	answer, err := client.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	call := answer.Choices[0].Message.ToolCalls[0]
	require.Equal(t, []string{"tool_calls", "rate", toolArguments}, []string{answer.Choices[0].FinishReason, call.Function.Name, call.Function.Arguments})
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var whole openai.ChatCompletionAccumulator
	for stream.Next() {
		require.True(t, whole.AddChunk(stream.Current()))
	}
	require.NoError(t, stream.Err())
	require.Equal(t, "tool_calls", whole.Choices[0].FinishReason)
	require.Equal(t, toolArguments, whole.Choices[0].Message.ToolCalls[0].Function.Arguments)
	params.Messages = append(params.Messages, answer.Choices[0].Message.ToParam(), openai.ToolMessage("7", call.ID))
	answer, err = client.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, "stop", answer.Choices[0].FinishReason, "the function has answered")
}

func TestGemini(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	const body = `{"contents":[{"role":"user","parts":[{"text":"Say hello. [[sim prompt_tokens=60 cached_tokens=10 completion_tokens=9 reasoning_tokens=4 chunks=2]]"}]}],
		"tools":[{"functionDeclarations":[{"name":"rate"}]}]}`
	ask := func(method, body string) (int, string) {
		answer := do(t, http.MethodPost, url+"/v1beta/models/"+method, body, "X-Goog-Api-Key", "sk-1")
		return answer.StatusCode, text(t, answer)
	}
	_, whole := ask("gemini-2.5-flash:generateContent", body)
	require.Equal(t, "The meter reads what the", gjson.Get(whole, "candidates.0.content.parts.0.text").Str)
	figures := func(usage gjson.Result) (n []int64) {
		for _, name := range []string{"promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount"} {
			n = append(n, usage.Get(name).Int())
		}
		return n
	}
	require.Equal(t, []int64{60, 10, 5, 4, 69}, figures(gjson.Get(whole, "usageMetadata")))
	r := onlyRecord(t, s)
	require.Equal(t, []any{gjson.Get(whole, "responseId").Str, "generateContent", int64(50*300 + 10*30 + 9*2500)}, []any{r.ID, r.Endpoint, r.CostNanoUSD})

	_, events := ask("gemini-2.5-flash:streamGenerateContent?alt=sse", strings.Replace(body, "chunks=2", "chunks=2 use_tool", 1))
	parts := strings.Split(strings.TrimSuffix(events, "\r\n\r\n"), "\r\n\r\n")
	require.Len(t, parts, 3)
	last := strings.TrimPrefix(parts[2], "data: ")
	require.Equal(t, "STOP", gjson.Get(last, "candidates.0.finishReason").Str)
	require.Equal(t, "meter", gjson.Get(last, "candidates.0.content.parts.0.functionCall.args.word").Str)
	require.Equal(t, []int64{60, 10, 5, 4, 69}, figures(gjson.Get(last, "usageMetadata")))
	_, list := ask("gemini-2.5-flash:streamGenerateContent", body)
	require.True(t, gjson.Valid(list), list)
	require.Len(t, gjson.Parse(list).Array(), 3)
	_, counted := ask("gemini-2.5-flash:countTokens", `{"contents":[{"parts":[{"text":"two words"}]}]}`)
	require.JSONEq(t, `{"totalTokens":8}`, counted)
	_, vectors := ask("gemini-embedding-001:batchEmbedContents", `{"requests":[{"content":{"parts":[{"text":"a"}]}},{"content":{"parts":[{"text":"b"}]}}]}`)
	require.Len(t, gjson.Get(vectors, "embeddings").Array(), 2)
	status, problem := ask("gemini-9:generateContent", body)
	require.Equal(t, []any{404, "NOT_FOUND"}, []any{status, gjson.Get(problem, "error.status").Str})
	status, problem = ask("gemini-2.5-flash:generateContent", `{"contents":[{"parts":[{"text":"[[sim status=429]]"}]}]}`)
	require.Equal(t, []any{429, "RESOURCE_EXHAUSTED"}, []any{status, gjson.Get(problem, "error.status").Str})
	require.EqualValues(t, 4, s.Totals().Requests)
}

func TestImages(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-1")
	answer, err := client.Images.Generate(t.Context(), openai.ImageGenerateParams{Model: "gpt-image-1", Prompt: "a cat", N: openai.Int(2)})
	require.NoError(t, err)
	require.Len(t, answer.Data, 2)
	require.EqualValues(t, []int64{2, 544}, []int64{answer.Usage.InputTokens, answer.Usage.OutputTokens})
	require.EqualValues(t, 2*5_000+544*40_000, onlyRecord(t, s).CostNanoUSD)
}
