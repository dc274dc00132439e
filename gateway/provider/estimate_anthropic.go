package provider

import (
	"regexp"
	"strings"

	"github.com/tidwall/gjson"
)

// perTurn is the framing of a turn of Anthropic's, measured.
const perTurn = 7

// maxBlocks is how deep content blocks are looked into: a block in a tool's result is the deepest that Anthropic takes.
const maxBlocks = 3

// messages adds up a body of Anthropic's messages.
func (e *estimator) messages(found map[string]gjson.Result) {
	e.frame(perReply + e.rules.preamble)
	e.blocks(found["system"], maxBlocks)
	found["messages"].ForEach(func(_, message gjson.Result) bool {
		e.frame(perTurn)
		e.blocks(message.Get("content"), maxBlocks)
		return true
	})
	e.claudeTools(found)
	if thinking := found["thinking"].Get("type").Str; thinking != "" && thinking != "disabled" {
		e.frame(thinkingTokens)
	}
	if format := found["output_config"].Get("format"); format.Exists() {
		e.frame(schemaTokens)
		e.value(format)
	}
	for _, feature := range []gjson.Result{found["output_config"].Get("task_budget"), found["context_management"]} {
		if feature.Exists() {
			e.frame(featureTokens)
		}
	}
	found["mcp_servers"].ForEach(func(_, _ gjson.Result) bool {
		e.guess(serverTool)
		return true
	})
}

// What Anthropic writes into a prompt for a feature, measured; for tools it is documented for the older models.
const (
	thinkingTokens = 30
	schemaTokens   = 200
	featureTokens  = 60
)

// serverTools is what Anthropic adds for a tool that it brings itself, by the start of its type, and what an average use of
// it brings into the prompt, which is billed again for each round of the tool. Nobody can know it before.
var serverTools = []struct {
	prefix string
	tokens int64
}{
	{"tool_search", 900},
	{"web_search", 7000},
	{"web_fetch", 7000},
	{"code_execution", 9000},
	{"computer", 800},
	{"text_editor", 700},
	{"bash", 300},
	{"memory", 700},
	{"", serverTool},
}

// serverToolType is how Anthropic names those tools: with the date of their version.
var serverToolType = regexp.MustCompile(`_20\d{6}$`)

func (e *estimator) claudeTools(found map[string]gjson.Result) {
	count := 0
	found["tools"].ForEach(func(_, tool gjson.Result) bool {
		count++
		if kind := tool.Get("type").Str; serverToolType.MatchString(kind) {
			for _, s := range serverTools {
				if strings.HasPrefix(kind, s.prefix) {
					e.guess(s.tokens)
					break
				}
			}
		}
		e.frame(perTool)
		e.value(tool)
		return true
	})
	if count > 0 {
		e.frame(e.rules.tools)
	}
}

// blocks adds a message's content: a text, or a list of content blocks.
func (e *estimator) blocks(content gjson.Result, depth int) {
	if !content.IsArray() || depth == 0 {
		e.value(content)
		return
	}
	content.ForEach(func(_, block gjson.Result) bool {
		e.block(block, depth-1)
		return true
	})
}

func (e *estimator) block(block gjson.Result, depth int) {
	switch block.Get("type").Str {
	case "text":
		e.text(block.Get("text").Str)
	case "image":
		e.image(block.Get("source.data").Str, "")
	case "document":
		e.text(block.Get("title").Str)
		e.text(block.Get("context").Str)
		if content := block.Get("source.content"); content.Exists() {
			e.blocks(content, depth)
			return
		}
		e.document(block.Get("source.media_type").Str, block.Get("source.data").Str)
	case "tool_use", "server_tool_use", "mcp_tool_use":
		e.frame(perToolCall)
		e.text(block.Get("name").Str)
		e.value(block.Get("input"))
	case "tool_result", "mcp_tool_result", "web_search_tool_result", "search_result":
		e.frame(perToolCall)
		e.blocks(block.Get("content"), depth)
	case "thinking": // its signature is not read
		e.text(block.Get("thinking").Str)
	case "redacted_thinking":
		e.guess(int64(len(block.Get("data").Str)) / 8)
	case "container_upload":
		e.guess(serverTool / 10)
	default:
		e.value(block)
	}
}
