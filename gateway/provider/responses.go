package provider

import (
	"bytes"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// parseResponses reads a request of OpenAI's responses.
func parseResponses(endpoint Endpoint, call Call) (*Request, error) {
	found, err := fields(call.Body)
	if err != nil {
		return nil, err
	}
	// The usage comes in every stream, unasked.
	r := &Request{Endpoint: endpoint, body: call.Body, found: found, UsageAsked: true, choices: 1}
	if r.Model, err = text(found, "model"); err != nil {
		return nil, err
	}
	if r.Model == "" { // a stored prompt may name one, but nobody here knows it
		return nil, &RequestError{"model", "you must provide a model"}
	}
	if r.User, err = text(found, "user"); err != nil {
		return nil, err
	}
	if r.Stream, err = flag(found, "stream"); err != nil {
		return nil, err
	}
	if _, err = flag(found, "background"); err != nil {
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
	if a.State != "" {
		a.Usage.Calls = responseCalls(response)
	}
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
	return calls
}

// responsesMeter reads a stream of a response.
type responsesMeter struct{}

func newResponsesMeter() meter { return responsesMeter{} }

var (
	deltaSuffix = ".delta"
	deltaField  = []byte(`"delta":"`)
)

// event takes the usage from the event that ends the stream; it carries the whole response.
func (responsesMeter) event(data []byte, a *Answer) (withhold, last bool) {
	if bytes.Equal(data, doneSentinel) {
		return false, true
	}
	switch kind := gjson.GetBytes(data, "type").Str; kind {
	case "response.created", "response.queued", "response.in_progress":
		found := gjson.GetManyBytes(data, "response.model", "response.id")
		a.Model, a.UpstreamID = name(found[0]), name(found[1])
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		if wholeJSON(data) {
			readResponse(gjson.GetBytes(data, "response"), a)
		}
		if kind == "response.failed" {
			a.Finish = ledger.ReasonUpstreamFailed
		}
		return false, true
	case "error":
		a.Finish = ledger.ReasonUpstreamFailed
		return false, true
	default:
		if strings.HasSuffix(kind, deltaSuffix) {
			a.Events++
			a.Text += estimateText(deltaText(data, deltaField))
		}
	}
	return false, false
}

func (responsesMeter) close(*Answer) {}
