package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"tollgate/e2e/system"
	"tollgate/internal/sim"
	"tollgate/ledger"
	"tollgate/ledger/price"
)

// replayed is one exchange on its way through the gateway.
type replayed struct {
	*sim.Exchange
	model    string // asked of the provider
	provider string // of the policy
	seen     chan string
	asked    []byte // what the provider was sent
	id       string
	problems []string
}

// wrong notes a difference.
func (x *replayed) wrong(format string, args ...any) {
	x.problems = append(x.problems, fmt.Sprintf(format, args...))
}

// apiPaths is how the recorded paths of a protocol end.
var apiPaths = map[string]string{"openai-chat": "/chat/completions", "openai-responses": "/responses", "anthropic-messages": "/messages", "gemini": "/models/"}

// Every recorded exchange passes through the gateway as it was: status, bytes, and streams event by event, none held back until
// the next; the provider is sent what the caller sent; and what it reported is in finance.requests with its cost. The exchanges
// are our own, and those of the folder that TOLLGATE_CORPUS names.
func TestReplay(t *testing.T) {
	t.Parallel()
	files := []string{filepath.Join("testdata", "exchanges.jsonl")}
	if corpus := os.Getenv("TOLLGATE_CORPUS"); corpus != "" {
		files = append(files, filepath.Join(corpus, "exchanges.jsonl"))
	}
	var all []*replayed
	replay := &sim.Replay{Exchanges: map[string]*sim.Exchange{}}
	byID := map[string]*replayed{}
	for _, file := range files {
		f, err := os.Open(file)
		require.NoError(t, err)
		exchanges, err := sim.ReadExchanges(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NotEmpty(t, exchanges)
		for _, x := range exchanges {
			r := &replayed{Exchange: x, model: modelOf(x), seen: make(chan string, 1)}
			all, byID[x.ID], replay.Exchanges[x.ID] = append(all, r), r, x
		}
	}
	require.Len(t, byID, len(all), "each has an id of its own")
	replay.Asked = func(x *sim.Exchange, _ *http.Request, body []byte) { byID[x.ID].asked = body }
	replay.Sent = func(x *sim.Exchange, event string) { byID[x.ID].await(event) }
	provider := httptest.NewServer(replay)
	t.Cleanup(provider.Close)

	providers, models := policyOf(provider.URL, all)
	s := system.New(t, system.Options{
		Limits: "  - {name: day, tier: app, budget: {tokens: 1_000_000_000_000, per: day}}", Gateways: 1, Settlers: 1, Providers: providers, Models: models,
	})
	key := s.KnownKey(system.App)
	work := make(chan *replayed)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for x := range work {
				x.send(t.Context(), s.Gateways[0].URL, key)
			}
		})
	}
	for _, x := range all {
		work <- x
	}
	close(work)
	workers.Wait()
	s.Eventually(system.Patience, "all is settled", func() error {
		if n := s.Int("SELECT count(*) FROM finance.requests WHERE state IN ('settled', 'released')"); n != int64(len(all)) {
			return fmt.Errorf("%d of %d", n, len(all))
		}
		return nil
	})
	compareLedger(t, s, all)
	bad := 0
	for _, x := range all {
		if len(x.problems) > 0 {
			bad++
			t.Errorf("%s %s %s %s: %s", x.ID, x.Provider, x.Path, x.model, strings.Join(x.problems, "; "))
		}
	}
	t.Logf("%d exchanges, %d wrong", len(all), bad)
}

func modelOf(x *sim.Exchange) string {
	if x.Protocol != "gemini" {
		return gjson.GetBytes(x.Request, "model").Str
	}
	_, call, _ := strings.Cut(x.Path, "/models/")
	return call[:strings.LastIndexByte(call, ':')]
}

// policyOf declares a provider for each address that was recorded, and every model under "<provider>:<model>": two providers
// may serve the same. A provider's second address has a name that no price is known for.
func policyOf(base string, all []*replayed) (providers, models string) {
	protocols := map[string]string{"openai-chat": "openai", "openai-responses": "openai", "anthropic-messages": "anthropic", "gemini": "gemini"}
	names := map[string]string{} // by address
	taken := map[string]bool{}
	var lines, entries []string
	for _, x := range all {
		address := base + x.Path[:strings.LastIndex(x.Path, apiPaths[x.Protocol])]
		place := x.Provider + " " + x.Protocol[:3] + " " + address
		if names[place] == "" {
			name := x.Provider
			if name == "openai" || taken[name] { // the system's own provider is called openai
				name = fmt.Sprintf("%s-%d", x.Provider, len(names))
			}
			names[place], taken[name] = name, true
			lines = append(lines, fmt.Sprintf("  %s: {protocol: %s, base_url: %q, api_key_env: TOLLGATE_SIM_KEY}", name, protocols[x.Protocol], address))
		}
		x.provider = names[place]
		entries = append(entries, fmt.Sprintf("  %q: {provider: %s, upstream_model: %q}", x.provider+":"+x.model, x.provider, x.model))
	}
	slices.Sort(entries)
	return strings.Join(lines, "\n"), strings.Join(slices.Compact(entries), "\n")
}

// await waits until the client has an event of the stream. One that only metering asked for never comes.
func (x *replayed) await(event string) {
	select {
	case <-x.seen:
	case <-time.After(system.Patience):
		x.wrong("held back: %.80q", event)
	}
}

func (x *replayed) send(ctx context.Context, gateway, key string) {
	alias, path, body := x.provider+":"+x.model, strings.TrimSuffix(apiPaths[x.Protocol], "/"), []byte(x.Request)
	switch x.Protocol {
	case "gemini":
		_, method, _ := strings.Cut(x.Path[strings.LastIndexByte(x.Path, ':'):], ":")
		path = "/v1beta/models/" + alias + ":" + method
		if x.Stream {
			path += "?alt=sse"
		}
	default:
		var err error
		path = "/v1" + path
		if body, err = sjson.SetBytes(body, "model", alias); err != nil {
			x.wrong("%v", err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+path, bytes.NewReader(body))
	if err != nil {
		x.wrong("%v", err)
		return
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(sim.ReplayHeader, x.ID)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		x.wrong("%v", err)
		return
	}
	x.id = response.Header.Get("X-Tollgate-Request-Id")
	got, err := x.read(response)
	if err != nil {
		x.wrong("%v", err)
	}
	if response.StatusCode != x.Status || response.Header.Get("Content-Type") != x.ContentType {
		x.wrong("status %d %s, not %d %s", response.StatusCode, response.Header.Get("Content-Type"), x.Status, x.ContentType)
	}
	if got != x.Response {
		x.wrong("answer %.300q is not %.300q", got, x.Response)
	}
	sent := x.asked
	if x.Protocol == "openai-chat" && x.Stream && !gjson.GetBytes(x.Request, "stream_options").Exists() {
		sent, _ = sjson.DeleteBytes(sent, "stream_options")
	}
	if string(sent) != string(x.Request) {
		x.wrong("the provider was sent %.200q", sent)
	}
}

// read reads the answer; of a stream it says when each event is there.
func (x *replayed) read(response *http.Response) (string, error) {
	defer response.Body.Close()
	if !x.Stream {
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
	var got strings.Builder
	ends := eventEnds(x.Response)
	buffer := make([]byte, 32<<10)
	for {
		n, err := response.Body.Read(buffer)
		got.Write(buffer[:n])
		for len(ends) > 0 && got.Len() >= ends[0] {
			x.seen <- ""
			ends = ends[1:]
		}
		if err == io.EOF {
			return got.String(), nil
		}
		if err != nil {
			return got.String(), err
		}
	}
}

func eventEnds(stream string) (ends []int) {
	at := 0
	for event := range strings.SplitAfterSeq(stream, "\n\n") {
		if event != "" {
			at += len(event)
			ends = append(ends, at)
		}
	}
	return ends
}

// compareLedger holds finance.requests against what the providers said.
func compareLedger(t *testing.T, s *system.System, all []*replayed) {
	t.Helper()
	type row struct {
		RequestID, State, UsageState, Provider, Model    string
		Input, Cached, Written, Output, Reasoning, Other int64
		Searches, Files, Containers                      int64
		Cost                                             string
	}
	rows, err := s.Pool.Query(t.Context(), `
SELECT request_id, state, coalesce(usage_state, ''), provider, model, input_tokens, cached_input_tokens, cache_write_tokens, output_tokens, reasoning_tokens,
       input_audio_tokens + input_image_tokens + input_video_tokens + cached_input_audio_tokens + cached_input_image_tokens
       + output_audio_tokens + output_image_tokens + output_video_tokens,
       web_search_calls, file_search_calls, code_interpreter_calls, coalesce(cost_usd, 0)::text
FROM finance.requests`)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	byID := map[string]row{}
	for _, r := range found {
		byID[r.RequestID] = r
	}
	book := price.Default()
	for _, x := range all {
		r, known := byID[x.id]
		want := reported(x)
		switch {
		case !known:
			x.wrong("%q is not in the ledger", x.id)
		case x.Status != http.StatusOK && (r.State != "released" || r.Cost != "0.000000000"):
			x.wrong("an answer that failed is %s and cost %s", r.State, r.Cost)
		case x.Status != http.StatusOK:
		case want == nil && r.UsageState != string(ledger.UsageEstimated):
			x.wrong("nothing was reported, the ledger says %s", r.UsageState)
		case want == nil:
		case r.UsageState != string(ledger.UsageReported):
			x.wrong("usage is %s", r.UsageState)
		default:
			got := told{r.Input, r.Cached, r.Written, r.Output, r.Reasoning, r.Other}
			if got != *want {
				x.wrong("ledger %+v, reported %+v", got, *want)
			}
			x.compareCost(book, r.Provider, r.Cost, ledger.Calls{WebSearch: r.Searches, FileSearch: r.Files, CodeInterpreter: r.Containers})
		}
	}
}

// compareCost computes the cost from what the provider said, where all of it was text.
func (x *replayed) compareCost(book *price.Book, provider, cost string, calls ledger.Calls) {
	want := reported(x)
	if want.other > 0 {
		return
	}
	expected := ledger.NanoUSD(0)
	if p, ok := book.Find(provider, x.model, time.Now()); ok {
		usage := ledger.Usage{
			Input: ledger.Tokens(want.input), CachedInput: ledger.Tokens(want.cached), CacheWrite5m: ledger.Tokens(want.written),
			Output: ledger.Tokens(want.output), Reasoning: ledger.Tokens(want.reasoning), Calls: calls,
		}
		c, err := p.Cost(usage, x.tier(), time.Now())
		if err != nil {
			return // an upper bound is charged
		}
		expected = c.Total + x.beside(book, provider)
	}
	if got, err := ledger.ParseUSD(cost); err != nil || got != expected {
		x.wrong("cost %s, not %s", cost, expected)
	}
}

var namedTier = regexp.MustCompile(`"(?:service_tier|serviceTier)": ?"(batch|flex|priority)"`)

// tier is the service tier that the answer names last.
func (x *replayed) tier() ledger.ServiceTier {
	if all := namedTier.FindAllStringSubmatch(x.Response, -1); len(all) > 0 {
		return ledger.ServiceTier(all[len(all)-1][1])
	}
	return ledger.ServiceStandard
}
