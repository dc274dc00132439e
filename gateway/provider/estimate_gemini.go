package provider

import (
	"cmp"
	"strings"

	"github.com/tidwall/gjson"
)

// generate adds up a body of Gemini's generateContent, or of a count of its tokens, which may carry such a body inside.
func (e *estimator) generate(found map[string]gjson.Result) {
	if inner := found["generateContentRequest"]; inner.IsObject() {
		e.generate(inner.Map())
	}
	e.contents(firstGiven(found["systemInstruction"], found["system_instruction"]))
	e.contents(found["contents"])
	found["tools"].ForEach(func(_, tool gjson.Result) bool {
		e.geminiTool(tool)
		return true
	})
	if given(firstGiven(found["cachedContent"], found["cached_content"])) {
		e.guess(storedTokens)
	}
	config := firstGiven(found["generationConfig"], found["generation_config"])
	for _, name := range []string{"responseSchema", "response_schema", "responseJsonSchema", "response_json_schema", "_responseJsonSchema"} {
		if schema := config.Get(name); given(schema) {
			e.frame(perSchema)
			e.value(schema)
		}
	}
}

// embedContents adds up a body of Gemini's embeddings: one content, or one in each request.
func (e *estimator) embedContents(found map[string]gjson.Result) {
	e.contents(found["content"])
	found["requests"].ForEach(func(_, request gjson.Result) bool {
		e.contents(request.Get("content"))
		return true
	})
}

// perContent is what stands around a content, measured.
const perContent = 2

// contents adds a content, or a list of them.
func (e *estimator) contents(list gjson.Result) {
	if !list.IsArray() {
		if given(list) {
			e.contentParts(list)
		}
		return
	}
	list.ForEach(func(_, content gjson.Result) bool {
		e.contentParts(content)
		return true
	})
}

func (e *estimator) contentParts(content gjson.Result) {
	e.frame(perContent)
	parts := content.Get("parts")
	switch {
	case content.Type == gjson.String:
		e.text(content.Str)
	case parts.IsArray():
		parts.ForEach(func(_, part gjson.Result) bool {
			e.geminiPart(part)
			return true
		})
	case parts.IsObject():
		e.geminiPart(parts)
	default:
		e.value(content)
	}
}

func (e *estimator) geminiPart(part gjson.Result) {
	part.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "thoughtSignature", "thought_signature":
			e.guess(int64(len(value.Str)) / cmp.Or(e.rules.sealed, sealedBytes))
		case "thought", "videoMetadata", "video_metadata", "mediaResolution":
		case "inlineData", "inline_data":
			e.media(value, value.Get("data").Str)
		case "fileData", "file_data":
			e.media(value, "")
		case "functionCall", "function_call", "functionResponse", "function_response":
			e.frame(perToolCall)
			value.ForEach(func(key, value gjson.Result) bool {
				switch {
				case key.Str == "parts" && value.IsArray():
					e.contentParts(gjson.Parse(`{"parts":` + value.Raw + `}`))
				case key.Str != "id":
					e.value(value)
				}
				return true
			})
		default:
			e.value(value)
		}
		return true
	})
}

// media adds what is no text, by its kind; data is empty where it lies elsewhere.
func (e *estimator) media(value gjson.Result, data string) {
	kind := firstGiven(value.Get("mimeType"), value.Get("mime_type")).Str
	switch family, _, _ := strings.Cut(kind, "/"); {
	case family == "image":
		e.image(data, "")
	case family == "audio":
		e.audio(data)
	case family == "video":
		e.video(data)
	default:
		e.document(kind, data)
	}
}

// geminiTools is what a tool that Google runs itself brings into the prompt in an average use.
var geminiTools = map[string]int64{
	"googleSearch": 500, "google_search": 500, "googleSearchRetrieval": 500, "google_search_retrieval": 500,
	"codeExecution": 500, "code_execution": 500, "urlContext": 4000, "url_context": 4000,
	"fileSearch": serverTool, "file_search": serverTool,
}

func (e *estimator) geminiTool(tool gjson.Result) {
	tool.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "functionDeclarations", "function_declarations":
			value.ForEach(func(_, function gjson.Result) bool {
				e.frame(perTool)
				e.value(function)
				return true
			})
		default:
			tokens, known := geminiTools[key.Str]
			if !known {
				tokens = serverTool
			}
			e.guess(tokens)
		}
		return true
	})
}
