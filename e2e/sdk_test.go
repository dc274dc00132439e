package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// everyTier has a budget on each tier and both kinds of rate, all wide.
const everyTier = `
  - {name: platform-month, tier: platform, budget: {usd: 1000, per: month}}
  - {name: app-day, tier: app, budget: {usd: 1000, per: day}}
  - {name: app-tokens, tier: app, budget: {tokens: 1000000000, per: month}}
  - {name: key-total, tier: key, budget: {usd: 1000, per: total}}
  - {name: user-day, tier: user, budget: {requests: 1000000, per: day}}
  - {name: key-rpm, tier: key, by: [model, endpoint], rate: {requests: 1000000, per: minute, algorithm: sliding_log}}
  - {name: key-tpm, tier: key, by: [model], rate: {tokens: 1000000000, per: minute, algorithm: token_bucket}}
`

// sdk is the official client, with a transport that ends with the test.
func sdk(t *testing.T, url, key string) openai.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: transport}))
}

func message(text string) []openai.ChatCompletionMessageParamUnion {
	return []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}
}

// request is a row of finance.requests.
type request struct {
	input, cached, output, reasoning int64
	cost                             string // dollars
	model, user, usage               string
}

// settled waits until the request is in finance.requests.
func settled(t *testing.T, s *system.System, id string) request {
	t.Helper()
	require.NotEmpty(t, id)
	var r request
	took := s.Eventually(system.Patience, "request "+id+" is in finance.requests", func() error {
		return s.Pool.QueryRow(t.Context(), `
SELECT input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, cost_usd::text, model, end_user, usage_state
FROM finance.requests WHERE request_id = $1 AND settled_at IS NOT NULL`, id).
			Scan(&r.input, &r.cached, &r.output, &r.reasoning, &r.cost, &r.model, &r.user, &r.usage)
	})
	t.Logf("settled in %s: %+v", took.Round(time.Millisecond), r)
	return r
}

// dollars writes nano-dollars as the views do.
func dollars(nanos int64) string { return fmt.Sprintf("%d.%09d", nanos/1e9, nanos%1e9) }

func TestOpenAISDK(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1, Settlers: 1})
	key := s.KnownKey(system.App)
	client := sdk(t, s.Gateways[0].URL, key)
	ctx := t.Context()
	usage := option.WithHeader("X-Sim-Prompt-Tokens", "60")
	more := []option.RequestOption{
		usage, option.WithHeader("X-Sim-Completion-Tokens", "40"), option.WithHeader("X-Sim-Cached-Tokens", "10"),
		option.WithHeader("X-Sim-Reasoning-Tokens", "5"),
	}
	// gpt-4o: 2.5, 1.25 and 10 dollars a million.
	want := request{input: 50, cached: 10, output: 35, reasoning: 5, cost: dollars(50*2500 + 10*1250 + 40*10000), model: "gpt-4o", user: "alice", usage: "reported"}

	var raw *http.Response
	chat := openai.ChatCompletionNewParams{Model: "gpt-4o", Messages: message("How much?"), MaxTokens: openai.Int(100), User: openai.String("alice")}
	answer, err := client.Chat.Completions.New(ctx, chat, append(more, option.WithResponseInto(&raw))...)
	require.NoError(t, err)
	require.NotEmpty(t, answer.Choices[0].Message.Content)
	require.EqualValues(t, 40, answer.Usage.CompletionTokens)
	require.Equal(t, want, settled(t, s, raw.Header.Get("X-Tollgate-Request-Id")))
	require.Equal(t, "gpt-4o", raw.Header.Get("X-Tollgate-Model"))
	require.NotEmpty(t, raw.Header.Get("X-Ratelimit-Remaining-Requests"))

	for _, asked := range []bool{false, true} {
		params := chat
		if asked {
			params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		}
		text, chunks := stream(t, client, ctx, params, append(more, option.WithResponseInto(&raw))...)
		require.Equal(t, map[bool]int{false: 0, true: 1}[asked], chunks, "usage chunks delivered")
		require.True(t, strings.HasPrefix(answer.Choices[0].Message.Content, text), text)
		require.NotEmpty(t, text)
		require.Equal(t, want, settled(t, s, raw.Header.Get("X-Tollgate-Request-Id")))
	}

	embedding, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: system.EmbeddingModel, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfTokens: []int64{5, 6, 7, 8, 9}},
	}, option.WithResponseInto(&raw))
	require.NoError(t, err)
	require.NotEmpty(t, embedding.Data[0].Embedding)
	require.Equal(t, request{input: 5, cost: dollars(100), model: system.EmbeddingModel, usage: "reported"},
		settled(t, s, raw.Header.Get("X-Tollgate-Request-Id")))

	_, err = client.Chat.Completions.New(ctx, chat, option.WithHeader("X-Sim-Status", "429"), option.WithHeader("X-Sim-Error", "slow_down"),
		option.WithHeader("X-Sim-Retry-After", "7"))
	var problem *openai.Error
	require.ErrorAs(t, err, &problem)
	require.Equal(t, http.StatusTooManyRequests, problem.StatusCode)
	require.Equal(t, "slow_down", problem.Code)
	require.Equal(t, "7", problem.Response.Header.Get("Retry-After"))
	failed := settled(t, s, problem.Response.Header.Get("X-Tollgate-Request-Id"))
	require.Equal(t, dollars(0), failed.cost)

	stranger := sdk(t, s.Gateways[0].URL, "tg-unknown")
	_, err = stranger.Chat.Completions.New(ctx, chat)
	require.ErrorAs(t, err, &problem)
	require.Equal(t, http.StatusUnauthorized, problem.StatusCode)
	require.Equal(t, "invalid_api_key", problem.Code)
	requireViews(t, s)
	s.Check()
}

// stream reads a streamed chat and counts the chunks that are about usage only.
func stream(t *testing.T, client openai.Client, ctx context.Context, params openai.ChatCompletionNewParams, options ...option.RequestOption) (text string, usageChunks int) {
	t.Helper()
	stream := client.Chat.Completions.NewStreaming(ctx, params, options...)
	for stream.Next() {
		chunk := stream.Current()
		if len(chunk.Choices) == 0 {
			usageChunks++
			require.EqualValues(t, 100, chunk.Usage.TotalTokens)
			continue
		}
		text += chunk.Choices[0].Delta.Content
	}
	require.NoError(t, stream.Err())
	return text, usageChunks
}

// requireViews finds the same sums in the daily spend and in the trial balance: three chats, one embedding.
func requireViews(t *testing.T, s *system.System) {
	t.Helper()
	spent := dollars(3*537500 + 100)
	var requests, input, output int64
	var cost string
	require.NoError(t, s.Pool.QueryRow(t.Context(), `
SELECT sum(requests)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cost_usd)::text
FROM finance.spend_daily WHERE app = $1`, system.App).Scan(&requests, &input, &output, &cost))
	require.Equal(t, []int64{4, 155, 105}, []int64{requests, input, output})
	require.Equal(t, spent, cost)
	var debit, credit, balance string
	require.NoError(t, s.Pool.QueryRow(t.Context(), `
SELECT sum(debit_usd)::numeric(20, 9)::text, sum(credit_usd)::numeric(20, 9)::text, sum(balance_usd)::numeric(20, 9)::text
FROM finance.trial_balance`).Scan(&debit, &credit, &balance))
	require.Equal(t, []string{spent, spent, dollars(0)}, []string{debit, credit, balance})
}
