package provider

import (
	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// Estimate is what a request will use, judged from its body alone. It is what admission corrects by what earlier requests
// really used.
type Estimate struct {
	Input   ledger.Tokens // before any correction
	Exact   bool          // no part of Input was guessed: the model's own tokenizer counted it, or it is tokens already
	Output  ledger.Tokens // the most that all answers together can have, DefaultOutput for each where the body gives no bound
	Bounded bool          // the body gives the bound of Output
	Choices int64         // answers asked for; 0 where an answer has no tokens, as with embeddings
}

// correction covers what the heuristic misses, in percent, until something better is learned.
const correction = 110

// Corrected is what is held for the input while nothing is learned about the caller: the heuristic's figure with a margin,
// the tokenizer's as it is.
func (e Estimate) Corrected() ledger.Tokens {
	if e.Exact {
		return e.Input
	}
	return (e.Input*correction + 99) / 100
}

// estimate sets what the request will use. bound is the most tokens of one answer, 0 where the body gives none; choices is
// how many answers it asks for, 0 where answers have no tokens.
func (r *Request) estimate(found map[string]gjson.Result, bound, choices int64) {
	r.raw = Estimate{Bounded: bound > 0, Choices: choices}
	if bound == 0 {
		bound = int64(DefaultOutput)
	}
	r.raw.Output = ledger.Tokens(bound * choices)
	r.raw.Input, r.raw.Exact = estimateInput(r.Endpoint, r.Model, found)
	r.Input, r.Output = r.raw.Corrected(), r.raw.Output
}

// Estimate is what the request will use when a model serves it, by that model's tokenizer and rules. model is the provider's
// name for it, which may be another than the one that was asked for.
func (r *Request) Estimate(model string) (Estimate, error) {
	if model == r.Model {
		return r.raw, nil
	}
	found, err := fields(r.body)
	if err != nil {
		return Estimate{}, err
	}
	e := r.raw
	e.Input, e.Exact = estimateInput(r.Endpoint, model, found)
	return e, nil
}

// inputs adds up a request's input, by the path of its endpoint.
var inputs = map[string]func(e *estimator, found map[string]gjson.Result){
	Chat.Path:        (*estimator).chat,
	Completions.Path: (*estimator).completions,
	Embeddings.Path:  (*estimator).embeddings,
	"/v1/messages":   (*estimator).messages,
}

func estimateInput(endpoint Endpoint, model string, found map[string]gjson.Result) (input ledger.Tokens, exact bool) {
	e := newEstimator(model)
	inputs[endpoint.Path](e, found)
	return max(1, e.tokens()), e.rough == 0
}

// estimator adds up what the input of one request uses with one model.
type estimator struct {
	counted int64 // tokens
	rough   int64 // hundredths of a token, by the heuristic
}

func newEstimator(string) *estimator { return &estimator{} }

// add counts tokens that a rule gives.
func (e *estimator) add(tokens int64) { e.counted += tokens }

// frame counts tokens that stand around texts: as the provider documents them, or as other providers do.
func (e *estimator) frame(tokens int64) { e.rough += 100 * tokens }

// text counts a text.
func (e *estimator) text(s string) { e.rough += estimateText(s) }

// image counts an image: data is its base64 or a data: URL, or anything else where its size cannot be read.
func (e *estimator) image(_, _ string) { e.rough += 100 * imageTokens }

// document counts a file: data is its base64 or a data: URL, "" where it is stored elsewhere.
func (e *estimator) document(_, data string) { e.rough += estimateText(data) }

// tokens is the sum, rounded up.
func (e *estimator) tokens() ledger.Tokens {
	return ledger.Tokens(e.counted + (e.rough+99)/100)
}
