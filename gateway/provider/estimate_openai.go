package provider

import "github.com/tidwall/gjson"

const (
	perMessage = 4 // role and separators of one message
	perReply   = 3 // the primer of the answer

	imageTokens = 1600 // one image of a message: above a full-size image at high detail
)

// chat adds up a body of chat completions.
func (e *estimator) chat(found map[string]gjson.Result) {
	e.frame(perReply)
	found["messages"].ForEach(func(_, message gjson.Result) bool {
		e.frame(perMessage)
		message.ForEach(func(key, value gjson.Result) bool {
			switch {
			case key.Str == "role":
			case key.Str == "content" && value.IsArray():
				value.ForEach(func(_, part gjson.Result) bool {
					e.part(part)
					return true
				})
			case value.Type == gjson.String:
				e.text(value.Str)
			case value.Type != gjson.Null:
				e.text(value.Raw)
			}
			return true
		})
		return true
	})
	for _, name := range []string{"tools", "functions", "response_format"} {
		e.text(found[name].Raw)
	}
}

// part adds one part of a message's content.
func (e *estimator) part(part gjson.Result) {
	switch part.Get("type").Str {
	case "text":
		e.text(part.Get("text").Str)
	case "refusal":
		e.text(part.Get("refusal").Str)
	case "image_url":
		e.image(part.Get("image_url.url").Str, part.Get("image_url.detail").Str)
	default:
		e.text(part.Raw)
	}
}

// completions adds up a body of completions.
func (e *estimator) completions(found map[string]gjson.Result) {
	e.prompt(found["prompt"])
	e.text(found["suffix"].Str)
}

// embeddings adds up a body of embeddings.
func (e *estimator) embeddings(found map[string]gjson.Result) { e.prompt(found["input"]) }

// prompt adds a text, texts, tokens or lists of tokens. Tokens count as what they are.
func (e *estimator) prompt(input gjson.Result) {
	switch {
	case input.Type == gjson.String:
		e.text(input.Str)
	case input.Type == gjson.Number:
		e.add(1)
	case input.IsArray():
		input.ForEach(func(_, item gjson.Result) bool {
			e.prompt(item)
			return true
		})
	default:
		e.text(input.Raw)
	}
}
