package provider

import (
	"fmt"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"tollgate/ledger"
)

// ParseOpenAI reads a request of OpenAI's chat completions, completions or embeddings. Every error is a *RequestError. The
// body is kept, not copied.
func ParseOpenAI(endpoint Endpoint, body []byte) (*Request, error) {
	found, err := fields(body)
	if err != nil {
		return nil, err
	}
	r := &Request{Endpoint: endpoint, body: body}
	if r.Model, err = text(found, "model"); err != nil {
		return nil, err
	}
	if r.Model == "" {
		return nil, &RequestError{"model", "you must provide a model"}
	}
	if r.User, err = text(found, "user"); err != nil {
		return nil, err
	}
	if endpoint == Embeddings {
		if !found["input"].Exists() {
			return nil, &RequestError{"input", "you must provide an input"}
		}
		r.Input = estimateInput(found["input"])
		return r, nil
	}
	if err := r.readStream(found); err != nil {
		return nil, err
	}
	if endpoint == Chat {
		if !found["messages"].IsArray() {
			return nil, &RequestError{"messages", "you must provide a list of messages"}
		}
		r.Input = estimateMessages(found["messages"])
	} else {
		r.Input = max(1, estimateInput(found["prompt"]))
	}
	for _, name := range []string{"tools", "functions", "response_format"} {
		r.Input += tokens(estimateText(found[name].Raw))
	}
	return r, r.readBound(found)
}

func (r *Request) readStream(found map[string]gjson.Result) error {
	var err error
	if r.Stream, err = flag(found, "stream"); err != nil {
		return err
	}
	options := found["stream_options"]
	if options.Type == gjson.Null {
		return nil
	}
	if !options.IsObject() {
		return &RequestError{"stream_options", "must be an object"}
	}
	inner, err := fields([]byte(options.Raw))
	if err != nil {
		return err
	}
	r.UsageAsked, err = flag(inner, "include_usage")
	return err
}

// readBound sets the most tokens that the answer can have. n and best_of multiply it.
func (r *Request) readBound(found map[string]gjson.Result) error {
	bound := int64(0)
	for _, name := range []string{"max_completion_tokens", "max_tokens"} {
		n, _, err := count(found, name)
		if err != nil {
			return err
		}
		bound = max(bound, n)
	}
	if bound == 0 {
		bound = int64(DefaultOutput)
	}
	choices := int64(1)
	for _, name := range []string{"n", "best_of"} {
		n, ok, err := count(found, name)
		if err != nil {
			return err
		}
		if ok && n > 1000 {
			return &RequestError{name, fmt.Sprintf("%d is more than the 1000 choices that can be metered", n)}
		}
		choices = max(choices, n)
	}
	r.Output = ledger.Tokens(bound * choices)
	return nil
}

// UpstreamBody is the body to send: the caller's bytes, with the provider's name for the model, and with a stream asked to
// report its usage.
func (r *Request) UpstreamBody(model string) ([]byte, error) {
	body := r.body
	var err error
	if model != r.Model {
		if body, err = sjson.SetBytes(body, "model", model); err != nil {
			return nil, fmt.Errorf("set model: %w", err)
		}
	}
	if r.Stream && !r.UsageAsked {
		if body, err = sjson.SetBytes(body, "stream_options.include_usage", true); err != nil {
			return nil, fmt.Errorf("ask for usage: %w", err)
		}
	}
	return body, nil
}

// Reading is what a body or an event says about usage.
type Reading struct {
	Usage ledger.Usage
	State ledger.UsageState // "" when nothing was said
}

// readOpenAIUsage reads a usage object of chat completions, completions or embeddings. OpenAI's prompt tokens contain the
// cached and audio ones, its completion tokens the reasoning and audio ones. Parts that do not fit into their total, or a
// total that is not their sum, make the reading inconsistent: the totals are then taken without parts.
func readOpenAIUsage(usage gjson.Result) Reading {
	if !usage.IsObject() {
		return Reading{}
	}
	prompt, completion := usage.Get("prompt_tokens"), usage.Get("completion_tokens")
	if !prompt.Exists() && !completion.Exists() {
		return Reading{}
	}
	in, out := ledger.Tokens(prompt.Int()), ledger.Tokens(completion.Int())
	cached := ledger.Tokens(usage.Get("prompt_tokens_details.cached_tokens").Int())
	audioIn := ledger.Tokens(usage.Get("prompt_tokens_details.audio_tokens").Int())
	reasoning := ledger.Tokens(usage.Get("completion_tokens_details.reasoning_tokens").Int())
	audioOut := ledger.Tokens(usage.Get("completion_tokens_details.audio_tokens").Int())
	r := Reading{
		Usage: ledger.Usage{
			Input: in - cached - audioIn, CachedInput: cached, InputAudio: audioIn,
			Output: out - reasoning - audioOut, Reasoning: reasoning, OutputAudio: audioOut,
		},
		State: ledger.UsageReported,
	}
	total := usage.Get("total_tokens")
	switch {
	case r.Usage.Negative() || total.Exists() && ledger.Tokens(total.Int()) != in+out:
		r.State = ledger.UsageInconsistent
		r.Usage = ledger.Usage{Input: max(in, 0), Output: max(out, ledger.Tokens(total.Int())-in, 0)}
	case r.Usage.Total() == 0:
		r.State = ledger.UsageReportedZero
	}
	return r
}
