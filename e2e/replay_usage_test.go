package e2e

import (
	"encoding/json"
	"strings"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/price"
)

// beside is what other models used for the answer: steps of a message that name a model, and images that a response drew.
func (x *replayed) beside(book *price.Book, provider string) (cost ledger.NanoUSD) {
	charge := func(model string, u ledger.Usage) {
		row, ok := book.Find(provider, model, time.Now())
		if !ok {
			x.wrong("%s has no price", model)
			return
		}
		c, err := row.Cost(u, "", time.Now())
		if err != nil {
			x.wrong("%s: %v", model, err)
		}
		cost += c.Total
	}
	for _, step := range usageOf(x).steps() {
		if step.Model != "" {
			charge(step.Model, ledger.Usage{
				Input: step.Input, CachedInput: step.Read, CacheWrite5m: step.Creation.Short, CacheWrite1h: step.Creation.Hour, Output: step.Output,
			})
		}
	}
	var body counts
	if x.Protocol == "openai-responses" && json.Unmarshal([]byte(x.Response), &body) == nil {
		if drawn := body.inside("tool_usage").inside("image_gen"); drawn.number("output_tokens") > 0 {
			charge("gpt-image-1", ledger.Usage{Input: ledger.Tokens(drawn.number("input_tokens")), OutputImage: ledger.Tokens(drawn.number("output_tokens"))})
		}
	}
	return cost
}

// messageStep is one of the steps that a message tells apart.
type messageStep struct {
	Type, Model string
	Input       ledger.Tokens `json:"input_tokens"`
	Read        ledger.Tokens `json:"cache_read_input_tokens"`
	Creation    struct {
		Short ledger.Tokens `json:"ephemeral_5m_input_tokens"`
		Hour  ledger.Tokens `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	Output ledger.Tokens `json:"output_tokens"`
}

func (c counts) steps() (steps []messageStep) {
	_ = json.Unmarshal(c["iterations"], &steps) // what is not there is none
	return steps
}

// told is what a provider reported, in classes. other is audio, images and video.
type told struct{ input, cached, written, output, reasoning, other int64 }

// counts is a usage object, field by field.
type counts map[string]json.RawMessage

func (c counts) number(name string) (n int64) {
	_ = json.Unmarshal(c[name], &n) // what is not there is 0
	return n
}

func (c counts) inside(name string) (inner counts) {
	_ = json.Unmarshal(c[name], &inner)
	return inner
}

// merge lays the usage that a body or an event tells over what came before: a stream may tell it piece by piece. Of Gemini's
// the last is that of the whole answer.
func (c counts) merge(text string) counts {
	var body counts
	if json.Unmarshal([]byte(text), &body) != nil {
		return c
	}
	if last := body.inside("usageMetadata"); last != nil {
		return last
	}
	for _, place := range []counts{body, body.inside("message"), body.inside("response"), body.inside("x_groq")} {
		for field, value := range place.inside("usage") {
			if c == nil {
				c = counts{}
			}
			if string(value) != "0" || c[field] == nil {
				c[field] = value
			}
		}
	}
	return c
}

// usageOf is the usage object of an exchange, nil where it says nothing of all that was used.
func usageOf(x *replayed) (usage counts) {
	if x.Stream && x.Protocol == "anthropic-messages" && !strings.Contains(x.Response, "message_delta") {
		return nil // its start tells the input alone
	}
	if x.Stream {
		for line := range strings.Lines(x.Response) {
			if data, ok := strings.CutPrefix(line, "data:"); ok {
				usage = usage.merge(data)
			}
		}
	} else {
		usage = usage.merge(x.Response)
	}
	return usage
}

// reported reads an exchange's usage by other means than the gateway's: as each provider documents it. nil: it says nothing.
func reported(x *replayed) *told {
	usage := usageOf(x)
	if usage == nil {
		return nil
	}
	var u told
	switch x.Protocol {
	case "gemini":
		u = usage.gemini()
	case "anthropic-messages":
		u.input, u.cached, u.written = usage.number("input_tokens"), usage.number("cache_read_input_tokens"), usage.number("cache_creation_input_tokens")
		u.reasoning = usage.inside("output_tokens_details").number("thinking_tokens")
		u.output = usage.number("output_tokens") - u.reasoning
		for _, step := range usage.steps() {
			if step.Type == "compaction" { // is not in the totals
				u.input += int64(step.Input)
				u.output += int64(step.Output)
			}
		}
	case "openai-responses":
		u = usage.openAI("input_tokens", "output_tokens")
	default:
		u = usage.openAI("prompt_tokens", "completion_tokens")
	}
	return &u
}

func (c counts) gemini() (u told) {
	for _, name := range []string{"promptTokensDetails", "candidatesTokensDetails", "toolUsePromptTokensDetails", "cacheTokensDetails"} {
		var details []struct {
			Modality   string
			TokenCount int64
		}
		_ = json.Unmarshal(c[name], &details)
		for _, d := range details {
			if d.Modality == "TEXT" || d.Modality == "DOCUMENT" {
				continue
			}
			switch {
			case name == "cacheTokensDetails": // part of the prompt's
				u.cached -= d.TokenCount
				continue
			case strings.HasPrefix(name, "cand"):
				u.output -= d.TokenCount
			default:
				u.input -= d.TokenCount
			}
			u.other += d.TokenCount
		}
	}
	u.cached += c.number("cachedContentTokenCount")
	u.input += c.number("promptTokenCount") + c.number("toolUsePromptTokenCount") - u.cached
	u.output += c.number("candidatesTokenCount")
	u.reasoning = c.number("thoughtsTokenCount")
	return u
}

func (c counts) openAI(in, out string) (u told) {
	read, made := c.inside(in+"_details"), c.inside(out+"_details")
	u.cached, u.written = read.number("cached_tokens"), read.number("cache_write_tokens")
	u.reasoning = made.number("reasoning_tokens")
	heard, spoken := read.number("audio_tokens")+read.number("image_tokens"), made.number("audio_tokens")+made.number("image_tokens")
	u.other = heard + spoken
	u.input = c.number(in) - u.cached - u.written - heard
	u.output = c.number(out) - u.reasoning - spoken
	if c.number("total_tokens") == c.number(in)+c.number(out)+u.reasoning {
		u.output += u.reasoning
	}
	return u
}
