package provider

import "github.com/tidwall/gjson"

// What stands around texts, in tokens. OpenAI documents three for a message and three for the primer of the answer; the role
// is one more, a name another.
const (
	perMessage  = 3
	perReply    = 3
	perToolCall = 8  // the recipient and the ending of a call, measured
	perParallel = 12 // more than one call at once, measured
)

// chat adds up a body of chat completions.
func (e *estimator) chat(found map[string]gjson.Result) {
	e.frame(perReply + e.rules.preamble)
	found["messages"].ForEach(func(_, message gjson.Result) bool {
		e.message(message)
		return true
	})
	e.chatTools(found)
	e.schema(found["response_format"])
	e.text(found["prediction"].Get("content").Str)
	for _, name := range []string{"web_search_options", "plugins"} {
		if given(found[name]) {
			e.guess(serverTool)
		}
	}
}

func (e *estimator) message(message gjson.Result) {
	e.frame(perMessage + 1)
	message.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "role", "tool_call_id":
		case "content":
			e.content(value)
		case "name":
			e.frame(1)
			e.text(value.Str)
		case "tool_calls":
			if value.Get("1").Exists() {
				e.frame(perParallel)
			}
			value.ForEach(func(_, call gjson.Result) bool {
				e.frame(perToolCall)
				e.call(call.Get("function"))
				e.call(call.Get("custom"))
				return true
			})
		case "function_call":
			e.frame(perToolCall)
			e.call(value)
		case "audio": // an earlier answer that is named by its id
			e.guess(storedTokens / 10)
		default:
			e.value(value)
		}
		return true
	})
}

func (e *estimator) call(function gjson.Result) {
	e.text(function.Get("name").Str)
	e.value(function.Get("arguments"))
	e.value(function.Get("input"))
}

// content adds a message's content: a text, or a list of parts.
func (e *estimator) content(content gjson.Result) {
	if !content.IsArray() {
		e.value(content)
		return
	}
	content.ForEach(func(_, part gjson.Result) bool {
		e.part(part)
		return true
	})
}

// part adds one part of a message's content.
func (e *estimator) part(part gjson.Result) {
	switch part.Get("type").Str {
	case "text":
		e.text(part.Get("text").Str)
	case "refusal":
		e.text(part.Get("refusal").Str)
	case "image_url":
		image := part.Get("image_url")
		if image.Type == gjson.String { // as Mistral writes it
			e.image(image.Str, "")
			return
		}
		e.image(image.Get("url").Str, image.Get("detail").Str)
	case "input_audio":
		e.audio(part.Get("input_audio.data").Str)
	case "video_url":
		e.video(part.Get("video_url.url").Str)
	case "file":
		e.text(part.Get("file.filename").Str)
		e.document("", part.Get("file.file_data").Str)
	case "document_url":
		e.document("", part.Get("document_url").Str)
	default:
		e.value(part)
	}
}

// schema adds a response format: providers write its schema into the prompt.
func (e *estimator) schema(format gjson.Result) {
	if schema := format.Get("json_schema"); schema.Exists() {
		e.frame(perSchema)
		e.value(schema)
		return
	}
	if format.Exists() && format.Get("type").Str != "text" {
		e.frame(perMessage)
	}
}

// perSchema is the instruction around a schema.
const perSchema = 20

// maxLists is how deep lists of prompts are looked into: a list of lists of tokens is the deepest that a provider takes.
const maxLists = 2

// completions adds up a body of completions.
func (e *estimator) completions(found map[string]gjson.Result) {
	e.prompt(found["prompt"], maxLists)
	e.text(found["suffix"].Str)
}

// embeddings adds up a body of embeddings.
func (e *estimator) embeddings(found map[string]gjson.Result) { e.prompt(found["input"], maxLists) }

// prompt adds a text, texts, tokens or lists of tokens. Tokens count as what they are.
func (e *estimator) prompt(input gjson.Result, lists int) {
	switch {
	case input.Type == gjson.String:
		e.text(input.Str)
	case input.Type == gjson.Number:
		e.add(1)
	case input.IsArray() && lists > 0:
		input.ForEach(func(_, item gjson.Result) bool {
			e.prompt(item, lists-1)
			return true
		})
	default:
		e.value(input)
	}
}
