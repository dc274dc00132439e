package provider

import (
	"bytes"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

var responsesAPIs = []api{
	{Endpoint: Responses, parse: parseResponses, input: ofFields((*estimator).responses), answer: answerResponses, meter: newResponsesMeter},
	{Endpoint: CountResponses, billing: free, parse: parseResponses, input: ofFields((*estimator).responses), answer: answerResponses, meter: newResponsesMeter},
}

// parseResponses reads a request of OpenAI's responses. A stored prompt may name the model, but nobody here knows it.
func parseResponses(endpoint Endpoint, call Call) (*Request, error) {
	found, err := fields(call.Body)
	if err != nil {
		return nil, err
	}
	// The usage comes in every stream, unasked.
	r := &Request{Endpoint: endpoint, body: call.Body, found: found, UsageAsked: true, choices: 1}
	if err = r.readNames(call); err != nil {
		return nil, err
	}
	if r.Stream, err = flag(found, "stream"); err != nil {
		return nil, err
	}
	if r.Background, err = flag(found, "background"); err != nil {
		return nil, err
	}
	if r.Previous, err = text(found, "previous_response_id"); err != nil {
		return nil, err
	}
	if kind := found["input"].Type; kind != gjson.Null && kind != gjson.String && !found["input"].IsArray() {
		return nil, &RequestError{"input", "must be a text or a list of items"}
	}
	r.bound, _, err = count(found, "max_output_tokens")
	return r, err
}

// readResponsesUsage reads a usage object of responses. As in chat completions, the input contains what is cached and what was
// written to a cache, and the output the reasoning.
func readResponsesUsage(usage gjson.Result) Reading {
	return readTotals(usage, "input_tokens", "output_tokens")
}

func answerResponses(body []byte, a *Answer) { readResponse(gjson.ParseBytes(body), a) }

// readResponse takes what a response says of itself.
func readResponse(response gjson.Result, a *Answer) {
	a.Reading = readResponsesUsage(response.Get("usage"))
	a.Model, a.UpstreamID = name(response.Get("model")), name(response.Get("id"))
	a.Tier = serviceTier(response.Get("service_tier").Str)
	a.called(responseCalls(response))
	a.Cost, a.Others = toldCost(response.Get("usage")), drawn(response)
	if response.Get("status").Str == "failed" {
		a.Finish = ledger.ReasonUpstreamFailed
	}
}

// responseCalls counts the tools that OpenAI ran and bills by the call. Of the web searches it counts itself, where it does; else
// those that searched, for opening a page is none. Code runs in one container, however often.
func responseCalls(response gjson.Result) (calls ledger.Calls) {
	containers := map[string]bool{}
	response.Get("output").ForEach(func(_, item gjson.Result) bool {
		switch item.Get("type").Str {
		case "web_search_call":
			if action := item.Get("action.type").Str; action == "" || action == "search" {
				calls.WebSearch++
			}
		case "file_search_call":
			calls.FileSearch++
		case "code_interpreter_call":
			containers[item.Get("container_id").Str] = true
		}
		return true
	})
	if told := response.Get("tool_usage.web_search.num_requests"); given(told) {
		if n, ok := tokenCount(told); ok {
			calls.WebSearch = int64(n)
		}
	}
	calls.CodeInterpreter = int64(len(containers))
	toldCalls(response.Get("usage.server_side_tool_usage_details"), &calls)
	return calls
}

// toldCalls takes over the figures of xAI, which counts what it bills itself: also its searches of posts, and each run of code.
func toldCalls(told gjson.Result, calls *ledger.Calls) {
	if !told.IsObject() {
		return
	}
	sum := func(names ...string) (n int64) {
		for _, name := range names {
			if one, ok := tokenCount(told.Get(name)); ok {
				n += int64(one)
			}
		}
		return n
	}
	*calls = ledger.Calls{
		WebSearch: sum("web_search_calls", "x_search_calls"), FileSearch: sum("file_search_calls", "document_search_calls"),
		CodeInterpreter: sum("code_interpreter_calls"),
	}
}

// usualDrawer is the model that draws where the response does not name another.
const usualDrawer = "gpt-image-1"

// drawn is what the tool that draws images used: tokens of a model of its own, which the usage does not contain. Where the response
// does not tell them, they are taken from the images' quality.
func drawn(response gjson.Result) []ledger.ModelUsage {
	model := name(response.Get(`tools.#(type=="image_generation").model`))
	if model == "" {
		model = usualDrawer
	}
	if reading := asImages(readTotals(response.Get("tool_usage.image_gen"), "input_tokens", "output_tokens")); reading.State != "" {
		if reading.Usage.Total() == 0 {
			return nil
		}
		return []ledger.ModelUsage{{Model: model, Usage: reading.Usage, Estimated: reading.State != ledger.UsageReported}}
	}
	var u ledger.Usage
	response.Get("output").ForEach(func(_, item gjson.Result) bool {
		if item.Get("type").Str == "image_generation_call" && given(item.Get("result")) {
			u.OutputImage += ledger.Tokens(drawnTokens(item.Get("quality").Str, item.Get("size").Str))
		}
		return true
	})
	if u.OutputImage == 0 {
		return nil
	}
	return []ledger.ModelUsage{{Model: model, Usage: u, Estimated: true}}
}

// drawnTokens is what OpenAI documents for an image of a quality: square, or longer.
func drawnTokens(quality, size string) int64 {
	tokens := map[string][2]int64{"low": {272, 408}, "medium": {1056, 1584}, "high": {4160, 6240}}[quality]
	switch {
	case tokens[0] == 0:
		return imageTokens["high"]
	case size == "1024x1024":
		return tokens[0]
	default:
		return tokens[1]
	}
}

// responsesMeter reads a stream of a response.
type responsesMeter struct {
	response []byte // as it began, unless it is large
	created  int64
	sequence int64 // number of the last event
	done     bool
}

func newResponsesMeter() meter { return &responsesMeter{} }

const deltaSuffix = ".delta"

// event takes the usage from the event that ends the stream; it carries the whole response.
func (m *responsesMeter) event(data []byte, a *Answer) (withhold, done bool) {
	if bytes.Equal(data, doneSentinel) {
		m.done = true
		return false, true
	}
	m.sequence = max(m.sequence, gjson.GetBytes(data, "sequence_number").Int())
	switch kind := gjson.GetBytes(data, "type").Str; kind {
	case "response.created", "response.queued", "response.in_progress":
		found := gjson.GetManyBytes(data, "response.model", "response.id", "response.created_at", "response")
		a.Model, a.UpstreamID, m.created = name(found[0]), name(found[1]), found[2].Int()
		if m.response == nil && len(found[3].Raw) <= maxEcho {
			m.response = []byte(found[3].Raw)
		}
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		if wholeJSON(data) {
			readResponse(gjson.GetBytes(data, "response"), a)
		}
		if kind == "response.failed" {
			a.Finish = ledger.ReasonUpstreamFailed
		}
		m.done = true
	case "error":
		a.Finish, m.done = ledger.ReasonUpstreamFailed, true
	default:
		if strings.HasSuffix(kind, deltaSuffix) && kind != "response.audio.delta" {
			a.Events++
			found := gjson.GetManyBytes(data, "delta", "output_index")
			a.said.add(found[1].Int(), found[0].Str)
		}
	}
	return false, m.done
}

func (*responsesMeter) close(*Answer) {}
