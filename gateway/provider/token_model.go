package provider

import (
	"strings"
	"sync/atomic"
)

// rules is how the input of one family of models is counted.
type rules struct {
	vocabulary *atomic.Pointer[vocabulary] // nil: not known, the heuristic counts
	scale      int64                       // what the heuristic's figure is multiplied with, in percent
	preamble   int64                       // tokens of every chat, besides the primer of the answer
	tools      int64                       // instructions around tools
	typescript bool                        // tools are written as TypeScript, not as JSON
	image      imageRule
	page       int64 // a page of a document
	audio      int64 // a second of audio
	sealed     int64 // bytes of a sealed thought that are a token
}

func openAI(v *atomic.Pointer[vocabulary], image imageRule) rules {
	return rules{vocabulary: v, scale: 100, tools: 5, typescript: true, image: image, page: openAIPage, audio: openAIAudio}
}

// reasoning is for models whose answers begin with thought: more is said to them about tools.
func reasoning(image imageRule) rules {
	r := openAI(&o200k, image)
	r.tools = 90
	return r
}

// openWeights is for the open models of OpenAI: a system message that tells the date and the effort comes first.
func openWeights() rules {
	r := reasoning(noImage)
	r.preamble, r.tools = 70, 20
	return r
}

func claude(scale, tools int64, image imageRule) rules {
	return rules{scale: scale, tools: tools, image: image, page: pageTokens, audio: audioPerSecond}
}

func other(preamble, tools int64, image imageRule) rules {
	return rules{scale: 100, preamble: preamble, tools: tools, image: image, page: pageTokens, audio: audioPerSecond}
}

func gemini(sealed int64, image imageRule) rules {
	return rules{scale: 90, image: image, page: geminiPage, audio: audioPerSecond, sealed: sealed}
}

// families finds a model's rules by the start of its name, the first that fits.
var families = []struct {
	prefix string
	rules  rules
}{
	{"gpt-4o-mini", openAI(&o200k, tiles(2833, 5667))},
	{"gpt-4o", openAI(&o200k, tiles(85, 170))},
	{"chatgpt-4o", openAI(&o200k, tiles(85, 170))},
	{"gpt-4.1-mini", openAI(&o200k, patches(1536, 162))},
	{"gpt-4.1-nano", openAI(&o200k, patches(1536, 246))},
	{"gpt-4.", openAI(&o200k, tiles(85, 170))},
	{"gpt-4", openAI(&cl100k, tiles(85, 170))},
	{"gpt-3.5", openAI(&cl100k, noImage)},
	{"gpt-35", openAI(&cl100k, noImage)},
	{"text-embedding-", openAI(&cl100k, noImage)},
	{"davinci-002", openAI(&cl100k, noImage)},
	{"babbage-002", openAI(&cl100k, noImage)},
	{"gpt-5-mini", reasoning(patches(1536, 162))},
	{"gpt-5-nano", reasoning(patches(1536, 246))},
	{"gpt-5-chat", openAI(&o200k, tiles(70, 140))},
	{"gpt-5.1", reasoning(tiles(70, 140))},
	{"gpt-5.2", reasoning(patches(wholePatches, 120))},
	{"gpt-5.3", reasoning(patches(wholePatches, 120))},
	{"gpt-5.4", reasoning(patches(wholePatches, 120))},
	{"gpt-5.", reasoning(patches(10_000, 120))},
	{"gpt-5", reasoning(tiles(70, 140))},
	{"gpt-6", reasoning(patches(12_000, 120))},
	{"gpt-oss", openWeights()},
	{"o1-mini", reasoning(noImage)},
	{"o1", reasoning(tiles(75, 150))},
	{"o3-mini", reasoning(noImage)},
	{"o3", reasoning(tiles(75, 150))},
	{"o4-mini", reasoning(patches(1536, 172))},
	{"codex-mini", reasoning(patches(1536, 172))},
	{"computer-use", reasoning(tiles(65, 129))},

	{"claude-2", claude(105, 530, claudeImage)},
	{"claude-3-opus", claude(105, 530, claudeImage)},
	{"claude-3", claude(105, 346, claudeImage)},
	{"claude-sonnet-4-0", claude(105, 346, claudeImage)},
	{"claude-sonnet-4-2", claude(105, 346, claudeImage)}, // the date of the first Sonnet 4
	{"claude-opus-4-0", claude(105, 346, claudeImage)},
	{"claude-opus-4-1", claude(105, 346, claudeImage)},
	{"claude-opus-4-2", claude(105, 346, claudeImage)},
	{"claude-sonnet-4", claude(105, 500, claudeImage)},
	{"claude-haiku-4", claude(105, 500, claudeImage)},
	{"claude-opus-4-7", claude(150, 300, claudeLargeImage)},
	{"claude-opus-4-8", claude(150, 300, claudeLargeImage)},
	{"claude-opus-4.7", claude(150, 300, claudeLargeImage)},
	{"claude-opus-4.8", claude(150, 300, claudeLargeImage)},
	{"claude-opus-4", claude(105, 500, claudeImage)},
	{"claude", claude(150, 300, claudeLargeImage)},

	{"gemini-1", gemini(20, geminiImage)},
	{"gemini-2", gemini(20, geminiImage)},
	{"gemini", gemini(5, gemini3Image)},

	{"mistral", other(0, 0, otherImage)},
	{"ministral", other(0, 0, otherImage)},
	{"magistral", other(0, 0, otherImage)},
	{"codestral", other(0, 0, otherImage)},
	{"deepseek", other(4, 220, otherImage)},
	{"llama-4", other(0, 650, llamaImage)},
	{"llama-3", other(36, 50, otherImage)},
}

var otherRules = other(4, 50, otherImage)

// rulesOf finds a model's rules by its provider's name for it, which may be prefixed, as in openai/gpt-4o, ft:gpt-4o:mine or
// eu.anthropic.claude-sonnet-4-5.
func rulesOf(model string) *rules {
	model = strings.ToLower(model)
	model = model[strings.LastIndexByte(model, '/')+1:]
	model = strings.TrimPrefix(model, "ft:")
	if _, name, ok := strings.Cut(model, "anthropic."); ok {
		model = name
	}
	for i := range families {
		if strings.HasPrefix(model, families[i].prefix) {
			return &families[i].rules
		}
	}
	return &otherRules
}
