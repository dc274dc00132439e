package sim

import "github.com/tidwall/gjson"

// tool is one that an answer may call.
type tool struct {
	name     string
	forced   bool
	answered bool // the request brings what the tool answered
}

// toolArguments is what an answer calls its tool with.
const toolArguments = `{"word":"meter"}`

// usesTool reports whether the answer calls the tool: where the body insists on it, else where a setting says so and the tool
// has not answered yet.
func (g *generation) usesTool() bool {
	return g.tool.name != "" && (g.tool.forced || g.useTool && !g.tool.answered)
}

// messageTool is the tool that a message of Anthropic's may use: the one that the body insists on, else its first with a name.
func messageTool(body gjson.Result) tool {
	choice := body.Get("tool_choice")
	t := tool{name: choice.Get("name").Str, forced: choice.Get("type").Str == "any" || choice.Get("type").Str == "tool"}
	if t.name == "" {
		t.name = body.Get("tools.#(name).name").Str
	}
	t.answered = lastOf(body.Get("messages")).Get(`content.#(type=="tool_result")`).Exists()
	return t
}

// chatTool is the function that a chat may call.
func chatTool(body gjson.Result) tool {
	choice := body.Get("tool_choice")
	t := tool{name: choice.Get("function.name").Str, forced: choice.Str == "required" || choice.IsObject()}
	if t.name == "" {
		t.name = body.Get("tools.#(function.name).function.name").Str
	}
	t.answered = lastOf(body.Get("messages")).Get("role").Str == "tool"
	return t
}

// responseTool is the function that a response may call.
func responseTool(body gjson.Result) tool {
	choice := body.Get("tool_choice")
	t := tool{name: choice.Get("name").Str, forced: choice.Str == "required" || choice.Get("type").Str == "function"}
	if t.name == "" {
		t.name = body.Get(`tools.#(type=="function").name`).Str
	}
	t.answered = lastOf(body.Get("input")).Get("type").Str == "function_call_output"
	return t
}

// geminiTool is the function that generated content may call.
func geminiTool(body gjson.Result) tool {
	t := tool{name: body.Get("tools.#(functionDeclarations).functionDeclarations.0.name").Str}
	t.forced = body.Get("toolConfig.functionCallingConfig.mode").Str == "ANY"
	t.answered = lastOf(body.Get("contents")).Get("parts.#(functionResponse)").Exists()
	return t
}

// lastOf is the last element of a list.
func lastOf(list gjson.Result) (last gjson.Result) {
	if !list.IsArray() {
		return gjson.Result{}
	}
	list.ForEach(func(_, item gjson.Result) bool {
		last = item
		return true
	})
	return last
}
