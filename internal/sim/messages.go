package sim

import (
	"net/http"
	"slices"

	"github.com/tidwall/gjson"
)

// serveMessages answers a message of Anthropic's.
func (s *Server) serveMessages(w http.ResponseWriter, c *call) *apiError {
	body, a, refused := s.readMessage(c)
	if refused != nil {
		return refused
	}
	maxTokens := body.Get("max_tokens")
	if !maxTokens.Exists() {
		return badRequest("max_tokens: Field required", "", "")
	}
	if a.maxOutput, refused = whole(maxTokens, "max_tokens", unset, 0, 1<<31); refused != nil {
		return refused
	}
	if a.stream, refused = flag(body.Get("stream"), "stream"); refused != nil {
		return refused
	}
	a.choices = 1
	a.tool = messageTool(body)
	a.thinks = slices.Contains([]string{"enabled", "adaptive"}, body.Get("thinking.type").Str)
	return s.generate(w, c, a, 1)
}

// serveCountTokens tells how long a prompt is, and bills nothing.
func (s *Server) serveCountTokens(w http.ResponseWriter, c *call) *apiError {
	_, a, refused := s.readMessage(c)
	if refused != nil {
		return refused
	}
	b, refused := s.resolve(c, a.inputs.last)
	if refused != nil {
		return refused
	}
	if !wait(c.request.Context(), c.started, b.latency) {
		return nil
	}
	if b.status != 0 {
		return b.refusal()
	}
	tokens := a.tokens
	if b.prompt != unset {
		tokens = b.prompt
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, append(appendInt([]byte(`{"input_tokens":`), tokens), "}\n"...))
	return nil
}

// readMessage reads what a message and the counting of one share.
func (s *Server) readMessage(c *call) (body gjson.Result, a ask, refused *apiError) {
	if c.request.Header.Get("Anthropic-Version") == "" {
		return body, a, badRequest("anthropic-version: header is required", "", "")
	}
	if body, refused = readBody(c.request); refused != nil {
		return body, a, refused
	}
	f := readFields(body)
	if a, refused = readAsk(&f, endpointMessages); refused != nil {
		return body, a, refused
	}
	return body, a, a.readMessages(f.messages, f.counted+countText(messageText(body.Get("system"))))
}
