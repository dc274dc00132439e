package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"tollgate/ledger"
)

// Stop is why the gateway ends a stream before its provider does.
type Stop struct {
	Reason ledger.Reason
	Told   json.RawMessage // what the caller is told of it, under "tollgate" in the last event: a JSON object
	Input  ledger.Tokens   // what the input is estimated at, for protocols that tell the usage at the end
}

// ender is a meter of a stream that the gateway can end: it knows how the protocol says that an answer has reached its bound. That
// is what SDKs take for a whole answer; an error would have them throw away what came.
type ender interface {
	// end lists the events that are missing to a complete stream. output is how many tokens came.
	end(stop *Stop, a *Answer, output ledger.Tokens) []addition
}

// addition is an event that the gateway adds to a stream.
type addition struct {
	name string // "" for none
	data []byte
}

// jsonObject writes a JSON object of names and values in turn; they always encode.
func jsonObject(pairs ...any) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(pairs[i+1])
		if err != nil {
			panic(fmt.Sprintf("%v: %v", pairs[i], err)) // a bug: the types are ours
		}
		fmt.Fprintf(&b, "%q:%s", pairs[i], value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// openChoices are the choices of an answer that have begun. One that has ended does not begin again: some providers tell the usage
// in an empty choice behind the end.
type openChoices struct {
	now   []int64 // that have not ended, in the order they began
	ended []int64
}

func (o *openChoices) note(index int64, ends bool) {
	at := slices.Index(o.now, index)
	switch {
	case slices.Contains(o.ended, index):
	case !ends && at < 0 && len(o.now) < maxChoices:
		o.now = append(o.now, index)
	case ends:
		if at >= 0 {
			o.now = slices.Delete(o.now, at, at+1)
		}
		if len(o.ended) < maxChoices {
			o.ended = append(o.ended, index)
		}
	}
}

// complete reports whether choices have ended, and all that began.
func (o *openChoices) complete() bool { return len(o.ended) > 0 && len(o.now) == 0 }

// end ends each open choice as one that has reached its bound.
func (m *openAIMeter) end(stop *Stop, a *Answer, _ ledger.Tokens) []addition {
	choices := []json.RawMessage{}
	for _, index := range m.open.now {
		if m.object == "text_completion" {
			choices = append(choices, jsonObject("index", index, "text", "", "logprobs", nil, "finish_reason", "length"))
		} else {
			choices = append(choices, jsonObject("index", index, "delta", struct{}{}, "logprobs", nil, "finish_reason", "length"))
		}
	}
	last := jsonObject("id", a.UpstreamID, "object", m.object, "created", m.created, "model", a.Model, "choices", choices, "tollgate", stop.Told)
	return []addition{{data: last}, {data: doneSentinel}}
}

// end closes the open block of content, then the message.
func (m *anthropicMeter) end(stop *Stop, _ *Answer, output ledger.Tokens) []addition {
	var events []addition
	for _, index := range m.open.now {
		events = append(events, addition{"content_block_stop", jsonObject("type", "content_block_stop", "index", index)})
	}
	delta := jsonObject("stop_reason", "max_tokens", "stop_sequence", nil)
	usage := jsonObject("output_tokens", output)
	return append(events,
		addition{"message_delta", jsonObject("type", "message_delta", "delta", json.RawMessage(delta), "usage", json.RawMessage(usage), "tollgate", stop.Told)},
		addition{"message_stop", jsonObject("type", "message_stop")})
}

// maxEcho is the largest response that is kept to be told again at the end.
const maxEcho = 64 << 10

// end tells the response as it began, as one that is incomplete.
func (m *responsesMeter) end(stop *Stop, a *Answer, output ledger.Tokens) []addition {
	response := m.response
	if len(response) == 0 || !gjson.ValidBytes(response) {
		response = jsonObject("id", a.UpstreamID, "object", "response", "created_at", m.created, "model", a.Model, "output", []int{})
	}
	for _, field := range []struct {
		path  string
		value []byte
	}{
		{"status", []byte(`"incomplete"`)},
		{"incomplete_details", []byte(`{"reason":"max_output_tokens"}`)},
		{"usage", jsonObject("input_tokens", stop.Input, "input_tokens_details", map[string]int{"cached_tokens": 0}, "output_tokens", output,
			"output_tokens_details", map[string]int{"reasoning_tokens": 0}, "total_tokens", stop.Input+output)},
	} {
		if set, err := sjson.SetRawBytes(response, field.path, field.value); err == nil { // it is a valid object
			response = set
		}
	}
	return []addition{{"response.incomplete", jsonObject("type", "response.incomplete", "sequence_number", m.sequence+1,
		"response", json.RawMessage(response), "tollgate", stop.Told)}}
}

// end ends each open candidate as one that has reached its bound.
func (m *geminiMeter) end(stop *Stop, a *Answer, _ ledger.Tokens) []addition {
	candidates := []json.RawMessage{}
	for _, index := range m.open.now {
		candidates = append(candidates, json.RawMessage(fmt.Sprintf(
			`{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"MAX_TOKENS","index":%d}`, index)))
	}
	return []addition{{data: jsonObject("candidates", candidates, "modelVersion", a.Model, "responseId", a.UpstreamID, "tollgate", stop.Told)}}
}
