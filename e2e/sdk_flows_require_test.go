package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/jackc/pgx/v5"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// flowRow is what the ledger has of one request.
type flowRow struct {
	ID, State, Usage, Model          string
	Input, Cached, Output, Reasoning int64
	Drawn                            int64
	Cost                             string
}

// flowRows waits until every request that was served is settled.
func flowRows(t *testing.T, s *system.System, runs []*flowRun) map[string]flowRow {
	t.Helper()
	ledger := map[string]flowRow{}
	s.Eventually(system.Patience, "all is settled", func() error {
		rows, err := s.Pool.Query(t.Context(), `
SELECT request_id, state, coalesce(usage_state, ''), model, input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, output_image_tokens,
    coalesce(cost_usd, 0)::text FROM finance.requests WHERE settled_at IS NOT NULL`)
		if err != nil {
			return err
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[flowRow])
		if err != nil {
			return err
		}
		for _, row := range all {
			ledger[row.ID] = row
		}
		for _, run := range runs {
			for _, r := range run.Requests {
				if r.Status == http.StatusOK && r.ID != "" && ledger[r.ID].ID == "" {
					return fmt.Errorf("%s %s: %s", run.sdk.name, run.flow, r.ID)
				}
			}
		}
		return nil
	})
	return ledger
}

// require holds what the SDK says, what went over the wire, and what the ledger has against what they should.
func (r *flowRun) require(t *testing.T, ledger map[string]flowRow) {
	t.Helper()
	require.NoError(t, r.err)
	said := cmp.Or(string(r.Result), "{}")
	t.Logf("%s %+v %+v", said, r.Error, r.Requests)
	switch r.flow {
	case "unknown model", "unknown key", "spent":
		r.requireRefused(t)
		return
	case "slow":
		r.requireWaited(t)
		return
	}
	require.Nil(t, r.Error)
	var result struct {
		Text                                 string
		Tool                                 []map[string]string
		Usage                                json.RawMessage
		Pieces, Vectors, Size, Images, Total int
		Tokens                               int `json:"input_tokens"`
		GoesOn, Same                         bool
	}
	require.NoError(t, json.Unmarshal([]byte(said), &result))
	rows := r.rows(t, ledger)
	whole := flowRow{State: "settled", Usage: "reported", Model: r.sdk.model, Input: 50, Cached: 10, Output: 5, Reasoning: 4, Cost: dollars(flowCosts[r.sdk.model])}
	switch r.flow {
	case "chat", "stream":
		require.Equal(t, "The meter reads what the", result.Text)
		told := r.sdk.chat
		if r.flow == "stream" {
			told = r.sdk.stream
			require.Equal(t, 3, result.Pieces)
		}
		require.JSONEq(t, cmp.Or(told, toldByMost), string(result.Usage))
		require.Equal(t, []flowRow{whole}, rows)
	case "tools":
		require.Equal(t, []map[string]string{{"word": "meter"}}, result.Tool)
		require.NotEmpty(t, result.Text)
		require.Len(t, rows, 2)
		require.Equal(t, whole, rows[0])
		require.Equal(t, []string{"settled", "reported"}, []string{rows[1].State, rows[1].Usage})
		require.Positive(t, rows[1].Input)
	case "embed":
		require.Equal(t, 2, result.Vectors)
		want := flowRow{State: "settled", Usage: "reported", Model: system.EmbeddingModel, Input: 2, Cost: dollars(2 * 20)}
		if r.sdk.embed != "" {
			want = rows[0] // its provider says nothing of usage
			require.Equal(t, "estimated", want.Usage)
			require.Positive(t, want.Input)
		}
		require.Equal(t, []flowRow{want}, rows)
	case "images":
		require.Equal(t, 2, result.Images)
		require.Equal(t, []flowRow{{
			State: "settled", Usage: "reported", Model: "gpt-image-1", Input: 2, Drawn: 544, Cost: dollars(2*5000 + 544*40000),
		}}, rows)
	case "count":
		require.Positive(t, result.Total+result.Tokens)
		require.Empty(t, rows, "counting is free")
	case "conversation":
		require.True(t, result.GoesOn && result.Same)
		require.Equal(t, []flowRow{whole, whole}, rows, "reading a stored response is free")
		require.Len(t, r.Requests, 3)
	default:
		t.Fatalf("no such flow: %s", r.flow)
	}
}

// rows are the ledger's of the flow's requests, without their ids.
func (r *flowRun) rows(t *testing.T, ledger map[string]flowRow) (rows []flowRow) {
	t.Helper()
	for _, request := range r.Requests {
		require.Equal(t, http.StatusOK, request.Status)
		if request.ID == "" {
			continue
		}
		row, known := ledger[request.ID]
		require.True(t, known)
		row.ID = ""
		rows = append(rows, row)
	}
	return rows
}

func (r *flowRun) requireRefused(t *testing.T) {
	t.Helper()
	require.NotNil(t, r.Error)
	status, tries := map[string]int{"unknown model": http.StatusNotFound, "unknown key": http.StatusUnauthorized, "spent": http.StatusTooManyRequests}[r.flow], 1
	if r.flow == "spent" {
		tries = r.sdk.tries
	}
	require.Equal(t, status, r.Error.Status, r.Error.Message)
	require.Len(t, r.Requests, tries)
}

// requireWaited finds a refusal after which the SDK came back when it was told to, and passed.
func (r *flowRun) requireWaited(t *testing.T) {
	t.Helper()
	refused := 0
	for i, request := range r.Requests {
		if request.Status != http.StatusTooManyRequests {
			require.Equal(t, http.StatusOK, request.Status)
			continue
		}
		refused++
		require.Positive(t, request.Wait)
		if r.sdk.waits && i+1 < len(r.Requests) {
			require.GreaterOrEqual(t, r.Requests[i+1].Arrived-request.Arrived, request.Wait-tooEarly.Milliseconds())
		}
	}
	require.Positive(t, refused)
	if r.sdk.gaveUp429 {
		require.Equal(t, http.StatusTooManyRequests, r.Error.Status)
		return
	}
	require.Nil(t, r.Error)
	require.Equal(t, http.StatusOK, r.Requests[len(r.Requests)-1].Status)
}

// goFlows do with the SDKs for Go what the scripts do with others: a tool's result goes back, and a response goes on from one that
// is stored.
func goFlows(ctx context.Context, url, key string, client openai.Client, web *http.Client) error {
	other := anthropic.NewClient(anthropicoption.WithBaseURL(url+"/"), anthropicoption.WithAPIKey(key), anthropicoption.WithHTTPClient(web))
	return errors.Join(openAIGoTools(ctx, client), openAIGoResponses(ctx, client), anthropicGoTools(ctx, other))
}

var ratedSchema = map[string]any{"type": "object", "properties": map[string]any{"word": map[string]any{"type": "string"}}}

func openAIGoTools(ctx context.Context, client openai.Client) error {
	params := openai.ChatCompletionNewParams{
		Model: gptModel, Messages: message("Rate it. [[sim use_tool]]"),
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "rate", Parameters: ratedSchema})},
	}
	stream := client.Chat.Completions.NewStreaming(ctx, params)
	var first openai.ChatCompletionAccumulator
	for stream.Next() {
		first.AddChunk(stream.Current())
	}
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return err
	}
	asked := first.Choices[0].Message.ToolCalls
	if len(asked) != 1 || asked[0].Function.Arguments != `{"word":"meter"}` {
		return fmt.Errorf("openai-go: tool calls %+v", asked)
	}
	params.Messages = append(params.Messages, first.Choices[0].Message.ToParam(), openai.ToolMessage(`{"rating":7}`, asked[0].ID))
	answer, err := client.Chat.Completions.New(ctx, params)
	if err == nil && (answer.Choices[0].FinishReason != "stop" || answer.Choices[0].Message.Content == "") {
		err = fmt.Errorf("openai-go: answer %+v", answer)
	}
	return err
}

func openAIGoResponses(ctx context.Context, client openai.Client) error {
	params := responses.ResponseNewParams{Model: gptModel, Input: responses.ResponseNewParamsInputUnion{OfString: param.NewOpt("Say hello.")}}
	first, err := client.Responses.New(ctx, params)
	if err != nil {
		return err
	}
	params.PreviousResponseID = param.NewOpt(first.ID)
	stream := client.Responses.NewStreaming(ctx, params)
	var text string
	var whole responses.Response
	for stream.Next() {
		text += stream.Current().Delta
		if stream.Current().Type == "response.completed" {
			whole = stream.Current().Response
		}
	}
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return err
	}
	if text == "" || whole.OutputText() != text || whole.Usage.InputTokens <= first.Usage.InputTokens {
		return fmt.Errorf("openai-go: response %q, usage %+v after %+v", text, whole.Usage, first.Usage)
	}
	return nil
}

func anthropicGoTools(ctx context.Context, client anthropic.Client) error {
	params := anthropic.MessageNewParams{
		Model: claudeModel, MaxTokens: 100, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Rate it. [[sim use_tool]]"))},
		Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "rate", InputSchema: anthropic.ToolInputSchemaParam{Properties: ratedSchema["properties"]}}}},
	}
	stream := client.Messages.NewStreaming(ctx, params)
	var first anthropic.Message
	for stream.Next() {
		if err := first.Accumulate(stream.Current()); err != nil {
			return err
		}
	}
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return err
	}
	asked := first.Content[len(first.Content)-1]
	if asked.Type != "tool_use" || string(asked.Input) != `{"word":"meter"}` {
		return fmt.Errorf("anthropic-sdk-go: %+v", asked)
	}
	params.Messages = append(params.Messages, first.ToParam(), anthropic.NewUserMessage(anthropic.NewToolResultBlock(asked.ID, `{"rating":7}`, false)))
	answer, err := client.Messages.New(ctx, params)
	if err == nil && answer.StopReason != anthropic.StopReasonEndTurn {
		err = fmt.Errorf("anthropic-sdk-go: answer %+v", answer)
	}
	return err
}
