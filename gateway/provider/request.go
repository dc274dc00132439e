package provider

import (
	"fmt"
	"math"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// Request is what admission and metering know of a caller's body.
type Request struct {
	Endpoint   Endpoint
	Model      string
	User       string // the end user the body names, "" when it names none
	Stream     bool
	UsageAsked bool          // the caller wants the usage chunk of a stream for itself
	Input      ledger.Tokens // estimate of the input
	Output     ledger.Tokens // the most the answer can have, or DefaultOutput a choice when the body gives no bound
	body       []byte
}

// Endpoint is one metered route.
type Endpoint struct {
	Path string
	Kind string // chat, completions, embeddings: what limits and upstream rates tell apart
}

// The metered routes.
var (
	Chat        = Endpoint{"/v1/chat/completions", "chat"}
	Completions = Endpoint{"/v1/completions", "completions"}
	Embeddings  = Endpoint{"/v1/embeddings", "embeddings"}
)

// DefaultOutput is held for each choice of a request that gives no output bound.
const DefaultOutput ledger.Tokens = 4096

// RequestError is a body that cannot be admitted: what is wrong and where.
type RequestError struct {
	Param   string // the body's field, "" for the body as a whole
	Message string
}

func (e *RequestError) Error() string {
	if e.Param == "" {
		return e.Message
	}
	return e.Param + ": " + e.Message
}

// fields reads the top level of a JSON object. A field that stands twice is an error: which one counts differs from parser
// to parser, and the gateway must not judge another request than the provider serves.
func fields(body []byte) (map[string]gjson.Result, error) {
	if !gjson.ValidBytes(body) {
		return nil, &RequestError{"", "the body is not valid JSON"}
	}
	root := gjson.ParseBytes(body)
	if !root.IsObject() {
		return nil, &RequestError{"", "the body is not a JSON object"}
	}
	found := make(map[string]gjson.Result, 8)
	var twice string
	root.ForEach(func(key, value gjson.Result) bool {
		name := key.String()
		if _, ok := found[name]; ok {
			twice = name
			return false
		}
		found[name] = value
		return true
	})
	if twice != "" {
		return nil, &RequestError{twice, "the field stands twice in the body"}
	}
	return found, nil
}

// count reads a whole number of at least one; absent and null give ok = false.
func count(found map[string]gjson.Result, name string) (n int64, ok bool, err error) {
	value, ok := found[name]
	if !ok || value.Type == gjson.Null {
		return 0, false, nil
	}
	if value.Type != gjson.Number || value.Num != math.Trunc(value.Num) || value.Num < 1 || value.Num > 1e9 {
		return 0, false, &RequestError{name, fmt.Sprintf("must be a whole number from 1 to 1000000000, not %.40s", value.Raw)}
	}
	return int64(value.Num), true, nil
}

func text(found map[string]gjson.Result, name string) (string, error) {
	value, ok := found[name]
	if !ok || value.Type == gjson.Null {
		return "", nil
	}
	if value.Type != gjson.String {
		return "", &RequestError{name, fmt.Sprintf("must be a string, not %.40s", value.Raw)}
	}
	return value.Str, nil
}

func flag(found map[string]gjson.Result, name string) (bool, error) {
	value, ok := found[name]
	if !ok || value.Type == gjson.Null {
		return false, nil
	}
	if !value.IsBool() {
		return false, &RequestError{name, fmt.Sprintf("must be true or false, not %.40s", value.Raw)}
	}
	return value.Bool(), nil
}
