package provider

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// raw is the uncorrected estimate of a body of an endpoint, without its model.
func raw(t *testing.T, endpoint Endpoint, model, rest string) ledger.Tokens {
	t.Helper()
	r, err := endpoint.Parse([]byte(`{"model":"` + model + `",` + rest + `}`))
	require.NoError(t, err)
	return r.Estimate(model).Input
}

func user(content string) string { return `"messages":[{"role":"user","content":` + content + `}]` }

// What OpenAI documents: three tokens a message, the role, a name one more, three for the primer of the answer.
func TestEstimateFramesAsDocumented(t *testing.T) {
	t.Parallel()
	for messages, want := range map[string]ledger.Tokens{
		`{"role":"user","content":"Hello, world"}`:                                                         3 + 1 + 3 + 3,
		`{"role":"user","content":[{"type":"text","text":"Hello, world"}]}`:                                3 + 1 + 3 + 3,
		`{"role":"system","content":"Hello, world"},{"role":"user","content":"Hello, world"}`:              2*(3+1+3) + 3,
		`{"role":"user","name":"a","content":"Hello, world"}`:                                              3 + 1 + 1 + 1 + 3 + 3,
		`{"role":"assistant","content":null,"refusal":null}`:                                               3 + 1 + 3,
		`{"role":"assistant","content":[{"type":"refusal","refusal":"Hello, world"}]}`:                     3 + 1 + 3 + 3,
		`{"role":"tool","tool_call_id":"call_that_is_not_read","content":"Hello, world"}`:                  3 + 1 + 3 + 3,
		`{"role":"user","content":"\u0048ello, world"}`:                                                    3 + 1 + 3 + 3,
		`{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"Hello","arguments":", world"}}]}`: 3 + 1 + perToolCall + 3 + 3,
	} {
		require.Equal(t, want, raw(t, Chat, "gpt-4o", `"messages":[`+messages+`]`), messages)
	}
	r, err := Chat.Parse([]byte(`{"model":"gpt-4o",` + user(`"Hello, world"`) + `}`))
	require.NoError(t, err)
	e := r.Estimate("gpt-4o")
	require.True(t, e.Exact)
	require.Equal(t, ledger.Tokens(10), e.Corrected(), "what is counted has no margin")
}

func TestEstimateIsForTheModelThatServes(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("Измерьте каждый запрос. ", 20)
	r, err := Chat.Parse([]byte(`{"model":"fast","max_tokens":9,"n":2,` + user(`"`+text+`"`) + `}`))
	require.NoError(t, err)
	guessed := r.Estimate("fast")
	require.False(t, guessed.Exact)
	require.Equal(t, Estimate{Input: guessed.Input, Output: 18, Bounded: true, Choices: 2}, guessed)
	require.Greater(t, guessed.Corrected(), guessed.Input, "a guess has a margin")
	small := r.Estimate("gpt-4o-mini")
	require.Equal(t, Estimate{Input: 7 + ledger.Tokens(countAll(o200k.Load(), text)), Exact: true, Output: 18, Bounded: true, Choices: 2}, small)
	old := r.Estimate("gpt-4")
	require.Greater(t, old.Input, small.Input)
}

func TestEstimateBound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		endpoint Endpoint
		body     string
		want     Estimate
	}{
		"none":       {Chat, `{"model":"gpt-4o",` + user(`"Hello, world"`) + `,"n":3}`, Estimate{Input: 10, Exact: true, Output: 3 * DefaultOutput, Choices: 3}},
		"given":      {Chat, `{"model":"gpt-4o",` + user(`"Hello, world"`) + `,"max_completion_tokens":7}`, Estimate{Input: 10, Exact: true, Output: 7, Bounded: true, Choices: 1}},
		"embeddings": {Embeddings, `{"model":"text-embedding-3-small","input":"Hello, world"}`, Estimate{Input: 3, Exact: true}},
		"tokens":     {Embeddings, `{"model":"any","input":[[1,2],[3]]}`, Estimate{Input: 3, Exact: true}},
		"best_of":    {Completions, `{"model":"m","prompt":[1],"best_of":4,"max_tokens":2}`, Estimate{Input: 1, Exact: true, Output: 8, Bounded: true, Choices: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := c.endpoint.Parse([]byte(c.body))
			require.NoError(t, err)
			require.Equal(t, c.want, r.Estimate(r.Model))
		})
	}
}

func TestEstimateCountsEveryPart(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("measure ", 100) + `"`
	for _, model := range []string{"gpt-4o", "in-house", "claude-sonnet-4-5"} {
		base := raw(t, Chat, model, user(`""`))
		for name, rest := range map[string]string{
			"content":         user(long),
			"part":            user(`[{"type":"text","text":` + long + `}]`),
			"unknown part":    user(`[{"type":"new","data":` + long + `}]`),
			"unknown field":   `"messages":[{"role":"user","content":"","reasoning_content":` + long + `}]`,
			"tool call":       `"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":` + long + `}}]}]`,
			"custom call":     `"messages":[{"role":"assistant","tool_calls":[{"custom":{"name":"f","input":` + long + `}}]}]`,
			"function call":   `"messages":[{"role":"assistant","function_call":{"name":"f","arguments":` + long + `}}]`,
			"tool":            user(`""`) + `,"tools":[{"type":"function","function":{"name":"f","description":` + long + `}}]`,
			"tool property":   user(`""`) + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string","description":` + long + `}}}}}]`,
			"tool enum":       user(`""`) + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"enum":[` + long + `]}}}}}]`,
			"function":        user(`""`) + `,"functions":[{"name":"f","description":` + long + `}]`,
			"response format": user(`""`) + `,"response_format":{"type":"json_schema","json_schema":{"schema":{"description":` + long + `}}}`,
		} {
			require.GreaterOrEqual(t, raw(t, Chat, model, rest), base+100, "%s %s", model, name)
		}
		require.Greater(t, raw(t, Chat, model, user(`""`)+`,"web_search_options":{}`), base+1000, "a search brings what it finds")
	}
	require.Greater(t, raw(t, Completions, "gpt-3.5-turbo-instruct", `"prompt":"a","suffix":`+long), ledger.Tokens(100))
}

func TestEstimateMessages(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("measure ", 100) + `"`
	parse := func(rest string) ledger.Tokens {
		return raw(t, Messages, "claude-sonnet-4-5", `"max_tokens":9,`+rest)
	}
	base := parse(user(`""`))
	for name, rest := range map[string]string{
		"system":       user(`""`) + `,"system":` + long,
		"system block": user(`""`) + `,"system":[{"type":"text","text":` + long + `}]`,
		"text":         user(long),
		"block":        user(`[{"type":"text","text":` + long + `}]`),
		"thinking":     user(`[{"type":"thinking","thinking":` + long + `,"signature":"x"}]`),
		"tool use":     user(`[{"type":"tool_use","id":"1","name":"f","input":{"a":` + long + `}}]`),
		"tool result":  user(`[{"type":"tool_result","tool_use_id":"1","content":` + long + `}]`),
		"deep result":  user(`[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":` + long + `}]}]`),
		"document":     user(`[{"type":"document","source":{"type":"text","media_type":"text/plain","data":` + long + `}}]`),
		"content":      user(`[{"type":"document","source":{"type":"content","content":[{"type":"text","text":` + long + `}]}}]`),
		"unknown":      user(`[{"type":"new","data":` + long + `}]`),
		"tool":         user(`""`) + `,"tools":[{"name":"f","description":` + long + `,"input_schema":{"type":"object"}}]`,
		"schema":       user(`""`) + `,"output_config":{"format":{"type":"json_schema","schema":{"description":` + long + `}}}`,
	} {
		require.GreaterOrEqual(t, parse(rest), base+90, name)
	}
	tool := parse(user(`""`) + `,"tools":[{"name":"f","input_schema":{"type":"object"}}]`)
	require.Greater(t, tool, base+500, "Anthropic explains tools")
	search := parse(user(`""`) + `,"tools":[{"type":"web_search_20250305","name":"web_search"}]`)
	require.Greater(t, search, tool+5000)
	image := parse(user(`[{"type":"tool_result","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + pngOf(280, 280) + `"}}]}]`))
	require.InDelta(t, 100, int64(image-base), 20, "10 x 10 patches")
}

// A body is parsed before anybody is asked whether the caller may send it.
func TestEstimateIsLinear(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	deep := func(open, shut string) string {
		levels := (maxNesting - 20) / len(shut)
		return strings.Repeat(open, levels) + `"` + strings.Repeat("x", size) + `"` + strings.Repeat(shut, levels)
	}
	wide := strings.Repeat(`"a":{"type":"object","properties":{"b":{"type":"string"}}},`, size/60)
	start := time.Now()
	for name, c := range map[string]struct {
		endpoint Endpoint
		rest     string
	}{
		"nested prompts": {Embeddings, `"input":` + deep("[", "]")},
		"nested schema":  {Chat, user(`""`) + `,"tools":[{"type":"function","function":{"name":"f","parameters":` + deep(`{"type":"object","properties":{"a":`, "}}") + `}}]`},
		"nested lists":   {Chat, user(`""`) + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":` + deep(`{"anyOf":[`, "]}") + `}}}}]`},
		"wide schema":    {Chat, user(`""`) + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{` + wide[:len(wide)-1] + `}}}}]`},
		"nested blocks":  {Messages, `"max_tokens":1,` + user(deep(`[{"type":"tool_result","content":`, "}]"))},
		"one word":       {Chat, user(`"` + strings.Repeat("x", size) + `"`)},
		"many parts":     {Chat, user(`[` + strings.Repeat(`{"type":"text","text":"a"},`, size/27) + `{}]`)},
	} {
		for _, model := range []string{"gpt-4o", "in-house"} {
			require.Greater(t, raw(t, c.endpoint, model, c.rest), ledger.Tokens(1000), name)
		}
	}
	require.Less(t, time.Since(start), 2*time.Minute)
}

// What is not counted for lack of work is guessed, so that a text of any length costs something for each part of it.
func TestEstimateOfLongTexts(t *testing.T) {
	t.Parallel()
	sentence := "Every request is measured before it is sent. "
	for _, times := range []int{1_000, 10_000, 100_000} {
		r, err := Chat.Parse([]byte(`{"model":"gpt-4o",` + user(`"`+strings.Repeat(sentence, times)+`"`) + `}`))
		require.NoError(t, err)
		e := r.Estimate("gpt-4o")
		require.Equal(t, times*len(sentence) <= maxWork, e.Exact)
		require.InEpsilon(t, 9*times, int64(e.Input), 0.35)
		require.GreaterOrEqual(t, int64(e.Corrected()), int64(9*times))
	}
}

// The heuristic is held to both vocabularies that are known: not below six tenths of the dearer one, not above twice.
func TestHeuristicByKind(t *testing.T) {
	t.Parallel()
	blob := []byte(strings.Repeat("\x00\x9f\x11\xe7 tollgate \xfe\xba\x5c\x3d\x88\x07", 300))
	for i := range blob {
		blob[i] ^= byte(i * i * 31 >> 3)
	}
	for name, text := range map[string]string{
		"English":    "The committee decided yesterday that every request must be measured before it is sent, because nobody wants to pay for what was never used.",
		"German":     "Der Ausschuss hat gestern entschieden, dass jede Anfrage vor dem Versenden gemessen werden muss, weil niemand für Ungenutztes bezahlen möchte.",
		"French":     "Le comité a décidé hier que chaque requête doit être mesurée avant d'être envoyée, car personne ne veut payer pour rien.",
		"Polish":     "Komitet zdecydował wczoraj, że każde żądanie musi zostać zmierzone przed wysłaniem, ponieważ nikt nie chce płacić za nic.",
		"Turkish":    "Komite dün her isteğin gönderilmeden önce ölçülmesi gerektiğine karar verdi.",
		"Vietnamese": "Ủy ban đã quyết định hôm qua rằng mọi yêu cầu phải được đo trước khi gửi đi.",
		"Russian":    "Комитет вчера решил, что каждый запрос должен быть измерен перед отправкой.",
		"Greek":      "Η επιτροπή αποφάσισε χθες ότι κάθε αίτημα πρέπει να μετριέται πριν σταλεί.",
		"Hebrew":     "הוועדה החליטה אתמול שכל בקשה חייבת להימדד לפני שהיא נשלחת.",
		"Arabic":     "قررت اللجنة أمس أنه يجب قياس كل طلب قبل إرساله.",
		"Hindi":      "समिति ने कल निर्णय लिया कि हर अनुरोध को भेजने से पहले मापा जाना चाहिए।",
		"Bengali":    "কমিটি গতকাল সিদ্ধান্ত নিয়েছে যে প্রতিটি অনুরোধ পাঠানোর আগে মাপতে হবে।",
		"Thai":       "คณะกรรมการตัดสินใจเมื่อวานนี้ว่าทุกคำขอจะต้องได้รับการวัดก่อนส่ง",
		"Georgian":   "კომიტეტმა გუშინ გადაწყვიტა, რომ ყოველი მოთხოვნა უნდა გაიზომოს გაგზავნამდე.",
		"Amharic":    "ኮሚቴው እያንዳንዱ ጥያቄ ከመላኩ በፊት መለካት አለበት ብሎ ትናንት ወሰነ።",
		"Korean":     "위원회는 어제 모든 요청을 보내기 전에 측정해야 한다고 결정했습니다.",
		"Japanese":   "委員会は昨日、すべての要求を送信する前に測定しなければならないと決定しました。",
		"Chinese":    "委员会昨天决定，每个请求在发送之前都必须被测量，因为没有人愿意为从未使用过的东西付钱。",
		"emoji":      strings.Repeat("🙂🎉🚀👍🏽🤖📈✅", 5),
		"signs":      strings.Repeat("∑∫√≤≥≠→⇒─│┌ ", 5),
		"Go":         "func (l *Limit) Fits(need Tokens) bool {\n\treturn l.used+l.held+need <= l.limit // in tokens\n}\n",
		"JSON":       `{"id": "chatcmpl-1", "object": "chat.completion", "usage": {"prompt_tokens": 12, "completion_tokens": 345}}`,
		"YAML":       "limits:\n  - name: app-day\n    tier: app\n    budget: {tokens: 5000000, per: day}\n",
		"SQL":        "SELECT app, sum(cost_usd) FROM finance.spend_daily WHERE day >= '2026-11-01' GROUP BY app;\n",
		"indented":   strings.Repeat("\n        x = 1", 50),
		"blanks":     strings.Repeat(" ", 10_000),
		"newlines":   strings.Repeat("\n", 10_000),
		"a line":     strings.Repeat("-", 10_000),
		"numbers":    strings.Repeat("17 × 23 = 391, ", 50),
		"digits":     strings.Repeat("3141592653", 50),
		"base64":     base64.StdEncoding.EncodeToString(blob),
		"hex":        fmt.Sprintf("%x", blob),
		"UUIDs":      strings.Repeat("4e1f0c2d-9b7a-4c3e-8f6d-1a2b3c4d5e6f\n", 20),
		"capitals":   "THE COMMITTEE DECIDED YESTERDAY THAT EVERY REQUEST MUST BE MEASURED BEFORE IT IS SENT.",
		"camel case": strings.Repeat("parseURLFromString getHTTPResponseCode newTokenBucketLimiter ", 10),
	} {
		dearer := max(countAll(cl100k.Load(), text), countAll(o200k.Load(), text))
		ratio := float64(estimateText(text)) / 100 / float64(dearer)
		require.InDelta(t, 1.3, ratio, 0.7, "%s: %.2f", name, ratio)
	}
	require.Zero(t, estimateText(""))
}

func FuzzEstimate(f *testing.F) {
	for _, fragment := range fragments {
		f.Add("a text "+fragment, fragment+" and more", uint8(0))
	}
	f.Add(strings.Repeat("Ab0", 9), "cdefghij", uint8(1))
	f.Add(`{"type":"object","properties":{"a":{"anyOf":[{}]}}}`, `]`, uint8(2))
	models := []string{"gpt-4o", "gpt-4", "in-house", "claude-opus-5", "gemini-3", "openai/gpt-oss-20b"}
	f.Fuzz(func(t *testing.T, text, more string, kind uint8) {
		text, more = text[:min(len(text), 3000)], more[:min(len(more), 3000)]
		model := models[int(kind)%len(models)]
		estimate := func(text string) ledger.Tokens {
			input, _ := (&Request{Endpoint: Chat, found: map[string]gjson.Result{"messages": parsed(`[{"role":"user","content":` + quoted(t, text) + `}]`)}}).estimateInput(model)
			return input
		}
		before, after := estimate(text), estimate(text+more)
		require.Positive(t, before)
		// Text can make the word before it a single token. All before that word stays.
		require.GreaterOrEqual(t, after+lastWord(model, text), before, "%q and %q", text, more)
		for _, field := range []string{"tools", "response_format", "messages", "system"} {
			for endpoint := range apis {
				input, _ := (&Request{Endpoint: Endpoint{Path: endpoint}, form: &form{}, found: map[string]gjson.Result{field: parsed(text)}}).estimateInput(model)
				require.Positive(t, input)
			}
		}
	})
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(text)
	require.NoError(t, err)
	return string(b)
}

// lastWord is what text at the end of a text can take from its estimate: all but one token of its last two pieces, which may
// become one, and what the heuristic rounds.
func lastWord(model, text string) ledger.Tokens {
	e := newEstimator(model)
	if e.vocabulary == nil {
		return 3
	}
	var last, before string
	for len(text) > 0 {
		n := e.vocabulary.cut(text)
		before, last = last, text[:n]
		text = text[n:]
	}
	return ledger.Tokens(countAll(e.vocabulary, before) + countAll(e.vocabulary, last))
}
