package provider

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// GeminiModels is what stands before the model in the path of Gemini's routes, which are "<model>:<method>".
const GeminiModels = "/v1beta/models/"

// GeminiMethod finds the endpoint of a call by the end of its path, "<model>:<method>", and the model.
func GeminiMethod(call string) (endpoint Endpoint, model string, ok bool) {
	i := strings.LastIndexByte(call, ':')
	if i <= 0 {
		return Endpoint{}, "", false
	}
	for _, e := range Endpoints() {
		if e.ModelInPath() && strings.HasSuffix(e.Path, call[i:]) {
			return e, call[:i], true
		}
	}
	return Endpoint{}, "", false
}

var geminiAPIs = []api{
	{Endpoint: Generate, parse: parseGenerate, input: ofFields((*estimator).generate), answer: answerGemini, meter: newGeminiMeter},
	{Endpoint: StreamGenerate, parse: parseGenerate, input: ofFields((*estimator).generate), answer: answerGemini, meter: newGeminiMeter},
	{Endpoint: EmbedContent, parse: parseGemini, input: ofFields((*estimator).embedContents), answer: answerGemini, meter: newGeminiMeter},
	{Endpoint: BatchEmbed, parse: parseGemini, input: ofFields((*estimator).embedContents), answer: answerGemini, meter: newGeminiMeter},
	{Endpoint: CountContent, billing: free, parse: parseGemini, input: ofFields((*estimator).generate), answer: answerGemini, meter: newGeminiMeter},
}

// parseGemini reads what Gemini's requests have in common. The model is the path's.
func parseGemini(endpoint Endpoint, call Call) (*Request, error) {
	found, err := fields(call.Body)
	if err != nil {
		return nil, err
	}
	// The usage comes in every answer, unasked.
	r := &Request{Endpoint: endpoint, Model: call.Model, body: call.Body, found: found, UsageAsked: true}
	switch {
	case r.Model == "":
		return nil, &RequestError{"model", "the path must name a model"}
	case len(r.Model) > MaxName:
		return nil, tooLong("model", r.Model)
	}
	if r.query, err = geminiQuery(call.Query); err != nil {
		return nil, err
	}
	return r, r.sameModel()
}

// parseGenerate reads a request of Gemini's generateContent, plain or streamed.
func parseGenerate(endpoint Endpoint, call Call) (*Request, error) {
	r, err := parseGemini(endpoint, call)
	if err != nil {
		return nil, err
	}
	r.Stream = endpoint == StreamGenerate
	if contents := r.found["contents"]; !contents.IsArray() && !contents.IsObject() {
		return nil, &RequestError{"contents", "you must provide contents"}
	}
	return r, r.readGeneration()
}

// geminiQuery is what of the query goes on: how the answer is to be written. A mask of fields could hide the usage, and the
// caller's key stays here.
func geminiQuery(query url.Values) (string, error) {
	to := url.Values{}
	for _, name := range []string{"alt", "$alt"} {
		switch alt := query.Get(name); alt {
		case "":
		case "json", "sse":
			to.Set(name, alt)
		default:
			return "", &RequestError{name, fmt.Sprintf("must be json or sse, not %.40s", alt)}
		}
	}
	return to.Encode(), nil
}

// sameModel errors when the body names another model than the path.
func (r *Request) sameModel() error {
	for _, named := range r.namedModels() {
		if value := gjson.GetBytes(r.body, named); value.Str != r.Model && value.Str != "models/"+r.Model {
			return &RequestError{named, "must be the model of the path"}
		}
	}
	return nil
}

// namedModels are the places where the body names the model once more.
func (r *Request) namedModels() []string {
	var paths []string
	if given(r.found["model"]) {
		paths = append(paths, "model")
	}
	if given(r.found["generateContentRequest"].Get("model")) {
		paths = append(paths, "generateContentRequest.model")
	}
	i := 0
	r.found["requests"].ForEach(func(_, request gjson.Result) bool {
		if given(request.Get("model")) {
			paths = append(paths, fmt.Sprintf("requests.%d.model", i))
		}
		i++
		return true
	})
	return paths
}

// Target is what the request is sent to when a model serves it.
func (r *Request) Target(model string) Target {
	to := Target{Method: http.MethodPost, Path: r.Endpoint.Path, Query: r.query, Model: model}
	if r.Endpoint.ModelInPath() {
		_, method, _ := strings.Cut(to.Path, ":")
		to.Path = GeminiModels + url.PathEscape(model) + ":" + method
	}
	return to
}

// geminiBody is the body for a provider that knows the model by another name.
func (r *Request) geminiBody(model string, _ policy.API) ([]byte, error) {
	body := r.body
	if model == r.Model {
		return body, nil
	}
	for _, named := range r.namedModels() {
		var err error
		if body, err = sjson.SetBytes(body, named, "models/"+model); err != nil {
			return nil, fmt.Errorf("set model: %w", err)
		}
	}
	return body, nil
}

// readGeneration reads how long the answers may get and what they may be made of. Google's servers read the names of fields
// in both spellings.
func (r *Request) readGeneration() error {
	config, err := either(r.found, "generationConfig", "generation_config")
	if err != nil {
		return err
	}
	r.choices = 1
	if bytes.Contains(r.body, audioData) {
		r.Also = append(r.Also, ledger.ClassInputAudio)
	}
	if !given(config) {
		return nil
	}
	if !config.IsObject() {
		return &RequestError{"generationConfig", "must be an object"}
	}
	inner, err := fields([]byte(config.Raw))
	if err != nil {
		return err
	}
	if r.bound, err = eitherCount(inner, "maxOutputTokens", "max_output_tokens"); err != nil {
		return err
	}
	candidates, err := eitherCount(inner, "candidateCount", "candidate_count")
	if err != nil {
		return err
	}
	if candidates > maxChoices {
		return &RequestError{"candidateCount", fmt.Sprintf("%d is more than the %d choices that can be metered", candidates, maxChoices)}
	}
	r.choices = max(1, candidates)
	modalities := firstGiven(inner["responseModalities"], inner["response_modalities"]).Raw
	if strings.Contains(modalities, `"IMAGE"`) {
		r.Also = append(r.Also, ledger.ClassOutputImage)
	}
	if strings.Contains(modalities, `"AUDIO"`) {
		r.Also = append(r.Also, ledger.ClassOutputAudio)
	}
	thinking, err := either(inner, "thinkingConfig", "thinking_config")
	if err != nil {
		return err
	}
	budget := firstGiven(thinking.Get("thinkingBudget"), thinking.Get("thinking_budget"))
	if n, ok := tokenCount(budget); ok && r.bound == 0 {
		r.thinking = int64(min(n, 1e9)) // the bound of an answer contains what is thought
	}
	return nil
}

// audioData begins the type of audio. In a text it would stand with a backslash.
var audioData = []byte(`"audio/`)

// either finds a field by its two spellings, and errors when both are there.
func either(found map[string]gjson.Result, camel, snake string) (gjson.Result, error) {
	if given(found[camel]) && given(found[snake]) {
		return gjson.Result{}, &RequestError{camel, "the field stands twice in the body"}
	}
	return firstGiven(found[camel], found[snake]), nil
}

func eitherCount(found map[string]gjson.Result, camel, snake string) (int64, error) {
	value, err := either(found, camel, snake)
	if err != nil || !given(value) {
		return 0, err
	}
	n, _, err := count(map[string]gjson.Result{camel: value}, camel)
	return n, err
}

func answerGemini(body []byte, a *Answer) {
	if root := gjson.ParseBytes(body); root.IsObject() {
		readGenerated(root, a)
	}
}

// readGenerated takes what an answer, or one event of a stream, says of itself, and reports whether it tells figures. Those of a
// stream are those so far: the last count.
func readGenerated(root gjson.Result, a *Answer) (told bool) {
	searches := max(a.Usage.Calls.WebSearch, geminiSearches(root))
	if model := name(root.Get("modelVersion")); model != "" {
		a.Model = model
	}
	if id := name(root.Get("responseId")); id != "" {
		a.UpstreamID = id
	}
	usage := root.Get("usageMetadata")
	if reading := readGeminiUsage(usage); reading.State != "" {
		told = true
		a.Reading, a.Tier = reading.after(a.Reading), serviceTier(firstGiven(usage.Get("serviceTier"), usage.Get("trafficType")).Str)
	}
	a.Usage.Calls.WebSearch = searches
	a.called(a.Usage.Calls)
	return told
}

// geminiSearches counts the searches that an answer was grounded in: of the web, for images, or of the map, which does not say how
// many. Since Gemini 3 each query is billed, before it was the prompt that was grounded.
func geminiSearches(root gjson.Result) int64 {
	n := int64(0)
	root.Get("candidates").ForEach(func(_, candidate gjson.Result) bool {
		grounding, here := candidate.Get("groundingMetadata"), int64(0)
		for _, list := range []string{"webSearchQueries", "imageSearchQueries"} {
			grounding.Get(list).ForEach(func(_, query gjson.Result) bool {
				if query.Str != "" {
					here++
				}
				return true
			})
		}
		if here == 0 && grounding.Get("groundingChunks.#(maps)").Exists() {
			here = 1
		}
		n += here
		return true
	})
	if model := root.Get("modelVersion").Str; strings.HasPrefix(model, "gemini-1") || strings.HasPrefix(model, "gemini-2") {
		n = min(n, 1)
	}
	return n
}

// geminiMeter reads a stream of generateContent.
type geminiMeter struct {
	open    openChoices
	blocked bool  // the prompt was: there are no candidates
	ended   bool  // by an error, or as a list
	told    int64 // texts that had come when the figures were told
}

func newGeminiMeter() meter { return &geminiMeter{} }

var closedList = []byte("]")

// event ends each candidate with the reason why the model stopped; the protocol has no other mark. The candidates may come one
// after the other.
func (m *geminiMeter) event(data []byte, a *Answer) (withhold, done bool) {
	if bytes.Equal(data, closedList) {
		m.ended = true
		return false, true
	}
	root := gjson.ParseBytes(data)
	if !root.IsObject() || !wholeJSON(data) {
		return false, m.done()
	}
	a.Events++
	if root.Get("error").IsObject() {
		a.Finish, m.ended = ledger.ReasonUpstreamFailed, true
		return false, true
	}
	root.Get("candidates").ForEach(func(_, candidate gjson.Result) bool {
		index, ends := candidate.Get("index").Int(), given(candidate.Get("finishReason"))
		m.open.note(index, ends)
		a.said.sayGenerated(index, candidate.Get("content.parts"))
		return true
	})
	if readGenerated(root, a) {
		m.told = a.said.pieces
	}
	m.blocked = m.blocked || given(root.Get("promptFeedback.blockReason"))
	return false, m.done()
}

func (m *geminiMeter) done() bool { return m.ended || m.whole() }

func (m *geminiMeter) whole() bool { return m.blocked || m.open.complete() }

// sayGenerated counts text and thoughts, code with what it gave, and the calls of functions.
func (t *tally) sayGenerated(candidate int64, parts gjson.Result) {
	parts.ForEach(func(_, part gjson.Result) bool {
		t.add(candidate, part.Get("text").Str)
		t.add(candidate, part.Get("executableCode.code").Str)
		if call := part.Get("functionCall"); call.Exists() {
			t.add(candidate, call.Get("name").Str)
			t.add(candidate, call.Get("args").Raw)
		}
		return true
	})
}

// close marks figures that were told on the way: the answer went on behind them, or did not come to its end.
func (m *geminiMeter) close(a *Answer) {
	if (!m.whole() || m.told < a.said.pieces) && a.State == ledger.UsageReported {
		a.State = ledger.UsageEstimated
		a.Usage.Output = max(a.Usage.Output, a.said.tokens()-a.Usage.Reasoning)
	}
}
