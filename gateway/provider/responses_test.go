package provider

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

const responseUsage = `{"input_tokens":120,"input_tokens_details":{"cached_tokens":64,"cache_write_tokens":16},"output_tokens":50,"output_tokens_details":{"reasoning_tokens":30},"total_tokens":170}`

var responseTokens = ledger.Usage{Input: 40, CachedInput: 64, CacheWrite5m: 16, Output: 20, Reasoning: 30}

func responseBody(status, usage string) string {
	return `{"id":"resp_1","object":"response","status":"` + status + `","model":"gpt-5-2025-08-07","output":[{"type":"message","content":[{"type":"output_text","text":"Hi."}]}],"usage":` + usage + `}`
}

// responseStream is a stream that ends in an event response.<end>.
func responseStream(end, usage string) string {
	event := func(kind, rest string) string {
		return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"," + rest + "}\n\n"
	}
	return event("response.created", `"sequence_number":0,"response":`+responseBody("in_progress", "null")) +
		event("response.output_item.added", `"output_index":0,"item":{"type":"message"}`) +
		event("response.output_text.delta", `"delta":"Hi","logprobs":[]`) +
		event("response.output_text.delta", `"delta":".","logprobs":[]`) +
		event("response.output_text.done", `"text":"Hi."`) +
		event("response."+end, `"response":`+responseBody(end, usage))
}

func TestParseResponses(t *testing.T) {
	t.Parallel()
	for body, param := range map[string]string{
		`{"input":"hi"}`:                                            "model",
		`{"model":"m","input":{}}`:                                  "input",
		`{"model":"m","input":7}`:                                   "input",
		`{"model":"m","stream":1}`:                                  "stream",
		`{"model":"m","background":"yes"}`:                          "background",
		`{"model":"m","max_output_tokens":0}`:                       "max_output_tokens",
		`{"model":"m","previous_response_id":[]}`:                   "previous_response_id",
		`{"model":"m","max_output_tokens":5,"max_output_tokens":9}`: "max_output_tokens",
	} {
		_, err := Responses.Parse([]byte(body))
		var bad *RequestError
		require.ErrorAs(t, err, &bad, body)
		require.Equal(t, param, bad.Param, body)
	}
	const body = `{"model":"fast", "input":"hi","stream":true,"max_output_tokens":77,"user":"u","previous_response_id":"resp_0","later":{"a":[1]}}`
	r, err := Responses.Parse([]byte(body))
	require.NoError(t, err)
	require.True(t, r.Stream)
	require.Equal(t, "u", r.User)
	require.Equal(t, "resp_0", r.Previous)
	e := r.Estimate("gpt-5")
	require.Equal(t, Estimate{Input: 3 + 4 + 1 + conversationTokens, Output: 77, Bounded: true, Choices: 1}, e)
	sent, err := r.UpstreamBody("gpt-5", "")
	require.NoError(t, err)
	require.Equal(t, strings.Replace(body, "fast", "gpt-5", 1), string(sent), "the usage comes unasked")
}

func TestEstimateResponses(t *testing.T) {
	t.Parallel()
	const around = 3 + 4 // the primer of the answer, and a message's framing and role
	for rest, want := range map[string]ledger.Tokens{
		`"input":"Hello, world"`:                                                                                                          around + 3,
		`"input":"Hello, world","instructions":"Hello, world"`:                                                                            around + 3 + 4 + 3,
		`"input":[{"role":"user","content":"Hello, world"}]`:                                                                              around + 3,
		`"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hello, world"}]}]`:                              around + 3,
		`"input":[{"type":"function_call","name":"Hello","arguments":", world"}]`:                                                         3 + perToolCall + 3,
		`"input":[{"type":"function_call_output","call_id":"c","output":"Hello, world"}]`:                                                 around + 3,
		`"input":[{"type":"reasoning","summary":[{"type":"summary_text","text":"Hello, world"}],"encrypted_content":"0123456789abcdef"}]`: 3 + 3 + 2,
		`"input":[{"type":"item_reference","id":"msg_1"}]`:                                                                                3 + conversationTokens/10,
		`"input":"Hello, world","conversation":{"id":"conv_1"}`:                                                                           around + 3 + conversationTokens,
		`"input":[{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}]`:                                                  around + storedPages*openAIPage,
		`"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://example.com/a.png","detail":"low"}]}]`:             around + 85,
	} {
		require.Equal(t, want, raw(t, Responses, "gpt-4o", rest), rest)
	}
	plain := raw(t, Responses, "gpt-4o", `"input":"x"`)
	tool := raw(t, Responses, "gpt-4o", `"input":"x","tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}]`)
	require.Greater(t, tool, plain+10)
	require.Equal(t, raw(t, Chat, "gpt-4o", `"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}]`), tool,
		"a function is the same in both")
	require.Greater(t, raw(t, Responses, "gpt-4o", `"input":"x","tools":[{"type":"web_search"}]`), plain+9000)
}

func TestAnswersOfResponses(t *testing.T) {
	t.Parallel()
	reported := Reading{Usage: responseTokens, State: ledger.UsageReported}
	for name, c := range map[string]struct {
		body string
		want Answer
	}{
		"completed":  {responseBody("completed", responseUsage), Answer{Reading: reported, Finish: ledger.ReasonOK}},
		"incomplete": {responseBody("incomplete", responseUsage), Answer{Reading: reported, Finish: ledger.ReasonOK}},
		"failed":     {responseBody("failed", "null"), Answer{Finish: ledger.ReasonUpstreamFailed}},
		"queued":     {responseBody("queued", "null"), Answer{Finish: ledger.ReasonOK}},
		"nothing":    {responseBody("completed", `{"input_tokens":0,"output_tokens":0,"total_tokens":0}`), Answer{Reading: Reading{State: ledger.UsageReportedZero}, Finish: ledger.ReasonOK}},
		"wrong sum": {
			responseBody("completed", `{"input_tokens":1,"output_tokens":2,"total_tokens":9}`),
			Answer{Reading: Reading{Usage: ledger.Usage{Input: 1, Output: 8}, State: ledger.UsageInconsistent}, Finish: ledger.ReasonOK},
		},
	} {
		c.want.Model, c.want.UpstreamID = "gpt-5-2025-08-07", "resp_1"
		body, answer, err := Responses.ReadAnswer(&http.Response{Body: io.NopCloser(strings.NewReader(c.body)), ContentLength: -1})
		require.NoError(t, err, name)
		require.Equal(t, c.body, string(body.Text), name)
		require.Equal(t, c.want, answer, name)
	}
}

// What is streamed tells the same as what is not.
func TestStreamsOfResponses(t *testing.T) {
	t.Parallel()
	reported := Reading{Usage: responseTokens, State: ledger.UsageReported}
	for name, c := range map[string]struct {
		stream string
		want   Answer
		cut    bool
	}{
		"completed":       {responseStream("completed", responseUsage), Answer{Reading: reported, Finish: ledger.ReasonOK}, false},
		"incomplete":      {responseStream("incomplete", responseUsage), Answer{Reading: reported, Finish: ledger.ReasonOK}, false},
		"failed, billed":  {responseStream("failed", responseUsage), Answer{Reading: reported, Finish: ledger.ReasonUpstreamFailed}, false},
		"failed":          {responseStream("failed", "null"), Answer{Finish: ledger.ReasonUpstreamFailed}, false},
		"without its end": {strings.Split(responseStream("completed", responseUsage), "event: response.completed")[0], Answer{Finish: ledger.ReasonUpstreamCut}, true},
		"an error": {
			strings.Split(responseStream("completed", responseUsage), "event: response.completed")[0] + "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\"}\n\n",
			Answer{Finish: ledger.ReasonUpstreamFailed},
			false,
		},
	} {
		s := &sink{}
		answer, err := Responses.RelayStream(s, strings.NewReader(c.stream), Passing{})
		require.Equal(t, c.cut, err != nil, name)
		require.Equal(t, c.stream, s.String(), name)
		require.EqualValues(t, 2, answer.Events, name)
		require.Positive(t, answer.Output, name)
		c.want.Model, c.want.UpstreamID, c.want.Events, c.want.Output, c.want.FirstByte = "gpt-5-2025-08-07", "resp_1", 2, answer.Output, true
		require.Equal(t, c.want, answer, name)
	}
}
