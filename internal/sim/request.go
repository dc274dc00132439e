package sim

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
)

// ask is the body of one request, as far as the simulator heeds it.
type ask struct {
	does         endpoint
	modelAt      uint8
	inputs       inputs
	tokens       int64 // input by our own count
	maxOutput    int64 // a choice; unset without bound
	choices      int64 // for each prompt
	stream       bool
	includeUsage bool
	tool         tool
	thinks       bool
	keep         bool   // the answer can be read again
	previous     string // the response that this one goes on from
	list         bool   // a stream is one JSON list
	dimensions   int
	base64       bool
}

// readBody reads and checks the JSON of a request, before a field of it is looked at.
func readBody(r *http.Request) (gjson.Result, *apiError) {
	buffer := takeBuffer()
	defer giveBack(buffer)
	reader := http.MaxBytesReader(nil, r.Body, maxBody)
	for {
		if len(*buffer) == cap(*buffer) {
			*buffer = append(*buffer, make([]byte, 4096)...)[:len(*buffer)]
		}
		n, err := reader.Read((*buffer)[len(*buffer):cap(*buffer)])
		*buffer = (*buffer)[:len(*buffer)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			e := badRequest("Request body is too large.", "", "")
			e.status = http.StatusRequestEntityTooLarge
			return gjson.Result{}, e
		}
		if err != nil {
			return gjson.Result{}, badRequest("The request body could not be read.", "", "")
		}
	}
	if !gjson.ValidBytes(*buffer) {
		return gjson.Result{}, badRequest("We could not parse the JSON body of your request. (HINT: This likely means you"+
			" aren't using your HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was not"+
			" valid JSON.)", "", "")
	}
	body := gjson.ParseBytes(*buffer) // copies
	if !body.IsObject() {
		return gjson.Result{}, badRequest("The JSON body of your request is no object.", "", "")
	}
	return body, nil
}

// fields are the top-level fields of a body. Where one stands twice, the last counts.
type fields struct {
	model, messages, prompt, input, n, maxTokens, maxCompletionTokens gjson.Result
	stream, streamOptions, dimensions, encodingFormat                 gjson.Result
	counted                                                           int64 // tokens of fields that are counted as JSON text
}

func readFields(body gjson.Result) fields {
	var f fields
	var tools, format gjson.Result
	targets := [...]struct {
		name string
		to   *gjson.Result
	}{
		{"model", &f.model},
		{"messages", &f.messages},
		{"prompt", &f.prompt},
		{"input", &f.input},
		{"n", &f.n},
		{"max_tokens", &f.maxTokens},
		{"max_completion_tokens", &f.maxCompletionTokens},
		{"stream", &f.stream},
		{"stream_options", &f.streamOptions},
		{"dimensions", &f.dimensions},
		{"encoding_format", &f.encodingFormat},
		{"tools", &tools},
		{"response_format", &format},
	}
	body.ForEach(func(key, value gjson.Result) bool {
		for _, t := range targets {
			if t.name == key.Str {
				if value.Type == gjson.Null {
					value = gjson.Result{} // null is the same as absent
				}
				*t.to = value
				break
			}
		}
		return true
	})
	f.counted = countText(tools.Raw) + countText(format.Raw)
	return f
}

// whole reads an optional whole number.
func whole(value gjson.Result, name string, absent, least, most int64) (int64, *apiError) {
	if !value.Exists() {
		return absent, nil
	}
	if value.Type != gjson.Number || strings.ContainsAny(value.Raw, ".eE") {
		return 0, badRequest("Invalid type for '"+name+"': expected an integer.", name, "invalid_type")
	}
	n := value.Int()
	switch {
	case n < least:
		return 0, badRequest("Invalid '"+name+"': integer below minimum value.", name, "integer_below_min_value")
	case n > most:
		return 0, badRequest("Invalid '"+name+"': integer above maximum value.", name, "integer_above_max_value")
	}
	return n, nil
}

func flag(value gjson.Result, name string) (bool, *apiError) {
	if value.Exists() && !value.IsBool() {
		return false, badRequest("Invalid type for '"+name+"': expected a boolean.", name, "invalid_type")
	}
	return value.Bool(), nil
}

// readAsk reads the parts that all endpoints share.
func readAsk(f *fields, does endpoint) (ask, *apiError) {
	a := ask{does: does}
	if f.model.Type != gjson.String || f.model.Str == "" {
		return a, badRequest("you must provide a model parameter", "", "")
	}
	at, known := modelIndex[f.model.Str]
	if !known {
		return a, unknownModel(f.model.Str)
	}
	if models[at].does != does && (models[at].does != endpointChat || does != endpointResponses) {
		return a, wrongModel(&models[at], does)
	}
	a.modelAt = at
	return a, nil
}

// readGeneration adds what chat and legacy completions share: bounds, choices and streaming.
func (a *ask) readGeneration(f *fields) *apiError {
	const least, most = 1, 1 << 31
	limit, refused := whole(f.maxTokens, "max_tokens", unset, least, most)
	if refused != nil {
		return refused
	}
	a.maxOutput = limit
	if limit, refused = whole(f.maxCompletionTokens, "max_completion_tokens", unset, least, most); refused != nil {
		return refused
	}
	if limit != unset && (a.maxOutput == unset || limit < a.maxOutput) {
		a.maxOutput = limit
	}
	if a.choices, refused = whole(f.n, "n", 1, 1, 128); refused != nil {
		return refused
	}
	if a.stream, refused = flag(f.stream, "stream"); refused != nil {
		return refused
	}
	if f.streamOptions.Exists() {
		if !a.stream {
			return badRequest("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options", "")
		}
		a.includeUsage, refused = flag(f.streamOptions.Get("include_usage"), "stream_options.include_usage")
	}
	return refused
}

func missing(name string) *apiError {
	return badRequest("Missing required parameter: '"+name+"'.", name, "missing_required_parameter")
}

// readMessages counts a chat's messages and finds the text of the last one from the user.
func (a *ask) readMessages(messages gjson.Result, counted int64) *apiError {
	if !messages.Exists() {
		return missing("messages")
	}
	if !messages.IsArray() {
		return badRequest("Invalid type for 'messages': expected an array of objects.", "messages", "invalid_type")
	}
	var refused *apiError
	a.tokens = tokensPerOpening + counted
	messages.ForEach(func(_, message gjson.Result) bool {
		role := message.Get("role").Str
		if role == "" {
			refused = missing("messages[" + itoa(a.inputs.count) + "].role")
			return false
		}
		a.inputs.count++
		a.tokens += countMessage(message)
		if role == "user" {
			a.inputs.last = messageText(message.Get("content"))
		}
		return true
	})
	if refused == nil && a.inputs.count == 0 {
		return badRequest("Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array"+
			" instead.", "messages", "empty_array")
	}
	return refused
}

// messageText is the text of a message's content, its parts joined.
func messageText(content gjson.Result) string {
	if content.Type == gjson.String {
		return content.Str
	}
	var parts []string
	content.ForEach(func(_, part gjson.Result) bool {
		parts = append(parts, part.Get("text").Str)
		return true
	})
	return strings.Join(parts, "\n")
}

// resolve works out how the request is answered: defaults, then the directive, then headers.
func (s *Server) resolve(c *call, text string) (behaviour, *apiError) {
	b := *s.behaviour.Load()
	err := b.setDirectives(text)
	if err == nil {
		err = b.setHeaders(c.request.Header)
	}
	if err != nil {
		return b, badRequest("simulator: "+err.Error(), "", "invalid_setting")
	}
	return b, nil
}
