package provider

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

var openAIAPIs = []api{
	{Endpoint: Chat, parse: parseChat, input: ofFields((*estimator).chat), answer: answerOpenAI, meter: newOpenAIMeter},
	{Endpoint: Completions, parse: parseCompletions, input: ofFields((*estimator).completions), answer: answerOpenAI, meter: newOpenAIMeter},
	{Endpoint: Embeddings, parse: parseEmbeddings, input: ofFields((*estimator).embeddings), answer: answerEmbeddings, meter: newOpenAIMeter},
}

// readNames reads what every request of OpenAI's says: the model, and the end user.
func (r *Request) readNames(call Call) (err error) {
	if err = r.readModel(call); err != nil {
		return err
	}
	r.User, err = text(r.found, "user")
	return err
}

// readOpenAI reads what requests of chat completions, completions and embeddings have in common.
func readOpenAI(endpoint Endpoint, call Call) (*Request, error) {
	found, err := fields(call.Body)
	if err != nil {
		return nil, err
	}
	r := &Request{Endpoint: endpoint, body: call.Body, found: found}
	return r, r.readNames(call)
}

func parseEmbeddings(endpoint Endpoint, call Call) (*Request, error) {
	r, err := readOpenAI(endpoint, call)
	if err == nil && !r.found["input"].Exists() {
		err = &RequestError{"input", "you must provide an input"}
	}
	return r, err
}

func parseChat(endpoint Endpoint, call Call) (*Request, error) {
	r, err := readOpenAI(endpoint, call)
	if err != nil {
		return nil, err
	}
	if !r.found["messages"].IsArray() {
		return nil, &RequestError{"messages", "you must provide a list of messages"}
	}
	if bytes.Contains(call.Body, inputAudio) {
		r.Also = append(r.Also, ledger.ClassInputAudio)
	}
	if strings.Contains(r.found["modalities"].Raw, `"audio"`) {
		r.Also = append(r.Also, ledger.ClassOutputAudio)
	}
	return r, r.readGenerated(1, "max_completion_tokens", "max_tokens")
}

func parseCompletions(endpoint Endpoint, call Call) (*Request, error) {
	r, err := readOpenAI(endpoint, call)
	if err != nil {
		return nil, err
	}
	return r, r.readGenerated(prompts(r.found["prompt"]), "max_tokens") // its provider does not know the other name
}

// readModel reads which model is asked for: the one of the path, where that names one, whatever the body says.
func (r *Request) readModel(call Call) (err error) {
	if r.named, err = text(r.found, "model"); err != nil {
		return err
	}
	r.Model = cmp.Or(call.Model, r.named)
	switch {
	case r.Model == "":
		return &RequestError{"model", "you must provide a model"}
	case len(r.Model) > MaxName:
		return tooLong("model", r.Model)
	}
	return nil
}

// inputAudio is the type of a part that is heard. In a text it would stand with backslashes.
var inputAudio = []byte(`"input_audio"`)

func (r *Request) readStream() error {
	var err error
	if r.Stream, err = flag(r.found, "stream"); err != nil {
		return err
	}
	options := r.found["stream_options"]
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

// maxChoices bounds how many answers one request may ask for.
const maxChoices = 1000

// readGenerated reads how the answer is sent, the most tokens that one can have, 0 where the body does not say, by the names
// of that bound, and how many answers there will be: n or best_of for each prompt.
func (r *Request) readGenerated(prompts int64, bounds ...string) error {
	if err := r.readStream(); err != nil {
		return err
	}
	for _, name := range bounds {
		n, _, err := count(r.found, name)
		if err != nil {
			return err
		}
		r.bound = max(r.bound, n)
	}
	each := int64(1)
	for _, name := range []string{"n", "best_of"} {
		n, _, err := count(r.found, name)
		if err != nil {
			return err
		}
		if n > maxChoices {
			return &RequestError{name, fmt.Sprintf("%d is more than the %d choices that can be metered", n, maxChoices)}
		}
		each = max(each, n)
	}
	if prompts > maxChoices*maxChoices {
		return &RequestError{"prompt", fmt.Sprintf("%d prompts are more than can be metered", prompts)}
	}
	r.choices = prompts * each
	if most := max(r.bound, int64(DefaultOutput)); r.choices > maxTokens/most {
		return &RequestError{bounds[0], fmt.Sprintf("%d answers of up to %d tokens each are more than can be metered", r.choices, most)}
	}
	return nil
}

// prompts counts the prompts of completions: a list of texts or of lists is as many, a text or a list of tokens is one.
func prompts(prompt gjson.Result) int64 {
	n := int64(0)
	if prompt.IsArray() {
		prompt.ForEach(func(_, item gjson.Result) bool {
			if item.Type != gjson.Number {
				n++
			}
			return true
		})
	}
	return max(1, n)
}

// UpstreamBody is the body to send: the caller's bytes, with the provider's name for the model, and with a stream asked to
// report its usage, unless the API refuses that and reports it unasked.
func (r *Request) UpstreamBody(model string, api policy.API) ([]byte, error) {
	return protocols[r.Endpoint.Protocol].body(r, model, api)
}

// withModel is the body that names the model at its top.
func (r *Request) withModel(model string, _ policy.API) ([]byte, error) {
	if model == r.named {
		return r.body, nil
	}
	if r.form != nil {
		return r.form.withModel(r.body, model)
	}
	body, err := sjson.SetBytes(r.body, "model", model)
	if err != nil {
		return nil, fmt.Errorf("set model: %w", err)
	}
	return body, nil
}

func (r *Request) openAIBody(model string, api policy.API) ([]byte, error) {
	body, err := r.withModel(model, api)
	if err != nil || !r.asksUsage(api) {
		return body, err
	}
	if body, err = sjson.SetBytes(body, "stream_options.include_usage", true); err != nil {
		return nil, fmt.Errorf("ask for usage: %w", err)
	}
	return body, nil
}

// Reading is what a body or an event says about usage.
type Reading struct {
	Usage ledger.Usage
	State ledger.UsageState // "" when nothing was said
}

// after is a reading of a stream that had told prior: a 0 behind a count is a figure left out.
func (r Reading) after(prior Reading) Reading {
	used, was := r.Usage, prior.Usage
	if used.InputTotal() == 0 {
		was.Output, was.Reasoning, was.OutputAudio, was.OutputImage, was.OutputVideo = used.Output, used.Reasoning, used.OutputAudio, used.OutputImage, used.OutputVideo
		used = was
	}
	if was = prior.Usage; used.OutputTotal() == 0 {
		used.Output, used.Reasoning, used.OutputAudio, used.OutputImage, used.OutputVideo = was.Output, was.Reasoning, was.OutputAudio, was.OutputImage, was.OutputVideo
	}
	if r.State == ledger.UsageReportedZero && prior.State != "" {
		r.State = prior.State
	}
	r.Usage = used
	return r
}

// readOpenAIUsage reads a usage object of chat completions, completions or embeddings.
func readOpenAIUsage(usage gjson.Result) Reading {
	return readTotals(usage, "prompt_tokens", "completion_tokens")
}

// readTotals reads a usage object whose totals contain their parts: the input what was cached, written to a cache, heard or
// seen, the output the reasoning and what was spoken or drawn. The details stand beside each total under its name. Parts that
// do not fit into their total, or a total that is not their sum, make the reading inconsistent: the totals are then taken
// without parts, and the larger reading counts. Where the totals themselves are no counts, nothing was said.
func readTotals(usage gjson.Result, input, output string) Reading {
	if !usage.IsObject() {
		return Reading{}
	}
	prompt, completion := usage.Get(input), usage.Get(output)
	if !given(prompt) && !given(completion) {
		return Reading{}
	}
	in, inOK := tokenCount(prompt)
	out, outOK := tokenCount(completion)
	if !inOK || !outOK {
		return Reading{}
	}
	consistent := true
	part := func(value gjson.Result) ledger.Tokens {
		n, ok := tokenCount(value)
		consistent = consistent && ok
		return n
	}
	read, made := firstGiven(usage.Get(input+"_details"), usage.Get("input_token_details")), usage.Get(output+"_details")
	u := ledger.Usage{
		CachedInput:  part(firstGiven(read.Get("cached_tokens"), usage.Get("prompt_cache_hit_tokens"), usage.Get("cached_tokens"))),
		CacheWrite5m: part(read.Get("cache_write_tokens")),
		InputAudio:   part(read.Get("audio_tokens")),
		InputImage:   part(read.Get("image_tokens")),
		Reasoning:    part(made.Get("reasoning_tokens")),
		OutputAudio:  part(made.Get("audio_tokens")),
		OutputImage:  part(made.Get("image_tokens")),
	}
	total := in + out
	if told := usage.Get("total_tokens"); given(told) {
		total = part(told)
	}
	if total == in+out+u.Reasoning {
		out += u.Reasoning // xAI counts it apart from the completion; its total says so
	}
	u.Input = in - u.InputTotal()
	u.Output = out - u.OutputTotal()
	cachedBeyondText(&u)
	switch {
	case !consistent || u.Negative() || total != in+out:
		return Reading{Usage: ledger.Usage{Input: in, Output: max(out, total-in)}, State: ledger.UsageInconsistent}
	case total == 0:
		return Reading{State: ledger.UsageReportedZero}
	}
	return Reading{Usage: u, State: ledger.UsageReported}
}

// cachedBeyondText finds what was cached among images and audio, where more came from a cache than there is text.
func cachedBeyondText(u *ledger.Usage) {
	for _, part := range []struct{ whole, cached *ledger.Tokens }{{&u.InputImage, &u.CachedInputImage}, {&u.InputAudio, &u.CachedInputAudio}} {
		if over := min(-u.Input, *part.whole, u.CachedInput); over > 0 {
			u.Input += over
			u.CachedInput -= over
			*part.whole -= over
			*part.cached += over
		}
	}
}

// serviceTier finds the tier in a provider's name for it.
func serviceTier(name string) ledger.ServiceTier {
	name = strings.ToLower(name)
	for _, tier := range []ledger.ServiceTier{ledger.ServiceBatch, ledger.ServiceFlex, ledger.ServicePriority} {
		if strings.HasSuffix(name, string(tier)) {
			return tier
		}
	}
	return ledger.ServiceStandard
}

// firstGiven is the first value that is there, for figures that providers name differently.
func firstGiven(values ...gjson.Result) gjson.Result {
	for _, value := range values {
		if given(value) {
			return value
		}
	}
	return gjson.Result{}
}

// maxTokens is above what any answer can have; sums of a few of it stay far from the end of int64.
const maxTokens = 1e12

func given(value gjson.Result) bool { return value.Exists() && value.Type != gjson.Null }

// tokenCount reads a count; absent and null are 0. ok is false for what is no whole number from 0 to maxTokens.
func tokenCount(value gjson.Result) (n ledger.Tokens, ok bool) {
	if !given(value) {
		return 0, true
	}
	if value.Type != gjson.Number || value.Num != math.Trunc(value.Num) || value.Num < 0 || value.Num > maxTokens {
		return 0, false
	}
	return ledger.Tokens(value.Num), true
}
