package sim

import (
	"net/http"
	"strconv"
)

// apiError is an error as the provider words it. param and code are null where empty.
type apiError struct {
	status               int
	message, param, code string
	kind                 string // the error's "type"; empty means by status
	named                string // the code that the settings of the request give
	retryAfter           int    // seconds; unset: no header
}

func badRequest(message, param, code string) *apiError {
	return &apiError{status: http.StatusBadRequest, message: message, param: param, code: code, retryAfter: unset}
}

// refusal is the error that a request asked for by its settings.
func (b *behaviour) refusal() *apiError {
	e := &apiError{status: b.status, code: b.errorCode, retryAfter: b.retryAfter, named: b.errorCode}
	switch {
	case b.status == http.StatusTooManyRequests:
		e.message, e.kind = "Rate limit reached for requests. Please try again later.", "requests"
		if e.code == "" {
			e.code = "rate_limit_exceeded"
		}
		if e.code == "insufficient_quota" {
			e.message = "You exceeded your current quota, please check your plan and billing details."
			e.kind = "insufficient_quota"
		}
	case b.status == http.StatusServiceUnavailable || b.status == statusOverloaded:
		e.message = "The server is currently overloaded with other requests. Sorry about that!"
	case b.status >= 500:
		e.message = "The server had an error while processing your request. Sorry about that!"
	default:
		e.message = "The request was refused because it asked to be."
	}
	return e
}

func (e *apiError) write(w http.ResponseWriter) {
	header := w.Header()
	header["Content-Type"] = jsonType
	if e.retryAfter != unset {
		header.Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	kind := e.kind
	if kind == "" {
		kind = "invalid_request_error"
		if e.status >= 500 {
			kind = "server_error"
		}
	}
	body := append([]byte(nil), "{\n  \"error\": {\n    \"message\": "...)
	body = appendQuoted(body, e.message)
	body = appendQuoted(append(body, ",\n    \"type\": "...), kind)
	body = appendOrNull(append(body, ",\n    \"param\": "...), e.param)
	body = appendOrNull(append(body, ",\n    \"code\": "...), e.code)
	body = append(body, "\n  }\n}\n"...)
	send(w, e.status, body)
}

func appendOrNull(dst []byte, text string) []byte {
	if text == "" {
		return append(dst, "null"...)
	}
	return appendQuoted(dst, text)
}

func methodNotAllowed(r *http.Request) *apiError {
	return &apiError{
		status:  http.StatusMethodNotAllowed,
		message: "Not allowed to " + r.Method + " on " + r.URL.Path + ". (HINT: Perhaps you meant to use a different HTTP method?)",
		code:    "method_not_supported", retryAfter: unset,
	}
}

func unknownURL(r *http.Request) *apiError {
	return &apiError{
		status: http.StatusNotFound, message: "Invalid URL (" + r.Method + " " + r.URL.Path + ")", retryAfter: unset,
	}
}

func unknownModel(name string) *apiError {
	return &apiError{
		status: http.StatusNotFound, message: "The model `" + name + "` does not exist or you do not have access to it.",
		code: "model_not_found", retryAfter: unset,
	}
}

func unauthorized(message, code string) *apiError {
	return &apiError{status: http.StatusUnauthorized, message: message, code: code, retryAfter: unset}
}

// wrongModel is the answer to a model that exists and does something else.
func wrongModel(m *model, asked endpoint) *apiError {
	e := &apiError{status: http.StatusNotFound, param: "model", retryAfter: unset}
	switch asked {
	case endpointChat:
		e.message = "This is not a chat model and thus not supported in the v1/chat/completions endpoint." +
			" Did you mean to use v1/" + m.does.String() + "?"
	case endpointCompletions:
		e.message = "This is not a completions model and thus not supported in the v1/completions endpoint." +
			" Did you mean to use v1/" + m.does.String() + "?"
	case endpointMessages:
		e.message, e.param = "model: "+m.alias, ""
	case endpointEmbeddings:
		e.status, e.param = http.StatusForbidden, ""
		e.message = "You are not allowed to generate embeddings from this model"
	default:
		e.status, e.message = http.StatusBadRequest, "The model '"+m.alias+"' is not supported with v1/"+asked.String()+"."
	}
	return e
}
