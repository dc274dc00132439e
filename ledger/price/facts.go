package price

import (
	"maps"
	"strings"

	"tollgate/ledger"
)

// state writes down what a provider says about its prices and the source leaves to be understood.
func state(row *Row) {
	same := func(class, as ledger.Class) {
		p, ok := row.Prices[as]
		if _, listed := row.Prices[class]; ok && !listed {
			row.Prices[class] = p
		}
	}
	switch {
	case row.Provider == "google" && strings.HasPrefix(row.Model, "gemini-"):
		// Google lists audio input apart only where it costs something else than text, images and video.
		same(ledger.ClassInputAudio, ledger.ClassInput)
	case row.Provider == "openai" && strings.HasPrefix(row.Model, "gpt-image-"):
		// The output of these models is images; where the source knows one output price, it is the price of image tokens.
		same(ledger.ClassOutputImage, ledger.ClassOutput)
	case row.Provider == "openai" && strings.HasSuffix(row.Model, "-tts"):
		// Likewise for speech.
		same(ledger.ClassOutputAudio, ledger.ClassOutput)
	case len(row.Prices) == 0 && free(row):
		row.Prices = Prices{ledger.ClassInput: Flat(0), ledger.ClassOutput: Flat(0)}
	}
	stateTiers(row)
	stateCalls(row)
}

// stateTiers writes down service tiers, which the source leaves out:
//
//   - OpenAI, batch: half of the usual price of input and output. Batch API guide, developers.openai.com/api/docs/guides/batch, and
//     the list of August 2026. Flex: the rates of a batch, with the discount for cached input. Flex processing guide,
//     developers.openai.com/api/docs/guides/flex-processing, of 2026. Priority: see openAIPriority.
//   - Anthropic, batch: half of the usual price of all usage, caches included. Batch processing guide and price list,
//     platform.claude.com/docs/en/build-with-claude/batch-processing, of November 2026. Priority is drawn from a commitment that is
//     paid beforehand, platform.claude.com/docs/en/api/service-tiers, of 2026. Unconfirmed: what a token of it costs is in the
//     contract; the usual price stands in, because such an answer would else have no price.
//   - Google, Gemini, batch and flex: half of the usual price. ai.google.dev/gemini-api/docs/pricing and /optimization, of September
//     2026. Priority costs 75 to 100 % more than usual, by model: it is left missing.
func stateTiers(row *Row) {
	switch row.Provider {
	case "openai":
		row.service(ledger.ServiceBatch, row.Prices.half())
		row.service(ledger.ServiceFlex, row.Prices.half())
		if dear := openAIPriority[row.Model].prices(); dear[ledger.ClassInput].Base > row.Prices[ledger.ClassInput].Base {
			row.service(ledger.ServicePriority, dear) // not in a row that ended before the table
		}
	case "anthropic":
		row.service(ledger.ServiceBatch, row.Prices.half())
		row.service(ledger.ServicePriority, maps.Clone(row.Prices))
	case "google":
		if strings.HasPrefix(row.Model, "gemini-") {
			row.service(ledger.ServiceBatch, row.Prices.half())
			row.service(ledger.ServiceFlex, row.Prices.half())
		}
	}
}

func (r *Row) service(tier ledger.ServiceTier, prices Prices) {
	if len(prices) == 0 {
		return
	}
	if r.Service == nil {
		r.Service = map[ledger.ServiceTier]Prices{}
	}
	r.Service[tier] = prices
}

// half is half of each price. One that is no even number of nano-dollars is left out: the usual price stands in for it.
func (p Prices) half() Prices {
	out := Prices{}
	for class, price := range p {
		even := price.Base%2 == 0
		h := Price{Base: price.Base / 2, Marginal: price.Marginal}
		for _, s := range price.Steps {
			even = even && s.Price%2 == 0
			h.Steps = append(h.Steps, Step{s.Above, s.Price / 2})
		}
		if even {
			out[class] = h
		}
	}
	return out
}

// priority is a price in cents per million tokens; cached is in thousandths of a dollar, zero where none is given.
type priority struct{ input, cachedMilli, output int64 }

// openAIPriority is OpenAI's table of priority processing, https://openai.com/api-priority-processing, of 2026. It is served for
// shorter contexts only, so it has no steps.
var openAIPriority = map[string]priority{
	"gpt-5.4-mini": {150, 150, 900},
	"gpt-5.4":      {500, 500, 3000},
	"gpt-5.2":      {350, 350, 2800},
	"gpt-5.1":      {250, 250, 2000},
	"gpt-5":        {250, 250, 2000},
	"gpt-5-mini":   {45, 45, 360},
	"gpt-4.1":      {350, 875, 1400},
	"gpt-4.1-mini": {70, 175, 280},
	"gpt-4.1-nano": {20, 50, 80},
	"gpt-4o":       {425, 2125, 1700},
	"gpt-4o-mini":  {25, 125, 100},
	"o3":           {350, 875, 1400},
	"o4-mini":      {200, 500, 800},
}

func (p priority) prices() Prices {
	if p == (priority{}) {
		return nil
	}
	const cent, milli = ledger.Dollar / 100, ledger.Dollar / 1000
	return Prices{
		ledger.ClassInput:       Flat(ledger.NanoUSD(p.input) * cent),
		ledger.ClassCachedInput: Flat(ledger.NanoUSD(p.cachedMilli) * milli),
		ledger.ClassOutput:      Flat(ledger.NanoUSD(p.output) * cent),
	}
}

// stateCalls writes down what providers bill by the call and the source does not list:
//
//   - OpenAI: ten dollars for a thousand web searches, twenty-five for models of chat completions that search by themselves; two and a
//     half for a thousand file searches; three cents for a container of the smallest size. developers.openai.com/api/docs/pricing, of March
//     2026. Unconfirmed: whether twenty-five also hold where the older tool web_search_preview is used by a model that does not reason;
//     larger containers cost more and are not told apart in the answer.
//   - Google: thirty-five dollars for a thousand grounded prompts, and from Gemini 3 on fourteen for a thousand queries, whatever is
//     left of what it gives away. ai.google.dev/gemini-api/docs/pricing, of September 2026. A model of unknown generation costs the
//     dearer.
//   - xAI: five dollars for a thousand searches of the web or of posts, and for a thousand runs of code; two and a half for a
//     thousand searches of collections. docs.x.ai/developers/pricing, of 2026. Attached files cost more, and are not told apart.
//   - Claude at other sellers: ten dollars for a thousand web searches, as Anthropic lists them. Unconfirmed; without it they
//     would be charged nothing where no budget counts money.
func stateCalls(row *Row) {
	perThousand := func(call Call, cents int64) {
		if _, listed := row.PerCall[call]; listed || len(row.Prices) == 0 {
			return
		}
		if row.PerCall == nil {
			row.PerCall = map[Call]ledger.NanoUSD{}
		}
		row.PerCall[call] = ledger.NanoUSD(cents) * (ledger.Dollar / 100) * 1000
	}
	switch {
	case strings.Contains(row.Model, "claude") && (row.Provider == "google" || row.Provider == "aws"):
		perThousand(CallWebSearch, 1000)
	case row.Provider == "openai":
		if strings.HasSuffix(row.Model, "-search-preview") {
			perThousand(CallWebSearch, 2500)
		}
		perThousand(CallWebSearch, 1000)
		perThousand(CallFileSearch, 250)
		perThousand(CallCodeInterpreter, 3000)
	case row.Provider == "x-ai":
		perThousand(CallWebSearch, 500)
		perThousand(CallFileSearch, 250)
		perThousand(CallCodeInterpreter, 500)
	case row.Provider == "google" && strings.HasPrefix(row.Model, "gemini-3"):
		perThousand(CallWebSearch, 1400)
	case row.Provider == "google" && strings.HasPrefix(row.Model, "gemini-"):
		perThousand(CallWebSearch, 3500)
	}
}

// free tells what is free of charge from what has no known price: the source lists neither. OpenRouter names its free
// variants so; OpenAI documents its moderation endpoint as free.
func free(row *Row) bool {
	return row.Provider == "openrouter" && strings.HasSuffix(row.Model, ":free") ||
		row.Provider == "openai" && row.Model == "moderation"
}
