package provider

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// Request is what admission and metering know of a caller's body.
type Request struct {
	Endpoint   Endpoint
	Model      string
	User       string // the end user the body names, "" when it names none
	Stream     bool
	UsageAsked bool           // the caller wants the usage chunk of a stream for itself
	Background bool           // the provider goes on with the answer when its stream is left
	Previous   string         // the stored response that this one goes on from, "" for none
	Also       []ledger.Class // what input and output can be beside plain: dearer classes
	named      string         // the model as the body has it, "" where it names none
	bound      int64          // the most tokens of one answer, 0 where the body gives none
	thinking   int64          // what may be thought beside an answer without a bound
	choices    int64          // answers asked for, 0 where answers have no tokens
	query      string         // what of the query goes on to the provider
	form       *form          // of a multipart body
	found      map[string]gjson.Result
	body       []byte
	digest     *digest // set where the body is not there any more
}

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

// maxNesting bounds how deep a body's values may stand in each other: parsers go down by recursion, and a body of nothing
// but brackets would take the whole process's stack.
const maxNesting = 1000

// tooDeep reports whether brackets nest deeper than maxNesting. It counts them first, which is quick, and nearly always
// enough.
func tooDeep(body []byte) bool {
	if bytes.Count(body, []byte{'['})+bytes.Count(body, []byte{'{'}) <= maxNesting {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			if depth++; depth > maxNesting {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

// fields reads the top level of a JSON object. A field that stands twice is an error: which one counts differs from parser
// to parser, and the gateway must not judge another request than the provider serves. A name with escapes is an error too:
// setting such a field would add a second one.
func fields(body []byte) (map[string]gjson.Result, error) {
	if tooDeep(body) {
		return nil, &RequestError{"", fmt.Sprintf("the body nests deeper than %d levels", maxNesting)}
	}
	if !gjson.ValidBytes(body) {
		return nil, &RequestError{"", "the body is not valid JSON"}
	}
	// The body is not copied: nobody changes it as long as what was found in it is used.
	root := gjson.Parse(unsafe.String(unsafe.SliceData(body), len(body)))
	if !root.IsObject() {
		return nil, &RequestError{"", "the body is not a JSON object"}
	}
	found := make(map[string]gjson.Result, 8)
	var bad *RequestError
	root.ForEach(func(key, value gjson.Result) bool {
		name := key.String()
		if strings.IndexByte(key.Raw, '\\') >= 0 {
			bad = &RequestError{strings.Clone(name), "the field's name must be written without escapes"}
		} else if _, ok := found[name]; ok {
			bad = &RequestError{strings.Clone(name), "the field stands twice in the body"}
		}
		found[name] = value
		return bad == nil
	})
	if bad != nil {
		return nil, bad
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

// MaxName is the longest name of a model or an end user, in bytes: names stand in events, log lines and answers.
const MaxName = 512

func text(found map[string]gjson.Result, name string) (string, error) {
	value, ok := found[name]
	if !ok || value.Type == gjson.Null {
		return "", nil
	}
	if value.Type != gjson.String {
		return "", &RequestError{name, fmt.Sprintf("must be a string, not %.40s", value.Raw)}
	}
	if len(value.Str) > MaxName {
		return "", tooLong(name, value.Str)
	}
	return value.Str, nil
}

func tooLong(param, name string) *RequestError {
	return &RequestError{param, fmt.Sprintf("must have at most %d bytes, not %d", MaxName, len(name))}
}

// CheckUser errors, with a *RequestError, when a header names an end user by more than MaxName bytes.
func CheckUser(header, user string) error {
	if len(user) > MaxName {
		return tooLong(header, user)
	}
	return nil
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
