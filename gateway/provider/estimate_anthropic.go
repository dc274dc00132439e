package provider

import "github.com/tidwall/gjson"

// messages adds up a body of Anthropic's messages.
func (e *estimator) messages(found map[string]gjson.Result) {
	e.frame(perReply)
	e.blocks(found["system"])
	found["messages"].ForEach(func(_, message gjson.Result) bool {
		e.frame(perMessage)
		e.blocks(message.Get("content"))
		return true
	})
	e.text(found["tools"].Raw)
}

// blocks adds a message's content: a text, or a list of content blocks.
func (e *estimator) blocks(content gjson.Result) {
	switch {
	case content.Type == gjson.String:
		e.text(content.Str)
	case content.IsArray():
		content.ForEach(func(_, block gjson.Result) bool {
			e.block(block)
			return true
		})
	}
}

func (e *estimator) block(block gjson.Result) {
	switch block.Get("type").Str {
	case "text":
		e.text(block.Get("text").Str)
	case "image":
		e.image(block.Get("source.data").Str, "")
	case "document":
		e.document(block.Get("source.media_type").Str, block.Get("source.data").Str)
	case "tool_result":
		e.blocks(block.Get("content"))
	default:
		e.text(block.Raw)
	}
}
