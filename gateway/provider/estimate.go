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

// Estimate is what the request will use when a model serves it, by that model's tokenizer and rules. model is the provider's
// name for it, which may be another than the one that was asked for. It counts anew each time.
func (r *Request) Estimate(model string) Estimate {
	bound := r.bound
	if bound == 0 {
		bound = int64(DefaultOutput) + r.thinking
	}
	e := Estimate{Output: ledger.Tokens(bound * r.choices), Bounded: r.bound > 0, Choices: r.choices}
	e.Input, e.Exact = r.estimateInput(model)
	return e
}

func (r *Request) estimateInput(model string) (input ledger.Tokens, exact bool) {
	e := newEstimator(model)
	if add := apis[r.Endpoint.Path].input; add != nil {
		add(e, r)
	}
	return max(1, e.tokens()), e.rough == 0
}

// estimator adds up what the input of one request uses with one model.
type estimator struct {
	rules      *rules
	vocabulary *vocabulary // nil: the heuristic counts
	work       int         // how much the vocabulary may still do
	counted    int64       // tokens
	rough      int64       // hundredths of a token, not counted but guessed
}

// maxWork bounds what is counted exactly, in bytes of words that are tokens; other bytes are dearer, see mergeWork. It is 6 ms
// of prose, and 35 ms of the worst text.
const maxWork = 1 << 20

func newEstimator(model string) *estimator {
	e := &estimator{rules: rulesOf(model), work: maxWork}
	if v := e.rules.vocabulary; v != nil {
		e.vocabulary = v.Load()
	}
	return e
}

// add counts tokens that are sure.
func (e *estimator) add(tokens int64) { e.counted += tokens }

// guess counts tokens that are not.
func (e *estimator) guess(tokens int64) { e.rough += 100 * tokens }

// frame counts tokens that stand around texts: sure where the model's template is known.
func (e *estimator) frame(tokens int64) {
	if e.vocabulary != nil {
		e.add(tokens)
	} else {
		e.guess(tokens)
	}
}

// text counts a text: by the vocabulary as long as there is work left, by the heuristic behind that.
func (e *estimator) text(s string) {
	if e.vocabulary != nil {
		n, done := e.vocabulary.count(s, &e.work)
		e.counted += int64(n)
		s = s[done:]
	}
	if s != "" {
		e.rough += estimateText(s) * e.rules.scale / 100
	}
}

// value counts a value that is no known kind of content: a text as itself, anything else as its JSON.
func (e *estimator) value(v gjson.Result) {
	switch v.Type {
	case gjson.Null:
	case gjson.String:
		e.text(v.Str)
	default:
		e.text(v.Raw)
	}
}

// tokens is the sum, rounded up.
func (e *estimator) tokens() ledger.Tokens {
	return ledger.Tokens(e.counted + (e.rough+99)/100)
}
