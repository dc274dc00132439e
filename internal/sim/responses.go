package sim

import (
	"net/http"
	"strings"
	"sync"

	"github.com/tidwall/gjson"
)

const responsesPath = "/v1/responses/"

// serveResponses answers a response of OpenAI's.
func (s *Server) serveResponses(w http.ResponseWriter, c *call) *apiError {
	body, a, refused := s.readResponse(c)
	if refused != nil {
		return refused
	}
	if a.maxOutput, refused = whole(body.Get("max_output_tokens"), "max_output_tokens", unset, 1, 1<<31); refused != nil {
		return refused
	}
	if a.stream, refused = flag(body.Get("stream"), "stream"); refused != nil {
		return refused
	}
	a.choices, a.tool, a.keep = 1, responseTool(body), body.Get("store").Raw != "false"
	return s.generate(w, c, a, 1)
}

// serveCountResponse tells how long the input of a response is, and bills nothing.
func (s *Server) serveCountResponse(w http.ResponseWriter, c *call) *apiError {
	_, a, refused := s.readResponse(c)
	if refused != nil {
		return refused
	}
	w.Header()["Content-Type"] = jsonType
	send(w, http.StatusOK, append(appendInt([]byte(`{"object":"response.input_tokens","input_tokens":`), a.tokens), "}\n"...))
	return nil
}

// readResponse reads what a response and the counting of one share.
func (s *Server) readResponse(c *call) (body gjson.Result, a ask, refused *apiError) {
	if body, refused = readBody(c.request); refused != nil {
		return body, a, refused
	}
	f := readFields(body)
	if a, refused = readAsk(&f, endpointResponses); refused != nil {
		return body, a, refused
	}
	a.tokens = tokensPerOpening + f.counted + countText(body.Get("instructions").Str)
	if refused = a.readItems(f.input); refused != nil {
		return body, a, refused
	}
	if a.previous = body.Get("previous_response_id").Str; a.previous != "" {
		before, known := s.kept.find(a.previous)
		if !known {
			return body, a, badRequest("Previous response with id '"+a.previous+"' not found.", "previous_response_id", "previous_response_not_found")
		}
		a.tokens += before.made.input + before.made.output // what was said before is read again
	}
	return body, a, nil
}

// readItems counts the items of an input.
func (a *ask) readItems(input gjson.Result) *apiError {
	switch {
	case !input.Exists():
		return missing("input")
	case input.Type == gjson.String:
		a.inputs = inputs{count: 1, last: input.Str}
		a.tokens += tokensPerMessage + countText(input.Str)
	case input.IsArray():
		input.ForEach(func(_, item gjson.Result) bool {
			a.inputs.count++
			a.tokens += countMessage(item)
			if item.Get("role").Str == "user" {
				a.inputs.last = messageText(item.Get("content"))
			}
			return true
		})
	default:
		return badRequest("Invalid type for 'input': expected a string or an array of objects.", "input", "invalid_type")
	}
	return nil
}

// keptResponses is how many responses can be read again.
const keptResponses = 10_000

// kept are the latest responses that their callers let be stored. Safe for concurrent use.
type kept struct {
	mu    sync.Mutex // guards what follows
	byID  map[string]*generation
	order []string // the oldest first
}

func (k *kept) add(g *generation) {
	one := *g
	one.call = nil // not needed to write it again
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byID == nil {
		k.byID = map[string]*generation{}
	}
	if len(k.order) == keptResponses {
		delete(k.byID, k.order[0])
		k.order = k.order[1:]
	}
	id := answerID(g.does, g.key)
	k.byID[id], k.order = &one, append(k.order, id)
}

func (k *kept) find(id string) (*generation, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g, known := k.byID[id]
	return g, known
}

func (k *kept) remove(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byID, id)
}

// serveKept shows a stored response, or deletes it. Neither is billed.
func (s *Server) serveKept(w http.ResponseWriter, c *call) *apiError {
	id := strings.TrimPrefix(c.request.URL.Path, responsesPath)
	g, known := s.kept.find(id)
	if !known {
		return &apiError{status: http.StatusNotFound, message: "Response with id '" + id + "' not found.", retryAfter: unset}
	}
	w.Header()["Content-Type"] = jsonType
	if c.request.Method == http.MethodDelete {
		s.kept.remove(id)
		send(w, http.StatusOK, append(appendQuoted([]byte(`{"id":`), id), `,"object":"response","deleted":true}`+"\n"...))
		return nil
	}
	send(w, http.StatusOK, g.appendResponse(nil))
	return nil
}
