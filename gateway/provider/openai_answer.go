package provider

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// answerOpenAI reads a plain answer.
func answerOpenAI(body []byte, a *Answer) {
	found := gjson.GetManyBytes(body, "usage", "model", "id", "service_tier")
	a.Reading = readOpenAIUsage(found[0])
	a.Model, a.UpstreamID, a.Tier = name(found[1]), name(found[2]), serviceTier(found[3].Str)
	a.Cost = toldCost(found[0])
	ran := searches{}
	ran.add(gjson.GetBytes(body, "choices.#.message.executed_tools"))
	a.called(ledger.Calls{WebSearch: ran.count(found[0], a.Model)})
}

// answerEmbeddings knows that an embedding has no output and comes from no cache, whatever else the counts would tell.
func answerEmbeddings(body []byte, a *Answer) {
	answerOpenAI(body, a)
	a.Usage = ledger.Usage{Input: a.Usage.InputTotal()}
	if a.State != "" && a.Usage.Input == 0 {
		a.State = ledger.UsageReportedZero
	}
}

// called takes over the calls of tools, where the usage was told. A usage without tokens is not zero then.
func (a *Answer) called(calls ledger.Calls) {
	if a.State == "" {
		return
	}
	a.Usage.Calls = calls
	if a.State == ledger.UsageReportedZero && calls != (ledger.Calls{}) {
		a.State = ledger.UsageReported
	}
}

var (
	usageField    = []byte(`"usage"`)
	errorField    = []byte(`"error"`)
	executedField = []byte(`"executed_tools"`)
	doneSentinel  = []byte("[DONE]")
)

// openAIMeter reads a stream of chat completions or completions. A finish reason is not the end: the usage may be missing
// behind it.
type openAIMeter struct {
	ran     searches
	object  string // what the stream calls its events
	created int64
	open    openChoices
	done    bool
	closed  bool  // by its last event
	interim bool  // the last figures came while a choice was open
	told    int64 // texts that had come with them
}

func newOpenAIMeter() meter { return &openAIMeter{ran: searches{}} }

// event withholds the usage chunk, which has no choices.
func (m *openAIMeter) event(data []byte, a *Answer) (withhold, done bool) {
	if bytes.Equal(data, doneSentinel) {
		m.done, m.closed = true, true
		return false, true
	}
	a.Events++
	if a.Model == "" { // Azure's first event names none
		found := gjson.GetManyBytes(data, "model", "id", "object", "created")
		a.Model, a.UpstreamID, m.object, m.created = name(found[0]), name(found[1]), name(found[2]), found[3].Int()
	}
	m.choices(gjson.GetBytes(data, "choices"), a.said)
	if bytes.Contains(data, errorField) && gjson.GetBytes(data, "error").IsObject() {
		a.Finish, m.done = ledger.ReasonUpstreamFailed, true
	}
	if bytes.Contains(data, executedField) && wholeJSON(data) {
		m.ran.add(gjson.GetBytes(data, "choices.#.delta.executed_tools"))
	}
	return bytes.Contains(data, usageField) && m.figures(data, a), m.done
}

// figures takes those of an event that tells some, and reports whether it tells nothing else.
func (m *openAIMeter) figures(data []byte, a *Answer) (withhold bool) {
	found := gjson.GetManyBytes(data, "usage", "choices.#", "x_groq.usage", "service_tier")
	usage := firstGiven(found[0], found[2])
	reading := readOpenAIUsage(usage)
	if reading.State == "" || !wholeJSON(data) {
		return false
	}
	// What follows the last event takes nothing back.
	if !m.closed || a.State == "" {
		if cost := toldCost(usage); cost != nil {
			a.Cost = cost
		}
		a.Reading, a.Tier = reading.after(a.Reading), serviceTier(found[3].Str)
		a.called(ledger.Calls{WebSearch: max(a.Usage.Calls.WebSearch, m.ran.count(usage, a.Model))})
		m.interim, m.told = !m.open.complete() && found[1].Int() > 0, a.said.pieces
	}
	if found[1].Exists() && found[1].Int() == 0 {
		a.Events--
		return true
	}
	return false
}

// choices notes what an event adds to its choices, and which of them it ends.
func (m *openAIMeter) choices(choices gjson.Result, said *tally) {
	choices.ForEach(func(_, choice gjson.Result) bool {
		index, ends := choice.Get("index").Int(), given(choice.Get("finish_reason"))
		m.open.note(index, ends)
		said.add(index, choice.Get("text").Str)
		said.sayDelta(index, choice.Get("delta"))
		return true
	})
}

// close counts the searches that were told after the usage, and marks figures that were told on the way: the answer went on behind
// them. A 0 where text was streamed is a figure left out: without any other, nothing was said.
func (m *openAIMeter) close(a *Answer) {
	a.called(ledger.Calls{WebSearch: max(a.Usage.Calls.WebSearch, int64(len(m.ran)))})
	if a.said.pieces > 0 && a.Usage.Total() == 0 {
		a.State = ""
	}
	if (m.interim || m.told < a.said.pieces || a.said.pieces > 0 && a.Usage.OutputTotal() == 0) && a.State == ledger.UsageReported {
		a.State = ledger.UsageEstimated
		a.Usage.Output = max(a.Usage.Output, a.said.tokens()-a.Usage.Reasoning)
	}
}

// searches are the web searches that Groq lists among the tools that it ran for a chat: choice and index. A stream lists each one
// again when it has its result.
type searches map[[2]int64]bool

// add takes over the lists of each choice.
func (s searches) add(lists gjson.Result) {
	choice := int64(0)
	lists.ForEach(func(_, list gjson.Result) bool {
		choice++
		at := int64(0)
		list.ForEach(func(_, tool gjson.Result) bool {
			if index := tool.Get("index"); given(index) {
				at = index.Int()
			}
			if tool.Get("type").Str == "search" && len(s) < maxSteps {
				s[[2]int64{choice, at}] = true
			}
			at++
			return true
		})
		return true
	})
}

// count is how many searches are billed for a chat. OpenAI's models for searching search once for each request, and do not say so.
// OpenRouter counts the searches, and xAI the sources, each of which it bills as one.
func (s searches) count(usage gjson.Result, model string) int64 {
	n := int64(len(s))
	for _, path := range []string{"server_tool_use.web_search_requests", "num_sources_used"} {
		if told, ok := tokenCount(usage.Get(path)); ok {
			n = max(n, int64(told))
		}
	}
	if searchesOnce(model) {
		n = max(n, 1)
	}
	return n
}

// searchesOnce reports whether a model is one of OpenAI's that search for every request.
func searchesOnce(model string) bool {
	return strings.HasPrefix(model, "gpt-") && (strings.Contains(model, "-search-preview") || strings.Contains(model, "-search-api"))
}

// maxCost is above what any answer can cost, in dollars.
const maxCost = 1e6

// toldCost is what the provider says that the answer cost: OpenRouter in dollars, with what it paid another provider by the caller's
// own key beside it; xAI in ten-billionths of a dollar.
func toldCost(usage gjson.Result) *ledger.NanoUSD {
	dollars := 0.0
	switch ticks, cost := usage.Get("cost_in_usd_ticks"), usage.Get("cost"); {
	case ticks.Type == gjson.Number:
		dollars = ticks.Num / 1e10
	case cost.Type == gjson.Number:
		dollars = cost.Num
		if usage.Get("is_byok").Bool() {
			dollars += usage.Get("cost_details.upstream_inference_cost").Num
		}
	default:
		return nil
	}
	if math.IsNaN(dollars) || dollars < 0 || dollars > maxCost {
		return nil
	}
	nanos, err := ledger.ParseUSD(strconv.FormatFloat(dollars, 'f', 9, 64))
	if err != nil {
		return nil
	}
	return &nanos
}
