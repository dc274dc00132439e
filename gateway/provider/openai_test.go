package provider

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
)

func TestMain(m *testing.M) {
	if err := LoadVocabularies(); err != nil {
		panic(err)
	}
	stack.Main(m, stack.Options{})
}

func TestParseOpenAIRefuses(t *testing.T) {
	t.Parallel()
	const chat = `{"model":"m","messages":[],`
	for name, c := range map[string]struct {
		endpoint             Endpoint
		body, param, message string
	}{
		"empty":                 {Chat, ``, "", "not valid JSON"},
		"cut":                   {Chat, `{"model":"m"`, "", "not valid JSON"},
		"two values":            {Chat, `{} {}`, "", "not valid JSON"},
		"list":                  {Chat, `[]`, "", "not a JSON object"},
		"text":                  {Chat, `"model"`, "", "not a JSON object"},
		"no model":              {Chat, `{"messages":[]}`, "model", "must provide a model"},
		"null model":            {Chat, `{"model":null,"messages":[]}`, "model", "must provide a model"},
		"empty model":           {Chat, `{"model":"","messages":[]}`, "model", "must provide a model"},
		"model is a number":     {Chat, `{"model":4,"messages":[]}`, "model", "must be a string, not 4"},
		"user is an object":     {Chat, chat + `"user":{}}`, "user", "must be a string"},
		"no messages":           {Chat, `{"model":"m"}`, "messages", "list of messages"},
		"messages is text":      {Chat, `{"model":"m","messages":"hi"}`, "messages", "list of messages"},
		"stream is text":        {Chat, chat + `"stream":"yes"}`, "stream", "must be true or false"},
		"options are a list":    {Chat, chat + `"stream_options":[]}`, "stream_options", "must be an object"},
		"include_usage is 1":    {Chat, chat + `"stream_options":{"include_usage":1}}`, "include_usage", "must be true or false"},
		"include_usage twice":   {Chat, chat + `"stream_options":{"include_usage":true,"include_usage":false}}`, "include_usage", "twice"},
		"model twice":           {Chat, `{"model":"cheap","messages":[],"model":"dear"}`, "model", "twice"},
		"unknown field twice":   {Chat, chat + `"seed":1,"seed":2}`, "seed", "twice"},
		"escaped name":          {Chat, chat + `"max_token\u0073":9}`, "max_tokens", "without escapes"},
		"escaped twice":         {Chat, chat + `"n":1,"\u006e":9}`, "n", "without escapes"},
		"escaped option":        {Chat, chat + `"stream_options":{"include_u\u0073age":true}}`, "include_usage", "without escapes"},
		"max_tokens 0":          {Chat, chat + `"max_tokens":0}`, "max_tokens", "whole number from 1"},
		"max_tokens -1":         {Chat, chat + `"max_tokens":-1}`, "max_tokens", "whole number from 1"},
		"max_tokens 1.5":        {Chat, chat + `"max_tokens":1.5}`, "max_tokens", "not 1.5"},
		"max_tokens text":       {Chat, chat + `"max_tokens":"9"}`, "max_tokens", "whole number"},
		"max_tokens 1e400":      {Chat, chat + `"max_tokens":1e400}`, "max_tokens", "not 1e400"},
		"max_tokens 2^64":       {Chat, chat + `"max_tokens":18446744073709551617}`, "max_tokens", "not 18446744073709551617"},
		"max_completion_tokens": {Chat, chat + `"max_completion_tokens":1000000001}`, "max_completion_tokens", "1000000000"},
		"n 0":                   {Chat, chat + `"n":0}`, "n", "whole number"},
		"n 1001":                {Chat, chat + `"n":1001}`, "n", "1000 choices"},
		"best_of 1001":          {Completions, `{"model":"m","prompt":"x","best_of":1001}`, "best_of", "1000 choices"},
		"no input":              {Embeddings, `{"model":"m"}`, "input", "must provide an input"},
		"nested":                {Chat, chat + `"x":` + strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting) + `}`, "", "nests deeper"},
		"a stack of brackets":   {Chat, strings.Repeat("[", 32<<20), "", "nests deeper"},
		"a stack of objects":    {Chat, strings.Repeat(`{"a":`, 6<<20), "", "nests deeper"},
		"too many prompts":      {Completions, `{"model":"m","prompt":[` + strings.Repeat(`"",`, 1_000_000) + `""]}`, "prompt", "more than can be metered"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := c.endpoint.Parse([]byte(c.body))
			var bad *RequestError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, c.param, bad.Param)
			require.Contains(t, bad.Message, c.message)
			require.Less(t, len(bad.Error()), 200, "a caller's text is not told back at length")
		})
	}
}

func TestParseOpenAIReads(t *testing.T) {
	t.Parallel()
	const chat = `{"model":"m","messages":[]`
	for name, c := range map[string]struct {
		endpoint Endpoint
		body     string
		want     read
	}{
		"least":                {Chat, chat + `}`, read{Output: DefaultOutput, Input: 8}},
		"user":                 {Chat, chat + `,"user":"u\u00e9"}`, read{User: "ué", Output: DefaultOutput, Input: 8}},
		"nulls":                {Chat, chat + `,"user":null,"stream":null,"stream_options":null,"n":null,"max_tokens":null}`, read{Output: DefaultOutput, Input: 8}},
		"stream":               {Chat, chat + `,"stream":true}`, read{Stream: true, Output: DefaultOutput, Input: 8}},
		"usage not asked":      {Chat, chat + `,"stream":true,"stream_options":{"include_usage":false}}`, read{Stream: true, Output: DefaultOutput, Input: 8}},
		"usage asked":          {Chat, chat + `,"stream":true,"stream_options":{"x":1,"include_usage":true}}`, read{Stream: true, UsageAsked: true, Output: DefaultOutput, Input: 8}},
		"bound":                {Chat, chat + `,"max_tokens":7}`, read{Output: 7, Input: 8}},
		"larger bound counts":  {Chat, chat + `,"max_tokens":7,"max_completion_tokens":9}`, read{Output: 9, Input: 8}},
		"whole float":          {Chat, chat + `,"max_tokens":7.0,"n":2e0}`, read{Output: 14, Input: 8}},
		"most":                 {Chat, chat + `,"max_tokens":1000000000,"n":1000}`, read{Output: 1e12, Input: 8}},
		"n of no bound":        {Chat, chat + `,"n":3}`, read{Output: 3 * DefaultOutput, Input: 8}},
		"completions":          {Completions, `{"model":"m","prompt":"abcd","max_tokens":5,"n":2,"best_of":3}`, read{Output: 15, Input: 2}},
		"no prompt":            {Completions, `{"model":"m","max_tokens":5}`, read{Output: 5, Input: 1}},
		"foreign bound":        {Completions, `{"model":"m","prompt":"abcd","max_completion_tokens":5}`, read{Output: DefaultOutput, Input: 2}},
		"every prompt answers": {Completions, `{"model":"m","prompt":["abcd","abcd"],"max_tokens":5,"n":3}`, read{Output: 30, Input: 3}},
		"token prompt":         {Completions, `{"model":"m","prompt":[1,2,3],"max_tokens":5}`, read{Output: 5, Input: 3}},
		"token prompts":        {Completions, `{"model":"m","prompt":[[1,2],[3]],"max_tokens":5}`, read{Output: 10, Input: 3}},
		"embeddings":           {Embeddings, `{"model":"m","input":["abcd","abcd"]}`, read{Input: 3}},
		"embeddings of tokens": {Embeddings, `{"model":"m","input":[[1,2,3],[4]]}`, read{Input: 4}},
		"embeddings of none":   {Embeddings, `{"model":"m","input":[]}`, read{Input: 1}},
		"not nested":           {Chat, chat + `,"x":"` + strings.Repeat(`[{\"`, 2*maxNesting) + `"}`, read{Output: DefaultOutput, Input: 8}},
		"many brackets":        {Chat, chat + `,"x":[` + strings.Repeat(`[],`, 2*maxNesting) + `[]]}`, read{Output: DefaultOutput, Input: 8}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.endpoint.Parse([]byte(c.body))
			require.NoError(t, err)
			require.Equal(t, c.want, readOf(got))
			require.Equal(t, []any{"m", c.endpoint, c.body}, []any{got.Model, got.Endpoint, string(got.body)})
		})
	}
}

// read is what a parser has read of a body, with what the model that it names would hold for it.
type read struct {
	User               string
	Stream, UsageAsked bool
	Also               []ledger.Class
	Input, Output      ledger.Tokens
}

func readOf(r *Request) read {
	e := r.Estimate(r.Model)
	return read{r.User, r.Stream, r.UsageAsked, r.Also, e.Corrected(), e.Output}
}

func TestUpstreamBody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, model, want string }{
		"unchanged":        {"{ \"model\":\"m\",\n \"messages\" : [] , \"x\":1.0}\n", "m", "{ \"model\":\"m\",\n \"messages\" : [] , \"x\":1.0}\n"},
		"alias":            {`{"a":[1, 2],"model" : "m","messages":[]}`, "real/name-1", `{"a":[1, 2],"model" : "real/name-1","messages":[]}`},
		"alias escaped":    {`{"model":"m","messages":[]}`, `a"b`, `{"model":"a\"b","messages":[]}`},
		"usage added":      {`{"model":"m","messages":[],"stream":true}`, "m", `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`},
		"usage asked":      {`{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`, "m", `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`},
		"usage refused":    {`{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":false}}`, "m", `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`},
		"usage null":       {`{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":null,"y":2}}`, "m", `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true,"y":2}}`},
		"options empty":    {`{"model":"m","messages":[],"stream":true,"stream_options":{}}`, "m", `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`},
		"options null":     {`{"model":"m","messages":[],"stream":true,"stream_options":null}`, "m", `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`},
		"plain stays":      {`{"model":"m","messages":[],"stream":false,"stream_options":{"include_usage":false}}`, "m", `{"model":"m","messages":[],"stream":false,"stream_options":{"include_usage":false}}`},
		"not in a message": {`{"messages":[{"model":"x","stream_options":1}],"stream":true,"model":"m"}`, "r", `{"messages":[{"model":"x","stream_options":1}],"stream":true,"model":"r","stream_options":{"include_usage":true}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := Chat.Parse([]byte(c.body))
			require.NoError(t, err)
			got, err := r.UpstreamBody(c.model, "")
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
			require.Equal(t, c.body, string(r.body), "what was parsed stays")
		})
	}
}

func BenchmarkParseOpenAI(b *testing.B) {
	body := []byte(`{"model":"gpt-4o-mini","messages":[{"role":"system","content":"You are helpful."},{"role":"user","content":"` +
		strings.Repeat("Tell me about limits. ", 40) + `"}],"max_tokens":100,"stream":true}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		r, err := Chat.Parse(body)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.UpstreamBody("gpt-4o-mini", ""); err != nil {
			b.Fatal(err)
		}
	}
}

// What a request asks for in all stays far from the end of int64: the sums of what many hold must, too.
func TestAnswersBeyondAllMeasure(t *testing.T) {
	t.Parallel()
	prompts := "[" + strings.Repeat(`"",`, 999) + `""]`
	for body, fits := range map[string]bool{
		`"prompt":"x","n":1000,"max_tokens":1000000000`:                true,
		`"prompt":"x","n":1000,"best_of":1000,"max_tokens":1000000000`: true,
		`"prompt":["x","y"],"n":1000,"max_tokens":1000000000`:          false,
		`"prompt":` + prompts + `,"max_tokens":1000000000`:             true,
		`"prompt":` + prompts + `,"n":2,"max_tokens":1000000000`:       false,
		`"prompt":` + prompts + `,"n":1000`:                            true,
	} {
		r, err := Completions.Parse([]byte(`{"model":"m",` + body + `}`))
		require.Equal(t, fits, err == nil, "%.60s: %v", body, err)
		if fits {
			require.LessOrEqual(t, r.Estimate("m").Output, ledger.Tokens(maxTokens))
		}
	}
}
