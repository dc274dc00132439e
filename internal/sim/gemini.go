package sim

import (
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
)

// geminiPath is what stands before "<model>:<method>".
const geminiPath = "/v1beta/models/"

func geminiKey(r *http.Request) string {
	if key := r.Header.Get("X-Goog-Api-Key"); key != "" {
		return key
	}
	return r.URL.Query().Get("key")
}

// geminiStatus names errors by their HTTP status.
var geminiStatus = map[int]string{
	http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusForbidden: "PERMISSION_DENIED", http.StatusNotFound: "NOT_FOUND",
	http.StatusTooManyRequests: "RESOURCE_EXHAUSTED", http.StatusServiceUnavailable: "UNAVAILABLE", http.StatusGatewayTimeout: "DEADLINE_EXCEEDED",
}

func refuseGemini(w http.ResponseWriter, e *apiError, _ string) {
	header := w.Header()
	header["Content-Type"] = jsonType
	if e.retryAfter != unset {
		header.Set("Retry-After", itoa(e.retryAfter))
	}
	send(w, e.status, append(appendGeminiError(nil, e), '\n'))
}

func appendGeminiError(dst []byte, e *apiError) []byte {
	status, known := geminiStatus[e.status]
	switch {
	case e.named != "":
		status = e.named
	case !known && e.status < 500:
		status = "INVALID_ARGUMENT"
	case !known:
		status = "INTERNAL"
	}
	dst = appendQuoted(append(appendInt(append(dst, `{"error":{"code":`...), int64(e.status)), `,"message":`...), e.message)
	return append(appendQuoted(append(dst, `,"status":`...), status), "}}"...)
}

// serveGemini answers a method of one of Gemini's models.
func (s *Server) serveGemini(w http.ResponseWriter, c *call) *apiError {
	name, method, _ := strings.Cut(strings.TrimPrefix(c.request.URL.Path, geminiPath), ":")
	body, refused := readBody(c.request)
	if refused != nil {
		return refused
	}
	a := ask{does: endpointGenerate, choices: 1, maxOutput: unset}
	if method == "embedContent" || method == "batchEmbedContents" {
		a.does = endpointEmbed
	}
	at, known := modelIndex[name]
	if !known || models[at].does != a.does {
		return &apiError{status: http.StatusNotFound, message: "models/" + name + " is not found, or is not supported for " + method + ".", retryAfter: unset}
	}
	a.modelAt = at
	switch method {
	case "embedContent", "batchEmbedContents":
		return s.embedContents(w, c, a, body, method == "batchEmbedContents")
	case "generateContent", "streamGenerateContent":
		if refused := a.readContents(body); refused != nil {
			return refused
		}
		a.stream = method == "streamGenerateContent"
		a.list = a.stream && c.request.URL.Query().Get("alt") != "sse"
		return s.generate(w, c, a, int(a.choices))
	case "countTokens":
		if refused := a.readContents(body); refused != nil {
			return refused
		}
		w.Header()["Content-Type"] = jsonType
		send(w, http.StatusOK, append(appendInt([]byte(`{"totalTokens":`), a.tokens), "}\n"...))
		return nil
	default:
		return &apiError{status: http.StatusNotFound, message: "Method not found.", retryAfter: unset}
	}
}

// readContents counts what goes into generated content, and reads its bounds.
func (a *ask) readContents(body gjson.Result) *apiError {
	contents := body.Get("contents")
	if !contents.IsArray() {
		return badRequest("contents is not specified", "", "")
	}
	a.tokens = tokensPerOpening + countText(body.Get("tools").Raw) + countParts(body.Get("systemInstruction.parts"))
	contents.ForEach(func(_, content gjson.Result) bool {
		a.inputs.count++
		a.tokens += tokensPerMessage + countParts(content.Get("parts"))
		if role := content.Get("role").Str; role == "user" || role == "" {
			a.inputs.last = messageText(content.Get("parts"))
		}
		return true
	})
	config := body.Get("generationConfig")
	var refused *apiError
	if a.maxOutput, refused = whole(config.Get("maxOutputTokens"), "generation_config.max_output_tokens", unset, 1, 1<<31); refused != nil {
		return refused
	}
	a.choices, refused = whole(config.Get("candidateCount"), "generation_config.candidate_count", 1, 1, 8)
	a.tool = geminiTool(body)
	return refused
}

func countParts(parts gjson.Result) (tokens int64) {
	parts.ForEach(func(_, part gjson.Result) bool {
		switch {
		case part.Get("text").Exists():
			tokens += countText(part.Get("text").Str)
		case part.Get("inlineData").Exists():
			tokens += tokensPerImage
		default:
			tokens += countText(part.Raw)
		}
		return true
	})
	return tokens
}

// embedContents answers with vectors. As Google's, the answer says nothing of tokens.
func (s *Server) embedContents(w http.ResponseWriter, c *call, a ask, body gjson.Result, batch bool) *apiError {
	requests := []gjson.Result{body}
	if batch {
		requests = body.Get("requests").Array()
	}
	for _, request := range requests {
		parts := request.Get("content.parts")
		a.tokens += countParts(parts)
		a.inputs.last = messageText(parts)
	}
	b, refused := s.resolve(c, a.inputs.last)
	if refused != nil {
		return refused
	}
	u, err := b.usage(usage{input: a.tokens})
	if err != nil {
		return badRequest("simulator: "+err.Error(), "", "")
	}
	here := wait(c.request.Context(), c.started, b.latency)
	if b.status != 0 {
		return b.refusal()
	}
	outcome := complete
	if !here {
		outcome = clientLeft
	}
	s.bill(c, a.modelAt, endpointEmbed, newAnswerKey(), u, outcome)
	vector := s.vectors.text(geminiDimensions, false)
	var dst []byte
	if batch {
		dst = append(dst, `{"embeddings":[`...)
		for i := range requests {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(append(append(dst, `{"values":`...), vector...), '}')
		}
		dst = append(dst, "]}\n"...)
	} else {
		dst = append(append(append(dst, `{"embedding":{"values":`...), vector...), "}}\n"...)
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, dst)
	return nil
}

const geminiDimensions = 3072
