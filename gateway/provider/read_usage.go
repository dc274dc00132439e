package provider

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// EndpointOf is the endpoint whose answers a protocol, as the command line names it, has: chat, completions, embeddings,
// responses, messages or gemini.
func EndpointOf(protocol string) (Endpoint, bool) {
	kind := protocol
	if protocol == "gemini" {
		kind = "generate"
	}
	for _, e := range Metered() {
		if e.Kind == kind {
			return e, true
		}
	}
	return Endpoint{}, false
}

// ErrNoUsage is returned by ReadUsage for an answer that says nothing of its usage.
var ErrNoUsage = errors.New("it says nothing of what was used")

// ReadUsage reads an answer as the gateway meters it: a body, a stream as it came, or the usage object alone. It wraps ErrNoUsage
// and ErrUpstreamCut.
func (e Endpoint) ReadUsage(text []byte) (Answer, error) {
	text = bytes.TrimSpace(text)
	answer := Answer{Finish: ledger.ReasonOK}
	switch {
	case len(text) == 0:
		return answer, errors.New("it is empty")
	case text[0] == '{':
		if !wholeJSON(text) {
			return answer, errors.New("it is no whole JSON")
		}
		apis[e.Path].answer(wrapUsage(text), &answer)
	case text[0] == '[':
		var err error
		if answer, err = e.RelayList(nowhere{io.Discard}, bytes.NewReader(text), Passing{}); err != nil {
			return answer, fmt.Errorf("it is no whole list: %w", err)
		}
	default:
		var err error
		if answer, err = e.RelayStream(nowhere{io.Discard}, bytes.NewReader(append(text, "\n\n"...)), Passing{}); err != nil {
			return answer, fmt.Errorf("it is neither JSON nor a whole stream of events: %w", err)
		}
	}
	if answer.State == "" || answer.State == ledger.UsageEstimated {
		return answer, ErrNoUsage
	}
	return answer, nil
}

type nowhere struct{ io.Writer }

func (nowhere) Flush() {}

// wrapUsage puts a usage object where an answer has it; an answer stays as it is.
func wrapUsage(text []byte) []byte {
	root := gjson.ParseBytes(text)
	for _, field := range []string{"usage", "usageMetadata", "response", "message"} {
		if root.Get(field).Exists() {
			return text
		}
	}
	for _, field := range []string{
		"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens", "promptTokenCount", "candidatesTokenCount",
		"totalTokenCount",
	} {
		if root.Get(field).Exists() {
			return fmt.Appendf(nil, `{"usage":%s,"usageMetadata":%s}`, text, text)
		}
	}
	return text
}
