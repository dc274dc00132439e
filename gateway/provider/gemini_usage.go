package provider

import (
	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// readGeminiUsage reads Gemini's usage. Its prompt contains what came from a cache; what tools brought into the prompt, and what
// was thought, stand beside it and beside the candidates. Details split each of them by what it is made of; what they leave out is text.
func readGeminiUsage(usage gjson.Result) Reading {
	if !usage.IsObject() || !given(usage.Get("promptTokenCount")) && !given(usage.Get("candidatesTokenCount")) {
		return Reading{}
	}
	nothing := false
	total := func(name string) ledger.Tokens {
		n, ok := tokenCount(usage.Get(name))
		nothing = nothing || !ok
		return n
	}
	prompt, tools := total("promptTokenCount"), total("toolUsePromptTokenCount")
	candidates, thoughts := total("candidatesTokenCount"), total("thoughtsTokenCount")
	if nothing {
		return Reading{}
	}
	in, out := prompt+tools, candidates+thoughts
	consistent := true
	split := func(name string, whole ledger.Tokens) modalities {
		m, ok := readModalities(usage.Get(name), whole)
		consistent = consistent && ok
		return m
	}
	cached, ok := tokenCount(usage.Get("cachedContentTokenCount"))
	consistent = consistent && ok && cached <= prompt
	read := split("promptTokensDetails", prompt).plus(split("toolUsePromptTokensDetails", tools))
	kept := split("cacheTokensDetails", cached)
	if !given(usage.Get("cacheTokensDetails")) {
		kept = read.first(cached)
	}
	made := split("candidatesTokensDetails", candidates)
	u := ledger.Usage{
		Input: read.text - kept.text, InputAudio: read.audio - kept.audio, InputImage: read.image - kept.image, InputVideo: read.video - kept.video,
		CachedInput: kept.text + kept.video, CachedInputAudio: kept.audio, CachedInputImage: kept.image,
		Output: made.text, OutputAudio: made.audio, OutputImage: made.image, OutputVideo: made.video, Reasoning: thoughts,
	}
	told, ok := tokenCount(usage.Get("totalTokenCount"))
	consistent = consistent && ok
	if !given(usage.Get("totalTokenCount")) {
		told = in + out
	}
	switch {
	case !consistent || u.Negative() || told != in+out:
		return Reading{Usage: ledger.Usage{Input: in, Output: max(out, told-in)}, State: ledger.UsageInconsistent}
	case told == 0:
		return Reading{State: ledger.UsageReportedZero}
	}
	return Reading{Usage: u, State: ledger.UsageReported}
}

// modalities splits tokens by what they are made of. Documents are billed as text.
type modalities struct{ text, audio, image, video ledger.Tokens }

// readModalities reads details that sum to no more than the whole; the rest is text.
func readModalities(details gjson.Result, whole ledger.Tokens) (m modalities, ok bool) {
	ok, rest := true, whole
	details.ForEach(func(_, part gjson.Result) bool {
		n, isCount := tokenCount(part.Get("tokenCount"))
		ok = ok && isCount
		switch part.Get("modality").Str {
		case "AUDIO":
			m.audio += n
		case "IMAGE":
			m.image += n
		case "VIDEO":
			m.video += n
		default:
			m.text += n
		}
		rest -= n
		return ok
	})
	if rest < 0 {
		return modalities{text: whole}, false
	}
	m.text += rest
	return m, ok
}

func (m modalities) plus(o modalities) modalities {
	return modalities{m.text + o.text, m.audio + o.audio, m.image + o.image, m.video + o.video}
}

// first takes up to n tokens, text before what is dearer: where nobody tells what was cached, the caller is not charged less.
func (m modalities) first(n ledger.Tokens) (taken modalities) {
	for _, part := range []struct {
		to   *ledger.Tokens
		most ledger.Tokens
	}{{&taken.text, m.text}, {&taken.video, m.video}, {&taken.image, m.image}, {&taken.audio, m.audio}} {
		*part.to = min(n, part.most)
		n -= *part.to
	}
	taken.text += n
	return taken
}
