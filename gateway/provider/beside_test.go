package provider

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// answerOf reads a plain answer.
func answerOf(t *testing.T, e Endpoint, body string) Answer {
	t.Helper()
	_, answer, err := e.ReadAnswer(&http.Response{Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1})
	require.NoError(t, err)
	return answer
}

func step(kind, model string, in, out int) string {
	text := `{"type":"` + kind + `","input_tokens":` + strconv.Itoa(in) + `,"output_tokens":` + strconv.Itoa(out) + `,"cache_read_input_tokens":0,"cache_creation_input_tokens":0`
	if model != "" {
		text += `,"model":"` + model + `"`
	}
	return text + "}"
}

// LiteLLM PR #39294: what several models used for one message is billed at the price of each.
func TestStepsOfAMessage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		totals string
		steps  []string
		want   ledger.Usage
		state  ledger.UsageState
		others []ledger.ModelUsage
	}{
		"one":            {`"input_tokens":10,"output_tokens":5`, []string{step("message", "", 10, 5)}, ledger.Usage{Input: 10, Output: 5}, "", nil},
		"none":           {`"input_tokens":10,"output_tokens":5`, nil, ledger.Usage{Input: 10, Output: 5}, "", nil},
		"two of its own": {`"input_tokens":30,"output_tokens":9`, []string{step("message", "", 10, 5), step("message", "m-1", 20, 4)}, ledger.Usage{Input: 30, Output: 9}, "", nil},
		"a compaction is not in the totals": {
			`"input_tokens":23000,"output_tokens":1000,"output_tokens_details":{"thinking_tokens":400}`,
			[]string{step("compaction", "", 180000, 3500), step("message", "", 23000, 1000)},
			ledger.Usage{Input: 203000, Output: 4100, Reasoning: 400},
			"", nil,
		},
		"an advisor": {
			`"input_tokens":30,"output_tokens":9`,
			[]string{step("message", "", 10, 5), step("advisor_message", "big-1", 100, 50), step("message", "", 20, 4), step("advisor_message", "big-1", 1, 2)},
			ledger.Usage{Input: 30, Output: 9},
			"",
			[]ledger.ModelUsage{{Model: "big-1", Usage: ledger.Usage{Input: 101, Output: 52}}},
		},
		"totals of all models": {
			`"input_tokens":110,"output_tokens":55`,
			[]string{step("message", "other-1", 100, 50), step("message", "m-1", 10, 5)},
			ledger.Usage{Input: 10, Output: 5},
			"",
			[]ledger.ModelUsage{{Model: "other-1", Usage: ledger.Usage{Input: 100, Output: 50}}},
		},
		"one refused before it began": {
			`"input_tokens":110,"output_tokens":5`,
			[]string{step("message", "other-1", 100, 0), step("message", "m-1", 10, 5)},
			ledger.Usage{Input: 10, Output: 5},
			"", nil,
		},
		"steps that are none":        {`"input_tokens":10,"output_tokens":5`, []string{`{"type":"message"}`}, ledger.Usage{Input: 10, Output: 5}, ledger.UsageInconsistent, nil},
		"less than the totals":       {`"input_tokens":10,"output_tokens":5`, []string{step("message", "", 1, 1)}, ledger.Usage{Input: 10, Output: 5}, "", nil},
		"searches stay with the one": {`"input_tokens":10,"output_tokens":5,"server_tool_use":{"web_search_requests":2}`, []string{step("message", "", 10, 5)}, ledger.Usage{Input: 10, Output: 5, Calls: ledger.Calls{WebSearch: 2}}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.state == "" {
				c.state = ledger.UsageReported
			}
			usage := `{` + c.totals + `,"iterations":[` + strings.Join(c.steps, ",") + `]}`
			plain := answerOf(t, Messages, `{"id":"msg_7","model":"m-1","usage":`+usage+`}`)
			require.Equal(t, Reading{Usage: c.want, State: c.state}, plain.Reading)
			require.Equal(t, c.others, plain.Others)
			start := strings.Replace(messageStart(`{"input_tokens":1,"output_tokens":1}`), "claude-9", "m-1", 1)
			streamed, err := Messages.RelayStream(&sink{}, strings.NewReader(start+textDelta("x")+messageDelta("end_turn", usage)+messageStop), Passing{})
			require.NoError(t, err)
			require.Equal(t, plain.Reading, streamed.Reading)
			require.Equal(t, plain.Others, streamed.Others)
		})
	}
}

// Images that a response draws by a tool are another model's.
func TestDrawnInAResponse(t *testing.T) {
	t.Parallel()
	usage := `"usage":{"input_tokens":10,"output_tokens":5,"total_tokens":15}`
	call := func(more string) string {
		return `"output":[{"type":"image_generation_call","id":"ig_1","status":"completed","result":"AA"` + more + `}]`
	}
	gen := func(in, image, out int) string {
		return `"tool_usage":{"image_gen":{"input_tokens":` + strconv.Itoa(in) + `,"input_tokens_details":{"image_tokens":` + strconv.Itoa(image) + `,"text_tokens":` + strconv.Itoa(in-image) +
			`},"output_tokens":` + strconv.Itoa(out) + `,"total_tokens":` + strconv.Itoa(in+out) + `}}`
	}
	tools := `"tools":[{"type":"image_generation","model":"gpt-image-1.5"}]`
	for name, c := range map[string]struct {
		body string
		want []ledger.ModelUsage
	}{
		"none":     {`"output":[]`, nil},
		"zeros":    {`"output":[],` + gen(0, 0, 0), nil},
		"told":     {call("") + "," + tools + "," + gen(30, 20, 400), []ledger.ModelUsage{{Model: "gpt-image-1.5", Usage: ledger.Usage{Input: 10, InputImage: 20, OutputImage: 400}}}},
		"the same": {call("") + "," + gen(30, 0, 400), []ledger.ModelUsage{{Model: usualDrawer, Usage: ledger.Usage{Input: 30, OutputImage: 400}}}},
		"not told": {call(`,"quality":"medium","size":"1536x1024"`), []ledger.ModelUsage{{Model: usualDrawer, Usage: ledger.Usage{OutputImage: 1584}, Estimated: true}}},
		"square":   {call(`,"quality":"low","size":"1024x1024"`), []ledger.ModelUsage{{Model: usualDrawer, Usage: ledger.Usage{OutputImage: 272}, Estimated: true}}},
		"nothing":  {call(""), []ledger.ModelUsage{{Model: usualDrawer, Usage: ledger.Usage{OutputImage: ledger.Tokens(imageTokens["high"])}, Estimated: true}}},
		"it broke": {`"output":[{"type":"image_generation_call","status":"failed","result":null}]`, nil},
	} {
		body := `{"id":"resp_1","model":"gpt-5","status":"completed",` + usage + `,` + c.body + `}`
		answer := answerOf(t, Responses, body)
		require.Equal(t, c.want, answer.Others, name)
		require.Equal(t, Reading{Usage: ledger.Usage{Input: 10, Output: 5}, State: ledger.UsageReported}, answer.Reading, name)
		streamed, err := Responses.RelayStream(&sink{}, strings.NewReader(`data: {"type":"response.completed","response":`+body+"}\n\n"), Passing{})
		require.NoError(t, err, name)
		require.Equal(t, c.want, streamed.Others, name)
	}
}

// What providers bill beside tokens, and what they say themselves that an answer cost.
func TestSearchesAndToldCost(t *testing.T) {
	t.Parallel()
	nanos := func(n int64) *ledger.NanoUSD { v := ledger.NanoUSD(n); return &v }
	const tokens = `"prompt_tokens":10,"completion_tokens":5`
	search := func(index string) string { return `{"type":"search","arguments":"{}"` + index + `}` }
	for name, c := range map[string]struct {
		endpoint Endpoint
		body     string
		calls    ledger.Calls
		cost     *ledger.NanoUSD
	}{
		"plain":                    {Chat, `{"model":"gpt-5","choices":[],"usage":{` + tokens + `}}`, ledger.Calls{}, nil},
		"OpenAI's search model":    {Chat, `{"model":"gpt-4o-search-preview-2025-03-11","choices":[],"usage":{` + tokens + `}}`, ledger.Calls{WebSearch: 1}, nil},
		"OpenAI's search API":      {Chat, `{"model":"gpt-5-search-api","choices":[],"usage":{` + tokens + `}}`, ledger.Calls{WebSearch: 1}, nil},
		"by another provider":      {Chat, `{"model":"openai/gpt-4o-search-preview","choices":[],"usage":{` + tokens + `}}`, ledger.Calls{}, nil},
		"xAI's sources":            {Chat, `{"model":"grok-3","choices":[],"usage":{` + tokens + `,"num_sources_used":7}}`, ledger.Calls{WebSearch: 7}, nil},
		"xAI's cost":               {Chat, `{"model":"grok-4","choices":[],"usage":{` + tokens + `,"cost_in_usd_ticks":37756000}}`, ledger.Calls{}, nanos(3775600)},
		"OpenRouter's cost":        {Chat, `{"model":"a/b","choices":[],"usage":{` + tokens + `,"cost":3.75e-05,"is_byok":false}}`, ledger.Calls{}, nanos(37500)},
		"OpenRouter's with a key":  {Chat, `{"model":"a/b","choices":[],"usage":{` + tokens + `,"cost":0.00001,"is_byok":true,"cost_details":{"upstream_inference_cost":0.0002}}}`, ledger.Calls{}, nanos(210000)},
		"OpenRouter's searches":    {Chat, `{"model":"a/b","choices":[],"usage":{` + tokens + `,"server_tool_use":{"web_search_requests":2}}}`, ledger.Calls{WebSearch: 2}, nil},
		"a cost that is none":      {Chat, `{"model":"a/b","choices":[],"usage":{` + tokens + `,"cost":-1}}`, ledger.Calls{}, nil},
		"a cost beyond measure":    {Chat, `{"model":"a/b","choices":[],"usage":{` + tokens + `,"cost":1e99}}`, ledger.Calls{}, nil},
		"Groq's tools":             {Chat, `{"model":"groq/compound","choices":[{"message":{"executed_tools":[` + search("") + `,{"type":"python"},` + search("") + `]}}],"usage":{` + tokens + `}}`, ledger.Calls{WebSearch: 2}, nil},
		"no tokens, but a search":  {Chat, `{"model":"grok-3","choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"num_sources_used":7}}`, ledger.Calls{WebSearch: 7}, nil},
		"xAI's tools":              {Responses, `{"model":"grok-4","output":[{"type":"web_search_call"}],"usage":{"input_tokens":1,"output_tokens":2,"num_sources_used":9,"server_side_tool_usage_details":{"web_search_calls":2,"x_search_calls":1,"code_interpreter_calls":3}}}`, ledger.Calls{WebSearch: 3, CodeInterpreter: 3}, nil},
		"files, the web and code":  {Responses, `{"model":"gpt-5","output":[{"type":"web_search_call","action":{"type":"search"}},{"type":"web_search_call","action":{"type":"open_page"}},{"type":"file_search_call"},{"type":"code_interpreter_call","container_id":"c"},{"type":"code_interpreter_call","container_id":"c"}],"usage":{"input_tokens":1,"output_tokens":2}}`, ledger.Calls{WebSearch: 1, FileSearch: 1, CodeInterpreter: 1}, nil},
		"Gemini 2's prompt":        {Generate, `{"modelVersion":"gemini-2.5-flash","candidates":[{"groundingMetadata":{"webSearchQueries":["a","b"]}}],"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":2}}`, ledger.Calls{WebSearch: 1}, nil},
		"Gemini 3's queries":       {Generate, `{"modelVersion":"gemini-3-pro","candidates":[{"groundingMetadata":{"webSearchQueries":["a","","b"],"imageSearchQueries":["c"]}}],"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":2}}`, ledger.Calls{WebSearch: 3}, nil},
		"Gemini's map":             {Generate, `{"modelVersion":"gemini-3-pro","candidates":[{"groundingMetadata":{"groundingChunks":[{"maps":{"uri":"u"}}]}}],"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":2}}`, ledger.Calls{WebSearch: 1}, nil},
		"Anthropic's search alone": {Messages, `{"model":"claude","usage":{"input_tokens":0,"output_tokens":0,"server_tool_use":{"web_search_requests":1,"web_fetch_requests":4}}}`, ledger.Calls{WebSearch: 1}, nil},
	} {
		answer := answerOf(t, c.endpoint, c.body)
		require.Equal(t, c.calls, answer.Usage.Calls, name)
		require.Equal(t, c.cost, answer.Cost, name)
		require.Equal(t, ledger.UsageReported, answer.State, name)
	}
	// In a stream Groq lists a search when it begins, and again with what it found.
	delta := func(tool string) string {
		return `data: {"model":"groq/compound","choices":[{"delta":{"executed_tools":[` + tool + `]}}]}` + "\n\n"
	}
	stream := delta(search(`,"index":0`)) + delta(search(`,"index":0,"output":"x"`)) + delta(search(`,"index":1`)) +
		`data: {"choices":[{"delta":{},"finish_reason":"stop"}],"x_groq":{"usage":{` + tokens + `}}}` + "\n\ndata: [DONE]\n\n"
	answer, err := Chat.RelayStream(&sink{}, strings.NewReader(stream), Passing{})
	require.NoError(t, err)
	require.Equal(t, ledger.Usage{Input: 10, Output: 5, Calls: ledger.Calls{WebSearch: 2}}, answer.Usage)
}

// OpenRouter answers with status 200 and an error where a model failed after it had begun.
func TestAnErrorInSpiteOfItsStatus(t *testing.T) {
	t.Parallel()
	answer := answerOf(t, Chat, `{"error":{"message":"Provider returned error","code":502},"user_id":"u"}`)
	require.Equal(t, Answer{Finish: ledger.ReasonUpstreamFailed}, answer)
	answer = answerOf(t, Chat, `{"model":"m","error":null,"choices":[{}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)
	require.Equal(t, ledger.ReasonOK, answer.Finish)
}
