package provider

import (
	"bytes"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// tally counts the tokens of what a stream carries while it comes, by the tokenizer of the model that answers. A token may come
// in parts, so the end of each choice's text waits for what follows. What waits is bounded, and so is what is counted exactly, see
// maxWork. A nil tally counts nothing.
type tally struct {
	counted estimator
	waiting []waiting
	pieces  int64 // texts that came: each is a token at least
	largest int   // bytes of the largest event's text
}

// waiting is the end of one choice's text.
type waiting struct {
	choice int64
	text   []byte
}

// waitMost is how much of a choice's text may wait.
const waitMost = 512

func newTally(model string) *tally { return &tally{counted: *newEstimator(model)} }

// add takes in what an event adds to a choice.
func (t *tally) add(choice int64, text string) {
	if t == nil || text == "" {
		return
	}
	t.pieces++
	t.largest = max(t.largest, len(text))
	w := t.of(choice)
	w.text = append(w.text, text...)
	if len(w.text) < waitMost {
		return
	}
	// A word begins with its blank, so nothing in front of one waits for more.
	done := bytes.LastIndexByte(w.text, ' ')
	if done <= 0 {
		done = len(w.text)
	}
	t.counted.text(string(w.text[:done]))
	rest := w.text[done:]
	if cap(w.text) > 4*waitMost {
		w.text = make([]byte, 0, waitMost)
	}
	w.text = append(w.text[:0], rest...)
}

func (t *tally) of(choice int64) *waiting {
	for i := range t.waiting {
		if t.waiting[i].choice == choice {
			return &t.waiting[i]
		}
	}
	if len(t.waiting) == maxChoices { // more than any request may ask for
		return &t.waiting[0]
	}
	t.waiting = append(t.waiting, waiting{choice: choice})
	return &t.waiting[len(t.waiting)-1]
}

// most is no less than tokens and costs nothing: what waits is counted as a token a byte.
func (t *tally) most() ledger.Tokens {
	n := t.counted.tokens()
	for i := range t.waiting {
		n += ledger.Tokens(len(t.waiting[i].text))
	}
	return max(n, ledger.Tokens(t.pieces))
}

// tokens is how many tokens have come.
func (t *tally) tokens() ledger.Tokens {
	counted := t.counted
	for i := range t.waiting {
		counted.text(string(t.waiting[i].text))
	}
	return max(counted.tokens(), ledger.Tokens(t.pieces))
}

// sayDelta counts text, thoughts as far as they are told, refusals, what is said aloud, and the calls of tools.
func (t *tally) sayDelta(choice int64, delta gjson.Result) {
	thought := false
	think := func(text string) bool {
		thought = thought || text != ""
		t.add(choice, text)
		return true
	}
	delta.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "content":
			t.sayParts(choice, value)
		case "refusal":
			t.add(choice, value.Str)
		case "reasoning", "reasoning_content", "reasoning_details": // some say the same in several
			switch {
			case thought:
			case value.IsArray():
				value.ForEach(func(_, detail gjson.Result) bool {
					return think(detail.Get("text").Str) && think(detail.Get("summary").Str)
				})
			default:
				think(value.Str)
			}
		case "audio":
			t.add(choice, value.Get("transcript").Str)
		case "function_call":
			t.sayCall(choice, value)
		case "tool_calls":
			value.ForEach(func(_, call gjson.Result) bool {
				t.sayCall(choice, call.Get("function"))
				t.sayCall(choice, call.Get("custom"))
				return true
			})
		}
		return true
	})
}

// sayParts counts content: a text, or Mistral's list of texts and thoughts, which are lists of texts again.
func (t *tally) sayParts(choice int64, content gjson.Result) {
	if !content.IsArray() {
		t.add(choice, content.Str)
		return
	}
	content.ForEach(func(_, part gjson.Result) bool {
		t.add(choice, part.Get("text").Str)
		part.Get("thinking").ForEach(func(_, thought gjson.Result) bool {
			t.add(choice, thought.Get("text").Str)
			return true
		})
		return true
	})
}

// sayCall counts a call of a function, or of a tool of the caller's own that takes a text.
func (t *tally) sayCall(choice int64, called gjson.Result) {
	for _, part := range []string{"name", "arguments", "input"} {
		t.add(choice, called.Get(part).Str)
	}
}
