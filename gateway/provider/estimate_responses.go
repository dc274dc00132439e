package provider

import (
	"strings"

	"github.com/tidwall/gjson"
)

// conversationTokens is taken for what is stored with the provider and billed anew with each turn: an earlier response and all
// before it, a conversation, a prompt. Nobody can know before how long it has become.
const conversationTokens = 2000

// responses adds up a body of OpenAI's responses.
func (e *estimator) responses(found map[string]gjson.Result) {
	e.frame(perReply + e.rules.preamble)
	if instructions := found["instructions"]; given(instructions) {
		e.turn()
		e.items(instructions)
	}
	if input := found["input"]; input.Type == gjson.String {
		e.turn()
		e.text(input.Str)
	} else {
		e.items(input)
	}
	for _, name := range []string{"previous_response_id", "conversation", "prompt"} {
		if stored := found[name]; given(stored) {
			e.guess(conversationTokens)
			e.value(stored.Get("variables"))
		}
	}
	e.responsesTools(found)
	e.format(found["text"].Get("format"))
}

// turn is what stands around a message: its framing and its role.
func (e *estimator) turn() { e.frame(perMessage + 1) }

// items adds a list of input items, or a text.
func (e *estimator) items(list gjson.Result) {
	if !list.IsArray() {
		e.value(list)
		return
	}
	list.ForEach(func(_, item gjson.Result) bool {
		e.item(item)
		return true
	})
}

// item adds one input item: a message, or what a model or a tool did before.
func (e *estimator) item(item gjson.Result) {
	switch item.Get("type").Str {
	case "message", "":
		e.turn()
		e.inputContent(item.Get("content"))
	case "function_call", "custom_tool_call", "mcp_call":
		e.frame(perToolCall)
		e.text(item.Get("name").Str)
		e.value(item.Get("arguments"))
		e.value(item.Get("input"))
		e.value(item.Get("output"))
		e.value(item.Get("error"))
	case "function_call_output", "custom_tool_call_output", "computer_call_output", "shell_call_output", "local_shell_call_output":
		e.turn()
		e.inputContent(item.Get("output"))
	case "reasoning", "compaction":
		e.inputContent(item.Get("summary"))
		e.inputContent(item.Get("content"))
		e.guess(int64(len(item.Get("encrypted_content").Str)) / sealedBytes)
	case "item_reference":
		e.guess(conversationTokens / 10)
	case "image_generation_call":
		e.frame(perToolCall)
		e.image(item.Get("result").Str, "")
	case "mcp_list_tools", "tool_search_output", "additional_tools":
		e.guess(laterTools)
		e.toolList(item.Get("tools"))
	default:
		e.frame(perToolCall)
		e.value(item)
	}
}

// laterTools is what is said of tools that come after the start of a conversation, measured.
const laterTools = 80

// sealedBytes of what a model has sealed are taken for a token, where nothing better is known.
const sealedBytes = 8

// inputContent adds the content of an item: a text, a part, or a list of parts.
func (e *estimator) inputContent(content gjson.Result) {
	switch {
	case content.IsArray():
		content.ForEach(func(_, part gjson.Result) bool {
			e.inputPart(part)
			return true
		})
	case content.IsObject():
		e.inputPart(content)
	default:
		e.value(content)
	}
}

func (e *estimator) inputPart(part gjson.Result) {
	switch part.Get("type").Str {
	case "input_text", "output_text", "text", "summary_text", "reasoning_text":
		e.text(part.Get("text").Str)
	case "refusal":
		e.text(part.Get("refusal").Str)
	case "input_image", "computer_screenshot":
		e.image(part.Get("image_url").Str, part.Get("detail").Str)
	case "input_audio":
		e.audio(part.Get("input_audio.data").Str)
	case "input_file":
		e.text(part.Get("filename").Str)
		e.document("", part.Get("file_data").Str)
	default:
		e.value(part)
	}
}

// responsesTools adds the tools. Those that OpenAI runs itself bring what they find into the prompt, which is billed again for
// each round of the tool.
func (e *estimator) responsesTools(found map[string]gjson.Result) {
	tools := found["tools"]
	if !tools.IsArray() || !tools.Get("0").Exists() {
		return
	}
	e.frame(e.rules.tools)
	e.toolList(tools)
	if choice := found["tool_choice"]; choice.IsObject() {
		e.frame(perMessage)
		e.value(choice)
	}
}

func (e *estimator) toolList(tools gjson.Result) {
	var ts typescript
	tools.ForEach(func(_, tool gjson.Result) bool {
		kind := tool.Get("type").Str
		switch {
		case kind == "function" && e.rules.typescript:
			ts.function(tool)
		case kind == "function", kind == "custom", kind == "":
			e.frame(perTool)
			e.value(tool)
		case kind == "namespace":
			e.frame(perTool)
			e.text(tool.Get("description").Str)
			e.toolList(tool.Get("tools"))
		default:
			e.value(tool)
			for _, s := range hostedTools {
				if strings.HasPrefix(kind, s.prefix) {
					e.guess(s.tokens)
					break
				}
			}
		}
		return true
	})
	e.text(ts.String())
}

// hostedTools is what a tool that OpenAI runs itself says in the prompt and finds in an average use, by the start of its type.
var hostedTools = []struct {
	prefix string
	tokens int64
}{
	{"web_search", 9000},
	{"file_search", 4000},
	{"code_interpreter", 1500},
	{"computer", 1500},
	{"tool_search", 300},
	{"shell", 600},
	{"local_shell", 600},
	{"apply_patch", 600},
	{"image_generation", 600},
	{"", serverTool},
}

// format adds the format of a text.
func (e *estimator) format(format gjson.Result) {
	if schema := format.Get("schema"); schema.Exists() {
		e.frame(perSchema)
		e.value(schema)
		return
	}
	if format.Exists() && format.Get("type").Str != "text" {
		e.frame(perMessage)
	}
}
