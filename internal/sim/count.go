package sim

import (
	"unicode"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

const (
	lettersPerToken  = 6
	tokensPerMessage = 3
	tokensPerOpening = 3
	tokensPerImage   = 85
)

// countText counts the tokens of a text by the rule in the package's documentation.
func countText(text string) int64 {
	var tokens int64
	run := 0 // length of the current run of letters and digits
	for i := 0; i < len(text); {
		c := text[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			if run%lettersPerToken == 0 {
				tokens++
			}
			run++
			i++
			continue
		}
		run = 0
		if c < utf8.RuneSelf {
			if c != ' ' && (c < '\t' || c > '\r') {
				tokens++
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		if !unicode.IsSpace(r) {
			tokens++
		}
		i += size
	}
	return tokens
}

// countMessage counts one chat message.
func countMessage(message gjson.Result) int64 {
	tokens := int64(tokensPerMessage)
	message.ForEach(func(key, value gjson.Result) bool {
		switch {
		case value.Type == gjson.String:
			tokens += countText(value.Str)
		case key.Str == "content" && value.IsArray():
			value.ForEach(func(_, part gjson.Result) bool {
				tokens += countPart(part)
				return true
			})
		case value.Type != gjson.Null:
			tokens += countText(value.Raw)
		}
		return true
	})
	return tokens
}

func countPart(part gjson.Result) int64 {
	switch part.Get("type").Str {
	case "text", "input_text", "output_text":
		return countText(part.Get("text").Str)
	case "image_url", "image", "input_image":
		return tokensPerImage
	default:
		return countText(part.Raw)
	}
}

// inputs is what an embeddings request or a legacy completion is about: how many texts, their tokens, and the last one in
// plain text, where a directive may stand.
type inputs struct {
	count  int
	tokens int64
	last   string
}

// readInputs reads the four forms of "input" and "prompt". ok is false where it is none of them.
func readInputs(value gjson.Result) (in inputs, ok bool) {
	if value.Type == gjson.String {
		return inputs{1, countText(value.Str), value.Str}, true
	}
	if !value.IsArray() {
		return inputs{}, false
	}
	ok = true
	ids := int64(0)
	value.ForEach(func(_, item gjson.Result) bool {
		switch {
		case item.Type == gjson.Number && in.count == 0:
			ids++
		case item.Type == gjson.String && ids == 0:
			in.count++
			in.tokens += countText(item.Str)
			in.last = item.Str
		case item.IsArray() && ids == 0:
			n, allNumbers := countIDs(item)
			in.count++
			in.tokens += n
			ok = allNumbers && n > 0
		default:
			ok = false
		}
		return ok
	})
	if ids > 0 {
		in.count, in.tokens = 1, ids
	}
	return in, ok && in.count > 0
}

func countIDs(list gjson.Result) (n int64, allNumbers bool) {
	allNumbers = true
	list.ForEach(func(_, id gjson.Result) bool {
		n++
		allNumbers = id.Type == gjson.Number
		return allNumbers
	})
	return n, allNumbers
}
