package provider

import (
	"bytes"
	"fmt"
	"math"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

var anthropicAPIs = []api{
	{Endpoint: Messages, parse: parseMessages, input: ofFields((*estimator).messages), answer: answerAnthropic, meter: newAnthropicMeter},
	{Endpoint: CountTokens, billing: free, parse: parseCountTokens, input: ofFields((*estimator).messages), answer: answerAnthropic, meter: newAnthropicMeter},
}

// parseCountTokens reads what a message and the counting of its tokens have in common.
func parseCountTokens(endpoint Endpoint, call Call) (*Request, error) {
	found, err := fields(call.Body)
	if err != nil {
		return nil, err
	}
	// The usage comes in every stream, unasked.
	r := &Request{Endpoint: endpoint, body: call.Body, found: found, UsageAsked: true}
	if err := r.readModel(call); err != nil {
		return nil, err
	}
	if !found["messages"].IsArray() {
		return nil, &RequestError{"messages", "you must provide a list of messages"}
	}
	return r, nil
}

// parseMessages reads a request of Anthropic's messages.
func parseMessages(endpoint Endpoint, call Call) (*Request, error) {
	r, err := parseCountTokens(endpoint, call)
	if err != nil {
		return nil, err
	}
	if r.User, err = metadataUser(r.found["metadata"]); err != nil {
		return nil, err
	}
	if r.Stream, err = flag(r.found, "stream"); err != nil {
		return nil, err
	}
	if r.bound, err = outputBound(r.found["max_tokens"]); err != nil {
		return nil, err
	}
	r.choices = min(r.bound, 1)
	if bytes.Contains(call.Body, hourField) {
		r.Also = []ledger.Class{ledger.ClassCacheWrite1h}
	}
	return r, nil
}

// hourField is the lifetime of a cache that is dearer to write. In a text it would stand with a backslash.
var hourField = []byte(`"1h"`)

func metadataUser(metadata gjson.Result) (string, error) {
	if !given(metadata) {
		return "", nil
	}
	if !metadata.IsObject() {
		return "", &RequestError{"metadata", "must be an object"}
	}
	inner, err := fields([]byte(metadata.Raw))
	if err != nil {
		return "", err
	}
	const name = "metadata.user_id"
	inner[name] = inner["user_id"]
	return text(inner, name)
}

// outputBound reads the bound of the answer, thinking included. The protocol asks for one; 0 only fills the provider's cache.
func outputBound(value gjson.Result) (int64, error) {
	if !given(value) {
		return 0, &RequestError{"max_tokens", "you must say how many tokens the answer may have"}
	}
	if value.Type != gjson.Number || value.Num != math.Trunc(value.Num) || value.Num < 0 || value.Num > 1e9 {
		return 0, &RequestError{"max_tokens", fmt.Sprintf("must be a whole number from 0 to 1000000000, not %.40s", value.Raw)}
	}
	return int64(value.Num), nil
}

func answerAnthropic(body []byte, a *Answer) {
	found := gjson.GetManyBytes(body, "usage", "model", "id")
	a.Model, a.UpstreamID = name(found[1]), name(found[2])
	var u anthropicUsage
	u.read(found[0])
	u.tell(a)
}

// anthropicUsage is what a message has told of its usage so far. A stream tells it twice: at the start, and at the end the
// final figures of the whole message; some figures stand in one of the two alone. Its figures add up: what came from a cache
// or went into one is no part of the input.
type anthropicUsage struct {
	input, cached           ledger.Tokens
	written5m, written1h    ledger.Tokens // into caches
	output                  ledger.Tokens
	thinking                ledger.Tokens // part of output
	inputGiven, outputGiven bool
	searches                int64
	tier                    ledger.ServiceTier
	steps                   gjson.Result // that the answer took, where they are told apart
	nothing                 bool         // a figure that no other one contains is no count
	inconsistent            bool
}

// read takes over the figures of a usage object.
func (u *anthropicUsage) read(usage gjson.Result) {
	if !usage.IsObject() {
		return
	}
	figure := func(path string) (n ledger.Tokens, told bool) {
		value := usage.Get(path)
		n, ok := tokenCount(value)
		u.nothing = u.nothing || !ok
		return n, given(value)
	}
	input, told := figure("input_tokens")
	u.inputGiven = u.inputGiven || told
	cached, _ := figure("cache_read_input_tokens")
	written, told := figure("cache_creation_input_tokens")
	u.readWritten(usage.Get("cache_creation"), written, told)
	// A 0 after a count is a figure left out: what was read once stays so.
	if input > 0 {
		u.input = input
	}
	if cached > 0 {
		u.cached = cached
	}
	if output, told := figure("output_tokens"); told {
		u.output, u.outputGiven = output, true
	}
	if n, ok := tokenCount(usage.Get("server_tool_use.web_search_requests")); ok && n > 0 {
		u.searches = int64(n)
	}
	if tier := usage.Get("service_tier"); given(tier) {
		u.tier = serviceTier(tier.Str)
	}
	if steps := usage.Get("iterations"); steps.IsArray() {
		u.steps = steps
	}
	if thinking := usage.Get("output_tokens_details.thinking_tokens"); given(thinking) {
		n, ok := tokenCount(thinking)
		u.thinking = n
		u.inconsistent = u.inconsistent || !ok
	}
}

// readWritten takes over what was written to caches in all, and how it splits by the caches' lifetimes where that is told.
func (u *anthropicUsage) readWritten(split gjson.Result, written ledger.Tokens, told bool) {
	short, hour := split.Get("ephemeral_5m_input_tokens"), split.Get("ephemeral_1h_input_tokens")
	if given(short) || given(hour) {
		s, shortOK := tokenCount(short)
		h, hourOK := tokenCount(hour)
		u.inconsistent = u.inconsistent || !shortOK || !hourOK || told && s+h != written
		if s+h > 0 {
			u.written5m, u.written1h = s, h
		}
	}
	// What the sum has above its parts went into the cache that the parts tell of, else into the usual one.
	if more := written - u.written5m - u.written1h; more > 0 {
		if u.written1h > 0 && u.written5m == 0 {
			u.written1h += more
		} else {
			u.written5m += more
		}
	}
}

// reading is the usage in classes. Thinking that does not fit into the output, or a split that is not its sum, makes it
// inconsistent: the larger reading counts. Where input or output is missing, or is no count, nothing was said.
func (u *anthropicUsage) reading() Reading {
	if u.nothing || !u.inputGiven || !u.outputGiven {
		return Reading{}
	}
	r := Reading{
		Usage: ledger.Usage{
			Input: u.input, CachedInput: u.cached, CacheWrite5m: u.written5m, CacheWrite1h: u.written1h,
			Output: u.output - u.thinking, Reasoning: u.thinking, Calls: ledger.Calls{WebSearch: u.searches},
		},
		State: ledger.UsageReported,
	}
	if u.thinking > u.output {
		u.inconsistent = true
		r.Usage.Output, r.Usage.Reasoning = u.output, 0
	}
	switch {
	case u.inconsistent:
		r.State = ledger.UsageInconsistent
	case r.Usage == (ledger.Usage{}):
		r.State = ledger.UsageReportedZero
	}
	return r
}

// anthropicMeter reads a stream of a message.
type anthropicMeter struct {
	usage anthropicUsage
	final bool        // the final figures have come
	open  openChoices // blocks of content
	done  bool
}

func newAnthropicMeter() meter { return &anthropicMeter{} }

func (m *anthropicMeter) event(data []byte, a *Answer) (withhold, done bool) {
	switch gjson.GetBytes(data, "type").Str {
	case "content_block_delta":
		a.Events++
		for _, text := range gjson.GetManyBytes(data, "delta.text", "delta.thinking", "delta.partial_json") {
			a.said.add(0, text.Str)
		}
	case "content_block_start":
		found := gjson.GetManyBytes(data, "index", "content_block.name")
		m.open.note(found[0].Int(), false)
		a.said.add(0, found[1].Str)
	case "content_block_stop":
		m.open.note(gjson.GetBytes(data, "index").Int(), true)
	case "message_start":
		if !wholeJSON(data) {
			break
		}
		found := gjson.GetManyBytes(data, "message.usage", "message.model", "message.id")
		m.usage.read(found[0])
		a.Usage = m.usage.reading().Usage // what the input came to; close says how sure the rest is
		a.Model, a.UpstreamID = name(found[1]), name(found[2])
	case "message_delta":
		if usage := gjson.GetBytes(data, "usage"); usage.IsObject() && wholeJSON(data) {
			m.usage.read(usage)
			m.final = true
		}
	case "message_stop":
		m.done = true
	case "error":
		a.Finish, m.done = ledger.ReasonUpstreamFailed, true
	}
	return false, m.done
}

// close takes what the stream told. Where the final figures never came, the input is known from the start, but the output only
// from what was streamed.
func (m *anthropicMeter) close(a *Answer) {
	m.usage.tell(a)
	if m.final || a.State == "" {
		return
	}
	a.State = ledger.UsageEstimated
	a.Usage.Output, a.Usage.Reasoning = max(m.usage.output, a.said.tokens()), 0
}
