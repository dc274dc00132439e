package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// answered is a request that a provider answered, with what it reported.
type answered struct {
	ID, Protocol, Provider, Path, Response string
	Request                                json.RawMessage
	Status                                 int
}

var recordedEndpoints = map[string]Endpoint{"openai-chat": Chat, "openai-embeddings": Embeddings, "openai-responses": Responses, "anthropic-messages": Messages, "gemini": Generate}

// input is what the provider says that it read, 0 where it does not say.
func (x *answered) input() int64 {
	n := int64(0)
	read := func(body gjson.Result) {
		for _, path := range []string{"usage", "x_groq.usage", "message.usage", "response.usage"} {
			sum := int64(0)
			for _, field := range []string{"prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"} {
				sum += body.Get(path + "." + field).Int()
			}
			n = max(n, sum)
		}
		n = max(n, body.Get("usageMetadata.promptTokenCount").Int()+body.Get("usageMetadata.toolUsePromptTokenCount").Int())
	}
	if gjson.Valid(x.Response) {
		read(gjson.Parse(x.Response))
		return n
	}
	for line := range strings.Lines(x.Response) {
		if data, ok := strings.CutPrefix(line, "data:"); ok {
			read(gjson.Parse(data))
		}
	}
	return n
}

// kind says what an estimate of the request has to guess. For the last two no estimate can be near.
func (x *answered) kind() string {
	body := string(x.Request)
	switch {
	case geminiHosted.MatchString(body):
		return "provider's own tools"
	case strings.Contains(body, `"fileData"`):
		return "files and far images"
	case strings.Contains(body, `"responseJsonSchema"`) || strings.Contains(body, `"responseSchema"`):
		return "response schema" // documented to count, and not billed in these
	case serverToolName.MatchString(body) || hostedTool.MatchString(body) || strings.Contains(body, `"mcp_servers"`) || strings.Contains(body, `"models"`) || strings.Contains(body, `"openrouter:`):
		return "provider's own tools"
	case strings.Contains(body, `"file_id"`) || strings.Contains(body, `"file_data"`) || strings.Contains(body, `"document"`) ||
		strings.Contains(body, `"url": "http`) || strings.Contains(body, `"url":"http`):
		return "files and far images"
	case x.Protocol == "openai-responses":
		return "responses"
	case strings.Contains(body, `"tools"`):
		return "tools"
	default:
		return "text"
	}
}

// hostedTool is what stands for tools that OpenAI runs itself, or for a conversation that it has stored.
var hostedTool = regexp.MustCompile(`"type": ?"(web_search|file_search|code_interpreter|mcp|image_generation|tool_search|computer)|"(previous_response_id|conversation)": ?"`)

var geminiHosted = regexp.MustCompile(`"(googleSearch|codeExecution|urlContext|fileSearch)": ?\{`)

var serverToolName = regexp.MustCompile(`"type": ?"[a-z0-9_]+_20\d{6}"`)

// accuracy is estimates over what was reported, of one kind.
type accuracy struct{ raw, held []float64 }

func (a *accuracy) String() string {
	slices.Sort(a.raw)
	slices.Sort(a.held)
	n := len(a.held)
	below := 0
	for _, ratio := range a.held {
		if ratio < 1 {
			below++
		}
	}
	return fmt.Sprintf("%5d   %.2f  %.2f   %.2f  %.2f  %5.2f  %5.2f   %3.0f %%", n, a.raw[0], a.raw[n/2],
		a.held[0], a.held[n/2], a.held[n*95/100], a.held[n-1], 100*float64(below)/float64(n))
}

// measure estimates every request that a provider answered, and groups what comes out.
func measure(t *testing.T, data []byte) map[string]*accuracy {
	t.Helper()
	groups := map[string]*accuracy{}
	for line := range bytes.Lines(data) {
		var x answered
		require.NoError(t, json.Unmarshal(line, &x))
		endpoint, ok := recordedEndpoints[x.Protocol]
		actual := x.input()
		if !ok || x.Status != 200 || actual == 0 {
			continue
		}
		_, model, _ := GeminiMethod(x.Path[strings.LastIndexByte(x.Path, '/')+1:])
		r, err := endpoint.Read(Call{Model: model, Body: x.Request})
		require.NoError(t, err, x.ID)
		e, counted := r.Estimate(r.Model), "guessed"
		if e.Exact {
			counted = "counted"
		}
		raw, held := float64(e.Input)/float64(actual), float64(e.Corrected())/float64(actual)
		for _, group := range []string{"all " + counted, x.kind() + ", " + counted, x.Provider + ", " + counted} {
			if groups[group] == nil {
				groups[group] = &accuracy{}
			}
			groups[group].raw, groups[group].held = append(groups[group].raw, raw), append(groups[group].held, held)
		}
		if held < 0.95 || held > 2.5 {
			t.Logf("%s %s %s, %s: %d estimated, %d held, %d reported", x.ID, x.Provider, r.Model, x.kind(), e.Input, e.Corrected(), actual)
		}
	}
	report := "estimate / reported:      count  raw: least p50  held: least p50  p95  most  below 1\n"
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		report += fmt.Sprintf("%-32s %s\n", name, groups[name])
	}
	t.Log("\n" + report)
	return groups
}

// What the README says of the estimator. Tools that a provider runs itself are billed by what they find: they are left out,
// and so are files whose size nobody knows.
func TestAccuracyOnRecordedExchanges(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("TOLLGATE_CORPUS")
	if dir == "" {
		t.Log("TOLLGATE_CORPUS names no folder: nothing to compare with")
		return
	}
	data, err := os.ReadFile(filepath.Join(dir, "exchanges.jsonl"))
	require.NoError(t, err)
	groups := measure(t, data)
	for _, kind := range []string{"text, counted", "tools, counted"} {
		a := groups[kind]
		require.GreaterOrEqual(t, a.raw[0], 0.97, kind)
		require.LessOrEqual(t, a.held[len(a.held)*95/100], 1.25, kind)
	}
	for _, kind := range []string{"responses, counted", "responses, guessed"} {
		a := groups[kind]
		require.GreaterOrEqual(t, a.held[0], 0.57, kind) // one of early days
		require.GreaterOrEqual(t, a.held[len(a.held)/10], 0.97, kind)
		require.LessOrEqual(t, a.held[len(a.held)*95/100], 3.5, kind)
	}
	for _, kind := range []string{"text, guessed", "tools, guessed"} {
		a := groups[kind]
		require.GreaterOrEqual(t, a.held[0], 0.70, kind) // references in a schema, which Google writes out
		require.GreaterOrEqual(t, a.held[len(a.held)/10], 1.0, "one in ten at most is held too low: "+kind)
		require.LessOrEqual(t, a.held[len(a.held)*95/100], 2.5, kind)
	}
}

// The same over exchanges of our own, whose figures follow the providers' rules.
func TestAccuracyOnOwnExchanges(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("testdata", "exchanges.jsonl"))
	require.NoError(t, err)
	groups := measure(t, data)
	require.Equal(t, []float64{1, 1, 1}, groups["openai, counted"].raw)
	require.GreaterOrEqual(t, groups["anthropic, guessed"].held[0], 1.0)
	require.LessOrEqual(t, groups["anthropic, guessed"].held[1], 1.5)
	require.Len(t, groups, 7)
}
