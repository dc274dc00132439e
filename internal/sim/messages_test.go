package sim

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const aMessage = `{"model":"claude-haiku-4-5","max_tokens":100,"messages":[{"role":"user","content":"Say hello."}]}`

func askMessage(t testing.TB, url, body string, headers ...string) *http.Response {
	t.Helper()
	return do(t, http.MethodPost, url+"/v1/messages", body, append([]string{"X-Api-Key", "sk-1", "Anthropic-Version", "2023-06-01"}, headers...)...)
}

type anthropicMessage struct {
	ID, Type, Role, Model string
	Content               []struct{ Type, Text, Thinking, Name string }
	StopReason            string `json:"stop_reason"`
	Usage                 *anthropicUsage
}

type anthropicUsage struct {
	Input    int64 `json:"input_tokens"`
	Cached   int64 `json:"cache_read_input_tokens"`
	Written  int64 `json:"cache_creation_input_tokens"`
	Creation struct {
		Short int64 `json:"ephemeral_5m_input_tokens"`
		Hour  int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	Output  int64 `json:"output_tokens"`
	Details struct {
		Thinking int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

func TestMessage(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	answer := askMessage(t, url, aMessage, "X-Sim-Prompt-Tokens", "100", "X-Sim-Cached-Tokens", "20", "X-Sim-Cache-Write-5m", "30",
		"X-Sim-Cache-Write-1h", "7", "X-Sim-Reasoning-Tokens", "5", "X-Sim-Completion-Tokens", "9", "X-Tollgate-Request-Id", "r-1")
	require.Equal(t, 200, answer.StatusCode)
	require.NotEmpty(t, answer.Header.Get("Request-Id"))
	require.Equal(t, "10000", answer.Header.Get("Anthropic-Ratelimit-Requests-Limit"))
	m := decode[anthropicMessage](t, text(t, answer))
	require.Equal(t, "message", m.Type)
	require.Equal(t, "claude-haiku-4-5-20251001", m.Model)
	require.Equal(t, "end_turn", m.StopReason)
	require.Len(t, m.Content, 2)
	require.Equal(t, "The meter reads what the", m.Content[0].Thinking)
	require.Equal(t, "The meter reads what", m.Content[1].Text)
	u := m.Usage
	require.Equal(t, []int64{43, 20, 37, 30, 7, 9, 5}, []int64{u.Input, u.Cached, u.Written, u.Creation.Short, u.Creation.Hour, u.Output, u.Details.Thinking})
	r := onlyRecord(t, s)
	require.Equal(t, m.ID, r.ID)
	require.True(t, strings.HasPrefix(r.ID, "msg_"))
	require.Equal(t, "messages", r.Endpoint)
	require.Equal(t, "r-1", r.TollgateRequestID)
	require.Equal(t, KeyID("sk-1"), r.APIKeyID)
	require.Equal(t, []int64{100, 20, 30, 7, 9, 5}, []int64{r.InputTokens, r.CachedTokens, r.CacheWrite5m, r.CacheWrite1h, r.OutputTokens, r.ReasoningTokens})
	require.EqualValues(t, 43*1_000+20*100+30*1_250+7*2_000+9*5_000, r.CostNanoUSD)
	totals := s.Totals()
	require.Equal(t, r.CostNanoUSD, totals.CostNanoUSD)
	require.Equal(t, []int64{100, 20, 30, 7}, []int64{totals.InputTokens, totals.CachedTokens, totals.CacheWrite5m, totals.CacheWrite1h})
}

func TestMessageIsCounted(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	body := `{"model":"claude-sonnet-4-6","max_tokens":7,"system":[{"type":"text","text":"Be short."}],"messages":[
		{"role":"user","content":[{"type":"text","text":"two words"},{"type":"image","source":{"type":"base64","data":"AAAAAAAAAAAAAAAAAAAAAAAAAAA="}}]}]}`
	m := decode[anthropicMessage](t, text(t, askMessage(t, url, body)))
	require.EqualValues(t, 3+3+3+1+2+85, m.Usage.Input)
	require.EqualValues(t, 7, m.Usage.Output)
	require.Equal(t, "max_tokens", m.StopReason)
	counted := do(t, http.MethodPost, url+"/v1/messages/count_tokens", strings.Replace(body, `"max_tokens":7,`, "", 1),
		"Authorization", "Bearer sk-1", "Anthropic-Version", "2023-06-01")
	require.Equal(t, 200, counted.StatusCode)
	require.JSONEq(t, `{"input_tokens":97}`, text(t, counted))
	require.EqualValues(t, 1, s.Totals().Requests, "counting is free")
	require.EqualValues(t, 2, s.Totals().Calls)
}

// serverEvents reads a stream's events: names, and the data of each.
func serverEvents(t testing.TB, stream string) (names, data []string) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(stream))
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			names = append(names, name)
		} else if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			data = append(data, d)
			if event := decode[struct{ Type string }](t, d); len(names) >= len(data) {
				require.Equal(t, names[len(data)-1], event.Type)
			}
		}
	}
	require.NoError(t, lines.Err())
	require.Len(t, data, len(names))
	return names, data
}

func streamedMessage(more string) string {
	return strings.Replace(aMessage, `"max_tokens":100`, `"max_tokens":100,"stream":true`+more, 1)
}

func TestMessageStream(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	answer := askMessage(t, url, streamedMessage(`,"tools":[{"name":"rate","input_schema":{}}]`), "X-Sim-Chunks", "2", "X-Sim-Reasoning-Tokens", "3",
		"X-Sim-Use-Tool", "true", "X-Sim-Cached-Tokens", "2", "X-Sim-Prompt-Tokens", "50", "X-Sim-Completion-Tokens", "11")
	require.Equal(t, "text/event-stream; charset=utf-8", answer.Header.Get("Content-Type"))
	names, data := serverEvents(t, text(t, answer))
	require.Equal(t, []string{
		"message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop", "content_block_start", "ping",
		"content_block_delta", "content_block_delta", "content_block_stop", "content_block_start", "content_block_delta", "content_block_stop",
		"message_delta", "message_stop",
	}, names)
	first := decode[struct{ Message anthropicMessage }](t, data[0]).Message.Usage
	require.Equal(t, []int64{48, 2, 1}, []int64{first.Input, first.Cached, first.Output})
	require.Contains(t, data[7]+data[8], `"text":"The meter reads what"`)
	require.Contains(t, data[10], `"name":"rate"`)
	last := decode[struct {
		Delta struct {
			StopReason string `json:"stop_reason"`
		}
		Usage anthropicUsage
	}](t, data[13])
	require.Equal(t, "tool_use", last.Delta.StopReason)
	require.Equal(t, []int64{48, 2, 11, 3}, []int64{last.Usage.Input, last.Usage.Cached, last.Usage.Output, last.Usage.Details.Thinking})
	require.Equal(t, OutcomeComplete, onlyRecord(t, s).Outcome)
}

func TestMessageToolChoice(t *testing.T) {
	t.Parallel()
	_, url := start(t, DefaultConfig())
	tools := `,"tools":[{"type":"web_search_20250305","name":"web_search"},{"name":"rate","input_schema":{}}]`
	for choice, name := range map[string]string{`{"type":"any"}`: "web_search", `{"type":"tool","name":"rate"}`: "rate", `{"type":"auto"}`: ""} {
		body := strings.Replace(aMessage, `"max_tokens"`, `"tool_choice":`+choice+tools+`,"max_tokens"`, 1)
		m := decode[anthropicMessage](t, text(t, askMessage(t, url, body)))
		if name == "" {
			require.Equal(t, "end_turn", m.StopReason)
			continue
		}
		require.Equal(t, "tool_use", m.StopReason)
		require.Equal(t, name, m.Content[len(m.Content)-1].Name)
	}
}

func TestMessageThinks(t *testing.T) {
	t.Parallel()
	_, url := start(t, DefaultConfig())
	for thinking, tokens := range map[string]int64{`{"type":"enabled","budget_tokens":1024}`: 10, `{"type":"adaptive"}`: 10, `{"type":"disabled"}`: 0} {
		body := strings.Replace(aMessage, `"max_tokens"`, `"thinking":`+thinking+`,"max_tokens"`, 1)
		m := decode[anthropicMessage](t, text(t, askMessage(t, url, body)))
		require.Equal(t, tokens, m.Usage.Details.Thinking)
		require.Equal(t, tokens > 0, m.Content[0].Type == "thinking")
	}
}

// Streams that end in another way: each is billed what was generated until then.
func TestMessageStreamEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setting, value, last string
		outcome              Outcome
		output               int64
	}{
		"an error":   {"Error-After", "5", "error", OutcomeFailed, 10},
		"at once":    {"Error-After", "0", "error", OutcomeFailed, 0},
		"never":      {"Error-After", "20", "message_stop", OutcomeComplete, 40},
		"no stop":    {"No-Done", "true", "message_delta", OutcomeComplete, 40},
		"cut":        {"Cut-After", "5", "content_block_delta", OutcomeCut, 10},
		"a refusal":  {"Finish", "refusal", "message_stop", OutcomeComplete, 40},
		"no usage":   {"No-Usage", "true", "message_stop", OutcomeComplete, 40},
		"zero usage": {"Zero-Usage", "true", "message_stop", OutcomeComplete, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, url := start(t, DefaultConfig())
			answer := askMessage(t, url, streamedMessage(""), "X-Sim-"+c.setting, c.value)
			var lines []string
			scanner := bufio.NewScanner(answer.Body)
			for scanner.Scan() {
				lines = append(lines, scanner.Text())
			}
			require.Equal(t, c.outcome == OutcomeCut, scanner.Err() != nil)
			names, data := serverEvents(t, strings.Join(lines, "\n"))
			require.Equal(t, c.last, names[len(names)-1])
			all := strings.Join(data, "")
			require.Equal(t, name != "no usage", strings.Contains(all, `"usage"`))
			require.Equal(t, name == "a refusal", strings.Contains(all, `"stop_reason":"refusal"`))
			r := onlyRecord(t, s)
			require.Equal(t, c.outcome, r.Outcome)
			require.Equal(t, c.output, r.OutputTokens)
			require.Equal(t, c.outcome == OutcomeFailed, s.Totals().Failed == 1)
		})
	}
}

func TestChatStreamFails(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	body := text(t, do(t, http.MethodPost, url+"/v1/chat/completions", streamed("[[sim error_after=1 chunks=4]]")))
	require.True(t, strings.HasSuffix(body, "data: {\"error\":{\"message\":\"The server had an error while processing your request.\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n"), body)
	require.Equal(t, OutcomeFailed, onlyRecord(t, s).Outcome)
}

func TestMessageCallerLeaves(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/messages", strings.NewReader(streamedMessage("")))
	require.NoError(t, err)
	r.Header.Set("Anthropic-Version", "2023-06-01")
	r.Header.Set("X-Sim-Chunk-Delay", "1h")
	answer, err := httpClient(t).Do(r)
	require.NoError(t, err)
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "text_delta") {
	}
	leave()
	require.NoError(t, answer.Body.Close())
	record := onlyRecord(t, s)
	require.Equal(t, OutcomeClientLeft, record.Outcome)
	require.EqualValues(t, 2, record.OutputTokens)
}

func TestMessageErrors(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Keys = []Secret{"sk-1"}
	s, url := start(t, cfg)
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
		kind    string
	}{
		"no version":      {aMessage, []string{"Anthropic-Version", ""}, 400, "invalid_request_error"},
		"unknown key":     {aMessage, []string{"X-Api-Key", "sk-2"}, 401, "authentication_error"},
		"no key":          {aMessage, []string{"X-Api-Key", ""}, 401, "authentication_error"},
		"no bound":        {`{"model":"claude-haiku-4-5","messages":[]}`, nil, 400, "invalid_request_error"},
		"empty":           {`{"model":"claude-haiku-4-5","max_tokens":1,"messages":[]}`, nil, 400, "invalid_request_error"},
		"unknown model":   {strings.Replace(aMessage, "haiku", "poem", 1), nil, 404, "not_found_error"},
		"OpenAI's model":  {strings.Replace(aMessage, "claude-haiku-4-5", "gpt-4o", 1), nil, 404, "not_found_error"},
		"no JSON":         {"{", nil, 400, "invalid_request_error"},
		"unknown setting": {aMessage, []string{"X-Sim-Mood", "bad"}, 400, "invalid_request_error"},
		"too much cached": {aMessage, []string{"X-Sim-Cache-Write-1h", "1000"}, 400, "invalid_request_error"},
		"a bad finish":    {aMessage, []string{"X-Sim-Finish", `a"b`}, 400, "invalid_request_error"},
		"overloaded":      {aMessage, []string{"X-Sim-Status", "529"}, 529, "overloaded_error"},
		"rate limit":      {aMessage, []string{"X-Sim-Status", "429", "X-Sim-Retry-After", "7"}, 429, "rate_limit_error"},
		"server":          {aMessage, []string{"X-Sim-Status", "500"}, 500, "api_error"},
		"timeout":         {aMessage, []string{"X-Sim-Status", "504"}, 504, "timeout_error"},
		"named":           {aMessage, []string{"X-Sim-Error", "billing_error", "X-Sim-Status", "402"}, 402, "billing_error"},
	} {
		answer := askMessage(t, url, c.body, c.headers...)
		require.Equal(t, c.status, answer.StatusCode, name)
		body := text(t, answer)
		e := decode[struct {
			Type      string
			Error     struct{ Type, Message string }
			RequestID string `json:"request_id"`
		}](t, body)
		require.Equal(t, "error", e.Type, name)
		require.Equal(t, c.kind, e.Error.Type, "%s: %s", name, body)
		require.NotEmpty(t, e.Error.Message, name)
		require.Equal(t, answer.Header.Get("Request-Id"), e.RequestID, name)
		require.Equal(t, name == "rate limit", answer.Header.Get("Retry-After") == "7", name)
	}
	require.Zero(t, s.Totals().Requests)
}

// Messages are no part of OpenAI's bill, and their models none of its list.
func TestMessagesAreNotOnTheOtherBill(t *testing.T) {
	t.Parallel()
	_, url := start(t, DefaultConfig())
	require.Equal(t, 200, askMessage(t, url, aMessage).StatusCode)
	yesterday := strconv.FormatInt(time.Now().Truncate(24*time.Hour).Add(-24*time.Hour).Unix(), 10)
	for _, report := range []string{"usage/completions", "usage/embeddings", "costs"} {
		body := text(t, do(t, http.MethodGet, url+"/v1/organization/"+report+"?start_time="+yesterday+"&limit=31", ""))
		require.Contains(t, body, `"object":"bucket"`, report)
		require.NotContains(t, body, "num_model_requests", report)
		require.NotContains(t, body, `"amount"`, report)
	}
	require.NotContains(t, text(t, do(t, http.MethodGet, url+"/v1/models", "")), "claude")
	require.Equal(t, 404, do(t, http.MethodGet, url+"/v1/models/claude-haiku-4-5", "").StatusCode)
	require.Equal(t, 404, do(t, http.MethodPost, url+"/v1/chat/completions", strings.Replace(hello, "gpt-4o-mini", "claude-haiku-4-5", 1)).StatusCode)
}
