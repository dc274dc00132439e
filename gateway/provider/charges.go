package provider

import (
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// usualCalls is how many calls of a tool that its provider runs are taken for one request that gives no bound: nobody can know
// before how often the model will use it.
const usualCalls = 10

// Calls is how often the provider may run tools that it bills by the call: as often as the body allows, else a usual number.
func (r *Request) Calls() ledger.Calls {
	if r.digest != nil {
		return r.digest.calls
	}
	var calls ledger.Calls
	most := int64(usualCalls)
	if n, ok := tokenCount(r.found["max_tool_calls"]); ok && n > 0 {
		most = int64(n)
	}
	if given(r.found["web_search_options"]) || searchesOnce(r.Model) { // chat completions of a model that searches
		calls.WebSearch = 1
	}
	r.found["tools"].ForEach(func(_, tool gjson.Result) bool {
		kind := tool.Get("type").Str
		bound := most
		if n, ok := tokenCount(tool.Get("max_uses")); ok && n > 0 {
			bound = int64(n)
		}
		switch {
		case strings.HasPrefix(kind, "web_search"), tool.Get("googleSearch").Exists(), tool.Get("google_search").Exists(),
			tool.Get("googleSearchRetrieval").Exists(), tool.Get("google_search_retrieval").Exists(),
			tool.Get("googleMaps").Exists(), tool.Get("google_maps").Exists(), kind == "x_search":
			calls.WebSearch = max(calls.WebSearch, bound)
		case kind == "file_search":
			calls.FileSearch = bound
		case kind == "code_interpreter":
			calls.CodeInterpreter = 1 // all its calls share a container
		}
		return true
	})
	return calls
}

// Tier is the service tier that the body asks for. Where it leaves the choice to the provider, that is the usual one.
func (r *Request) Tier() ledger.ServiceTier {
	if r.digest != nil {
		return r.digest.tier
	}
	for _, field := range []string{"service_tier", "serviceTier"} {
		for _, tier := range []ledger.ServiceTier{ledger.ServiceBatch, ledger.ServiceFlex, ledger.ServicePriority} {
			if strings.EqualFold(r.found[field].Str, string(tier)) {
				return tier // not the body's own text, which a digest outlives
			}
		}
	}
	return ledger.ServiceStandard
}
