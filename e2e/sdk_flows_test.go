package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// flowSDK is an SDK or framework for JavaScript, with what it says of a usage whose figures are all above zero.
type flowSDK struct {
	name, model  string
	chat, stream string   // "" is what most say
	waits        bool     // for as long as it is told
	tries        int      // at most, where a budget is used up: 0 where it cannot be told to stop
	more         []string // flows besides
	embed        string   // model
	gaveUp429    bool     // it does not come back after a rate's refusal
}

const (
	gptModel    = "gpt-4o-mini"
	geminiModel = "gemini-2.5-flash"
	geminiEmbed = "gemini-embedding-001"
	// usageOfFlows is used: 50 tokens of input and 10 from a cache, 5 of output and 4 of reasoning.
	usageOfFlows = "prompt_tokens=60 cached_tokens=10 completion_tokens=9 reasoning_tokens=4 chunks=3"
	toldByMost   = `{"input":60,"output":9,"cached":10,"reasoning":4}`
)

// flowCosts are nano-dollars of usageOfFlows.
var flowCosts = map[string]int64{
	gptModel: 50*150 + 10*75 + 9*600, claudeModel: 50*1000 + 10*100 + 9*5000, geminiModel: 50*300 + 10*30 + 9*2500,
}

// What LangChain tells of a stream of Anthropic's adds the first event's figure to the last, and of Gemini's it sums what is
// cached in every event; it leaves out what was thought. The ledger does none of that.
var flowSDKs = []*flowSDK{
	{name: "openai", model: gptModel, waits: true, tries: 1, more: []string{"embed", "images"}},
	{name: "openai-responses", model: gptModel, waits: true, tries: 1, more: []string{"conversation"}},
	{name: "anthropic", model: claudeModel, waits: true, tries: 1, more: []string{"count"}},
	{name: "genai", model: geminiModel, gaveUp429: true, embed: geminiEmbed, more: []string{"embed", "count"}},
	{name: "vercel-openai", model: gptModel, waits: true, tries: 3, more: []string{"embed"}},
	{name: "vercel-openai-chat", model: gptModel, waits: true},
	{name: "vercel-anthropic", model: claudeModel, waits: true},
	{name: "vercel-google", model: geminiModel, waits: true, embed: geminiEmbed, more: []string{"embed"}},
	{name: "langchain-openai", model: gptModel, tries: 1, more: []string{"embed"}},
	{
		name: "langchain-anthropic", model: claudeModel, chat: `{"input":60,"output":9,"cached":10,"reasoning":0}`,
		stream: `{"input":60,"output":10,"cached":10,"reasoning":0}`,
	},
	{
		name: "langchain-google", model: geminiModel, gaveUp429: true, chat: `{"input":60,"output":5,"cached":10,"reasoning":0}`,
		stream: `{"input":60,"output":5,"cached":40,"reasoning":0}`,
	},
}

// flowRun is what came of one flow.
type flowRun struct {
	sdk    *flowSDK
	flow   string
	Result json.RawMessage
	Error  *struct {
		Status  int
		Message string
	}
	Requests []struct {
		ID     string
		Status int

		Arrived int64 `json:"at"`
		Wait    int64 // that was told, in milliseconds
	}
	err error
}

// SDKs and frameworks, unmodified but for base URL and key, get from the gateway what they get from the provider, and the ledger has
// what they used: plain and streamed, with a tool whose result goes back, embeddings and images, and what goes wrong.
func TestFlowsOfSDKs(t *testing.T) {
	t.Parallel()
	var models, slow, spent strings.Builder
	for _, sdk := range flowSDKs {
		provider := map[string]string{gptModel: "openai", claudeModel: "anthropic", geminiModel: "google"}[sdk.model]
		for _, kind := range []string{"slow", "spent"} {
			fmt.Fprintf(&models, "  %s-%s: {provider: %s, upstream_model: %s}\n", kind, sdk.name, provider, sdk.model)
		}
		fmt.Fprintf(&slow, "  - {name: slow-%s, tier: key, match: {model: slow-%s}, rate: {requests: 1, per: second, algorithm: sliding_log}}\n", sdk.name, sdk.name)
		fmt.Fprintf(&spent, "  - {name: spent-%s, tier: key, match: {model: spent-%s}, budget: {requests: 1, per: day}}\n", sdk.name, sdk.name)
	}
	s := system.New(t, system.Options{
		Providers: `  anthropic: {protocol: anthropic, base_url: "${TOLLGATE_SIM_URL}/v1", api_key_env: TOLLGATE_SIM_KEY}
  google: {protocol: gemini, base_url: "${TOLLGATE_SIM_URL}/v1beta", api_key_env: TOLLGATE_SIM_KEY}`,
		Models: models.String() + fmt.Sprintf("  gpt-image-1: {provider: openai}\n  %s: {provider: anthropic}\n  %s: {provider: google}\n  %s: {provider: google}",
			claudeModel, geminiModel, geminiEmbed),
		Limits: everyTier + slow.String() + spent.String(), Gateways: 1, Settlers: 1,
	})
	key := s.KnownKey(system.App)
	node := startNode(t, "flows.mjs")
	var mu sync.Mutex
	var runs []*flowRun
	var wg sync.WaitGroup
	start := func(sdk *flowSDK, flow, model, settings string, more map[string]any) {
		wg.Go(func() {
			run := &flowRun{sdk: sdk, flow: flow}
			run.ask(t.Context(), s, node, key, model, settings, more)
			mu.Lock()
			defer mu.Unlock()
			runs = append(runs, run)
		})
	}
	for _, sdk := range flowSDKs {
		start(sdk, "chat", sdk.model, usageOfFlows, nil)
		start(sdk, "stream", sdk.model, usageOfFlows, nil)
		start(sdk, "tools", sdk.model, usageOfFlows+" use_tool", nil)
		for _, flow := range sdk.more {
			start(sdk, flow, sdk.model, usageOfFlows, nil)
		}
		start(sdk, "unknown model", "never-heard-of", "", nil)
		start(sdk, "unknown key", sdk.model, "", map[string]any{"key": "tg-unknown"})
		start(sdk, "slow", "slow-"+sdk.name, "", map[string]any{"again": true})
		if sdk.tries > 0 {
			start(sdk, "spent", "spent-"+sdk.name, "", nil)
		}
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client, inGo := sdk(t, s.Gateways[0].URL, key), error(nil)
	wg.Go(func() {
		inGo = goFlows(t.Context(), s.Gateways[0].URL, key, client, &http.Client{Transport: transport})
	})
	wg.Wait()
	require.NoError(t, inGo)
	ledger := flowRows(t, s, runs)
	for _, run := range runs {
		t.Run(run.sdk.name+" "+run.flow, func(t *testing.T) { run.require(t, ledger) })
	}
	s.Check()
}

// ask has the script make the flow. Where a budget is to be used up, others do that first.
func (r *flowRun) ask(ctx context.Context, s *system.System, node *nodeSDKs, key, model, settings string, more map[string]any) {
	if r.flow == "spent" {
		if r.err = spend(ctx, s, key, r.sdk, model); r.err != nil {
			return
		}
	}
	line := map[string]any{
		"sdk": r.sdk.name, "flow": r.flow, "url": s.Gateways[0].URL, "key": key, "prompt": "Say hello. [[sim " + settings + "]]",
		"models": map[string]string{"chat": model, "embed": cmp.Or(r.sdk.embed, system.EmbeddingModel), "image": "gpt-image-1"},
	}
	if strings.Contains(r.flow, " ") || r.flow == "slow" || r.flow == "spent" {
		line["flow"] = "chat"
	}
	for name, value := range more {
		line[name] = value
	}
	r.err = node.ask(ctx, line, r)
}

// spend uses the budget up: until it refuses for good, which it does when the request before is settled.
func spend(ctx context.Context, s *system.System, key string, sdk *flowSDK, model string) error {
	r := system.Request{Key: key, Path: "/v1/chat/completions", Body: system.ChatBody(model, "Hello", 10, false)}
	if sdk.model == claudeModel {
		r = system.Request{
			Key: key, Path: "/v1/messages", Header: map[string]string{"Anthropic-Version": "2023-06-01"},
			Body: fmt.Sprintf(`{"model":%q,"max_tokens":10,"messages":[{"role":"user","content":"Hello"}]}`, model),
		}
	}
	var a system.Answer
	for end := time.Now().Add(system.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		a = s.Send(ctx, s.Gateways[0].URL, r)
		if a.Status == http.StatusTooManyRequests && a.Header.Get("X-Should-Retry") == "false" {
			return nil
		}
	}
	return fmt.Errorf("the budget of %s is not used up: %s", model, a)
}
