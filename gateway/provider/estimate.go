package provider

import (
	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// What the heuristic counts, in hundredths of a token. Latin letters make about four to a token, digits three, punctuation
// two; a character outside ASCII counts as one. Blanks join the word that follows.
const (
	perLetter = 25
	perDigit  = 34
	perSymbol = 50
	perRune   = 100

	perMessage = 400 // role and separators of one message
	perReply   = 300 // the primer of the answer

	// correction covers what the rule misses, in percent.
	correction = 110

	imageTokens = 1600 // one image of a message: above a full-size image at high detail
)

// estimateText gives hundredths of a token.
func estimateText(s string) int64 {
	var sum int64
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			sum += perLetter
		case c >= '0' && c <= '9':
			sum += perDigit
		case c <= ' ':
		case c < 0x80:
			sum += perSymbol
		case c >= 0xc0: // the first byte of a longer character
			sum += perRune
		}
	}
	return sum
}

// tokens rounds hundredths up, with the correction.
func tokens(hundredths int64) ledger.Tokens {
	return ledger.Tokens((hundredths*correction + 9_999) / 10_000)
}

// estimateMessages estimates a chat's messages. Text parts count by the heuristic, an image a flat imageTokens, any other
// part by the length of its JSON.
func estimateMessages(messages gjson.Result) ledger.Tokens {
	var sum int64 = perReply
	var images ledger.Tokens
	messages.ForEach(func(_, message gjson.Result) bool {
		sum += perMessage
		message.ForEach(func(key, value gjson.Result) bool {
			switch {
			case key.Str == "role":
			case key.Str == "content" && value.IsArray():
				value.ForEach(func(_, part gjson.Result) bool {
					switch part.Get("type").Str {
					case "text", "refusal":
						sum += estimateText(part.Get("text").Str) + estimateText(part.Get("refusal").Str)
					case "image_url":
						images += imageTokens
					default:
						sum += estimateText(part.Raw)
					}
					return true
				})
			case value.Type == gjson.String:
				sum += estimateText(value.Str)
			case value.Type != gjson.Null:
				sum += estimateText(value.Raw)
			}
			return true
		})
		return true
	})
	return tokens(sum) + images
}

// estimateInput estimates the input of completions and embeddings: a text, texts, tokens or lists of tokens. Tokens are
// counted exactly.
func estimateInput(input gjson.Result) ledger.Tokens {
	switch {
	case input.Type == gjson.String:
		return max(1, tokens(estimateText(input.Str)))
	case input.Type == gjson.Number:
		return 1
	case input.IsArray():
		var sum ledger.Tokens
		input.ForEach(func(_, item gjson.Result) bool {
			sum += estimateInput(item)
			return true
		})
		return sum
	default:
		return tokens(estimateText(input.Raw))
	}
}
