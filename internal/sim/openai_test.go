package sim

import (
	"encoding/base64"
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
)

func chatParams(content string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    "gpt-4o",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(content)},
	}
}

func TestChat(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-a")
	params := chatParams("How many tokens is this?")
	params.N = openai.Int(3)
	params.MaxCompletionTokens = openai.Int(7)
	var raw *http.Response
	answer, err := client.Chat.Completions.New(t.Context(), params, option.WithResponseInto(&raw),
		option.WithHeader("X-Tollgate-Request-Id", "reservation"), option.WithHeader("X-Client-Request-Id", "client"),
		option.WithHeader("OpenAI-Project", "proj_x"))
	require.NoError(t, err)

	require.Equal(t, "gpt-4o-2024-08-06", answer.Model)
	require.Equal(t, "chat.completion", string(answer.Object))
	require.Contains(t, answer.RawJSON(), `"system_fingerprint":"fp_`)
	require.WithinDuration(t, time.Now(), time.Unix(answer.Created, 0), time.Minute)
	require.Len(t, answer.Choices, 3)
	for i, c := range answer.Choices {
		require.EqualValues(t, i, c.Index)
		require.Equal(t, "length", c.FinishReason)
		require.EqualValues(t, 7, countText(c.Message.Content), "each word of an answer is one token")
	}
	// 3 for the opening, 3 for the message, 1 for its role, 6 for its text.
	require.EqualValues(t, 13, answer.Usage.PromptTokens)
	require.EqualValues(t, 21, answer.Usage.CompletionTokens)
	require.EqualValues(t, 34, answer.Usage.TotalTokens)
	for _, name := range []string{
		"X-Request-Id", "Openai-Processing-Ms", "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests",
		"X-Ratelimit-Reset-Requests", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens",
	} {
		require.NotEmpty(t, raw.Header.Get(name), name)
	}

	r := onlyRecord(t, s)
	require.Equal(t, answer.ID, r.ID)
	require.WithinDuration(t, time.Now(), r.FinishedAt, time.Minute)
	require.Equal(t, time.UTC, r.ReceivedAt.Location())
	r.ReceivedAt, r.FinishedAt = time.Time{}, time.Time{}
	require.Equal(t, Record{
		Number: 1, ID: answer.ID, APIKeyID: KeyID("sk-a"), ProjectID: "proj_x", Model: "gpt-4o-2024-08-06",
		Endpoint: "chat/completions", InputTokens: 13, OutputTokens: 21, CostNanoUSD: 13*2_500 + 21*10_000,
		Outcome: OutcomeComplete, TollgateRequestID: "reservation", ClientRequestID: "client",
	}, r)
}

func TestChatStream(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-a")
	params := chatParams("stream [[sim prompt_tokens=60 completion_tokens=45 cached_tokens=10 reasoning_tokens=5 chunks=8]]")
	params.N = openai.Int(2)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var all openai.ChatCompletionAccumulator
	chunks, withText, withoutChoices := 0, 0, 0
	for stream.Next() {
		chunk := stream.Current()
		require.True(t, all.AddChunk(chunk))
		chunks++
		switch {
		case len(chunk.Choices) == 0:
			withoutChoices++
			require.EqualValues(t, 105, chunk.Usage.TotalTokens)
		case chunk.Choices[0].Delta.Content != "":
			withText++
		}
	}
	require.NoError(t, stream.Err())
	require.NoError(t, stream.Close())
	require.Equal(t, 16, withText)
	require.Equal(t, 1, withoutChoices)
	require.Equal(t, 2+16+2+1, chunks)
	require.EqualValues(t, 60, all.Usage.PromptTokens)
	require.EqualValues(t, 10, all.Usage.PromptTokensDetails.CachedTokens)
	require.EqualValues(t, 45, all.Usage.CompletionTokens)
	require.EqualValues(t, 5, all.Usage.CompletionTokensDetails.ReasoningTokens)
	require.Len(t, all.Choices, 2)
	words := int64(0)
	for _, c := range all.Choices {
		require.Equal(t, "stop", c.FinishReason)
		words += countText(c.Message.Content)
	}
	require.EqualValues(t, 40, words, "reasoning is not shown")

	r := onlyRecord(t, s)
	require.Equal(t, all.ID, r.ID)
	require.Equal(t, OutcomeComplete, r.Outcome)
	require.EqualValues(t, 50*2_500+10*1_250+45*10_000, r.CostNanoUSD)
}

func TestUsageChunkOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	_, url := start(t, DefaultConfig())
	body := text(t, do(t, "POST", url+"/v1/chat/completions", strings.Replace(hello, "{", `{"stream":true,`, 1)))
	require.NotContains(t, body, "usage")
	require.True(t, strings.HasSuffix(body, "}\n\ndata: [DONE]\n\n"))
	body = text(t, do(t, "POST", url+"/v1/chat/completions", streamed("")))
	require.Equal(t, 1, strings.Count(body, `"choices":[],"usage":{`))
	require.Equal(t, 22, strings.Count(body, `"usage":null`), "all other chunks carry a null")
}

func TestCompletions(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-a")
	answer, err := client.Completions.New(t.Context(), openai.CompletionNewParams{
		Model: "gpt-3.5-turbo-instruct", MaxTokens: openai.Int(5),
		Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokenArrays: [][]int64{{1, 2, 3}, {4, 5}}},
	})
	require.NoError(t, err)
	require.Len(t, answer.Choices, 2)
	require.EqualValues(t, 5, answer.Usage.PromptTokens)
	require.EqualValues(t, 10, answer.Usage.CompletionTokens)
	require.EqualValues(t, 5, countText(answer.Choices[1].Text))
	require.EqualValues(t, 5*1_500+10*2_000, onlyRecord(t, s).CostNanoUSD)

	stream := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
		Model: "gpt-3.5-turbo-instruct", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon")},
	})
	var said strings.Builder
	for stream.Next() {
		said.WriteString(stream.Current().Choices[0].Text)
	}
	require.NoError(t, stream.Err())
	require.NoError(t, stream.Close())
	require.EqualValues(t, 40, countText(said.String()))
}

func TestEmbeddings(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-a")
	type input = openai.EmbeddingNewParamsInputUnion
	tests := []struct {
		name   string
		input  input
		count  int
		tokens int64
	}{
		{"text", input{OfString: openai.String("hello, world")}, 1, 3},
		{"texts", input{OfArrayOfStrings: []string{"hello", "two words"}}, 2, 3},
		{"token ids", input{OfArrayOfTokens: []int64{1, 2, 3, 4}}, 1, 4},
		{"lists of token ids", input{OfArrayOfTokenArrays: [][]int64{{1}, {2, 3}, {4, 5, 6}}}, 3, 6},
	}
	billed := int64(0)
	for _, tt := range tests {
		answer, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
			Model: "text-embedding-3-small", Input: tt.input, Dimensions: openai.Int(8),
		})
		require.NoError(t, err, tt.name)
		require.Len(t, answer.Data, tt.count, tt.name)
		require.Equal(t, tt.tokens, answer.Usage.PromptTokens, tt.name)
		require.Equal(t, tt.tokens, answer.Usage.TotalTokens, tt.name)
		square := 0.0
		for _, x := range answer.Data[tt.count-1].Embedding {
			square += x * x
		}
		require.Len(t, answer.Data[0].Embedding, 8)
		require.InDelta(t, 1, math.Sqrt(square), 1e-6)
		billed += tt.tokens
	}
	require.Equal(t, billed*20, s.Totals().CostNanoUSD)
	require.Empty(t, s.Books(0)[0].ID)

	body := text(t, do(t, "POST", url+"/v1/embeddings",
		`{"model":"text-embedding-3-large","input":"x","encoding_format":"base64"}`))
	type encoded struct{ Data []struct{ Embedding string } }
	vector, err := base64.StdEncoding.DecodeString(decode[encoded](t, body).Data[0].Embedding)
	require.NoError(t, err)
	require.Len(t, vector, 4*3072)
}

func TestModels(t *testing.T) {
	t.Parallel()
	_, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-a")
	list, err := client.Models.List(t.Context())
	require.NoError(t, err)
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	require.Subset(t, names, []string{"gpt-4o", "gpt-4o-2024-08-06", "text-embedding-3-large"})
	m, err := client.Models.Get(t.Context(), "gpt-4.1-mini")
	require.NoError(t, err)
	require.Equal(t, "gpt-4.1-mini", m.ID)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Keys = []Secret{"sk-a:proj_a", "sk-b"}
	s, url := start(t, cfg)
	chat, embeddings := "/v1/chat/completions", "/v1/embeddings"
	tests := []struct {
		name, key, method, path, body string
		status                        int
		code, param                   string
	}{
		{"wrong key", "sk-c", "POST", chat, hello, 401, "invalid_api_key", ""},
		{"no key", "", "POST", chat, hello, 401, "", ""},
		{"no JSON", "sk-a", "POST", chat, `{"model":`, 400, "", ""},
		{"no object", "sk-a", "POST", chat, `[]`, 400, "", ""},
		{"no model", "sk-a", "POST", chat, `{"messages":[]}`, 400, "", ""},
		{"unknown model", "sk-a", "POST", chat, `{"model":"gpt-0","messages":[]}`, 404, "model_not_found", ""},
		{"no messages", "sk-a", "POST", chat, `{"model":"gpt-4o"}`, 400, "missing_required_parameter", "messages"},
		{"empty messages", "sk-a", "POST", chat, `{"model":"gpt-4o","messages":[]}`, 400, "empty_array", "messages"},
		{"no role", "sk-a", "POST", chat, `{"model":"gpt-4o","messages":[{}]}`, 400, "missing_required_parameter", "messages[0].role"},
		{"n of zero", "sk-a", "POST", chat, `{"n":0,` + hello[1:], 400, "integer_below_min_value", "n"},
		{"max_tokens as text", "sk-a", "POST", chat, `{"max_tokens":"1",` + hello[1:], 400, "invalid_type", "max_tokens"},
		{"stream as number", "sk-a", "POST", chat, `{"stream":1,` + hello[1:], 400, "invalid_type", "stream"},
		{"options without stream", "sk-a", "POST", chat, `{"stream_options":{},` + hello[1:], 400, "", "stream_options"},
		{"embedding with a chat model", "sk-a", "POST", embeddings, `{"model":"gpt-4o","input":"x"}`, 403, "", ""},
		{"chat with an embedding model", "sk-a", "POST", chat, `{"model":"text-embedding-3-small"}`, 404, "", "model"},
		{"no input", "sk-a", "POST", embeddings, `{"model":"text-embedding-3-small"}`, 400, "missing_required_parameter", "input"},
		{"mixed input", "sk-a", "POST", embeddings, `{"model":"text-embedding-3-small","input":["a",1]}`, 400, "", ""},
		{"empty input", "sk-a", "POST", embeddings, `{"model":"text-embedding-3-small","input":[]}`, 400, "", ""},
		{"wrong method", "sk-a", "GET", chat, "", 405, "method_not_supported", ""},
		{"unknown path", "sk-a", "POST", "/v1/images", "{}", 404, "", ""},
		{"unknown setting", "sk-a", "POST", chat, strings.Replace(hello, "Say", "[[sim speed=1]]", 1), 400, "invalid_setting", ""},
	}
	for _, tt := range tests {
		answer := do(t, tt.method, url+tt.path, tt.body, "Authorization", "Bearer "+tt.key)
		require.Equal(t, tt.status, answer.StatusCode, tt.name)
		require.Equal(t, "application/json", answer.Header.Get("Content-Type"), tt.name)
		type shape struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		e := decode[shape](t, text(t, answer)).Error
		require.NotEmpty(t, e.Message, tt.name)
		require.NotEmpty(t, e.Type, tt.name)
		require.Equal(t, tt.code, deref(e.Code), tt.name)
		require.Equal(t, tt.param, deref(e.Param), tt.name)
	}
	require.Zero(t, s.Totals().Requests, "an error is not billed")
	require.EqualValues(t, len(tests)-2, s.Totals().Calls)

	text(t, do(t, "POST", url+chat, hello, "Authorization", "Bearer sk-a"))
	text(t, do(t, "POST", url+chat, hello, "Authorization", "Bearer sk-b"))
	records := s.Books(0)
	require.Equal(t, "proj_a", records[0].ProjectID)
	require.Equal(t, defaultProject, records[1].ProjectID)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestErrorOnDemandAsTheSDKSeesIt(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	client := sdk(t, url, "sk-a")
	_, err := client.Chat.Completions.New(t.Context(), chatParams("[[sim status=429 error=slow_down retry_after=3 latency=20ms]]"))
	var apiErr *openai.Error
	require.ErrorAs(t, err, &apiErr)
	require.Equal(t, 429, apiErr.StatusCode)
	require.Equal(t, "slow_down", apiErr.Code)
	require.Equal(t, "3", apiErr.Response.Header.Get("Retry-After"))
	_, err = client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: "text-embedding-3-small", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("x")},
	}, option.WithHeader("X-Sim-Status", "503"))
	require.True(t, errors.As(err, &apiErr))
	require.Equal(t, 503, apiErr.StatusCode)
	require.Equal(t, "server_error", apiErr.Type)
	require.Zero(t, s.Totals().Requests)
}
