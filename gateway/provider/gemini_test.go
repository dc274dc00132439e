package provider

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

func geminiCall(t *testing.T, endpoint Endpoint, model, body string) *Request {
	t.Helper()
	r, err := endpoint.Read(Call{Model: model, Body: []byte(body)})
	require.NoError(t, err, body)
	return r
}

func TestGeminiMethod(t *testing.T) {
	t.Parallel()
	for call, want := range map[string]Endpoint{
		"gemini-2.5-flash:generateContent": Generate, "gemini-2.5-flash:streamGenerateContent": StreamGenerate,
		"gemini-2.5-flash:countTokens": CountContent, "e:embedContent": EmbedContent, "e:batchEmbedContents": BatchEmbed,
	} {
		endpoint, model, ok := GeminiMethod(call)
		require.True(t, ok, call)
		require.Equal(t, want, endpoint, call)
		require.Equal(t, call[:strings.IndexByte(call, ':')], model)
	}
	for _, call := range []string{"gemini-2.5-flash", ":generateContent", "gemini:", "gemini:predictLongRunning", "gemini:Content", "gemini:/v1beta"} {
		_, _, ok := GeminiMethod(call)
		require.False(t, ok, call)
	}
}

func TestParseGemini(t *testing.T) {
	t.Parallel()
	const text = `"contents":[{"parts":[{"text":"hi"}]}]`
	for body, param := range map[string]string{
		`{}`:                                  "contents",
		`{"contents":"hi"}`:                   "contents",
		`{` + text + `,"model":"models/x"}`:   "model",
		`{` + text + `,"generationConfig":1}`: "generationConfig",
		`{` + text + `,"generationConfig":{"maxOutputTokens":0}}`:                                  "maxOutputTokens",
		`{` + text + `,"generationConfig":{"maxOutputTokens":1,"maxOutputTokens":9}}`:              "maxOutputTokens",
		`{` + text + `,"generationConfig":{"maxOutputTokens":1,"max_output_tokens":9}}`:            "maxOutputTokens",
		`{` + text + `,"generationConfig":{"max_output_tokens":9},"generation_config":{"topK":1}}`: "generationConfig",
		`{` + text + `,"generationConfig":{"candidateCount":1001}}`:                                "candidateCount",
		`{` + text + `,"generationConfig":{"maxOutput\u0054okens":5}}`:                             "maxOutputTokens",
	} {
		_, err := Generate.Read(Call{Model: "m", Body: []byte(body)})
		var bad *RequestError
		require.ErrorAs(t, err, &bad, body)
		require.Equal(t, param, bad.Param, body)
	}
	for config, want := range map[string]Estimate{
		`{}`:                    {Output: DefaultOutput, Choices: 1},
		`{"maxOutputTokens":7}`: {Output: 7, Bounded: true, Choices: 1},
		`{"max_output_tokens":7,"candidate_count":3}`:                    {Output: 21, Bounded: true, Choices: 3},
		`{"thinkingConfig":{"thinkingBudget":1000}}`:                     {Output: DefaultOutput + 1000, Choices: 1},
		`{"thinkingConfig":{"thinkingBudget":-1}}`:                       {Output: DefaultOutput, Choices: 1},
		`{"maxOutputTokens":7,"thinkingConfig":{"thinkingBudget":1000}}`: {Output: 7, Bounded: true, Choices: 1},
	} {
		e := geminiCall(t, Generate, "gemini-2.5-flash", `{`+text+`,"generationConfig":`+config+`}`).Estimate("gemini-2.5-flash")
		want.Input = e.Input
		require.Equal(t, want, e, config)
	}
}

// What is sent on is what came; only another name of the model is put in its place.
func TestGeminiUpstream(t *testing.T) {
	t.Parallel()
	query := url.Values{"alt": {"sse"}, "key": {"tg-secret"}, "fields": {"candidates"}}
	r, err := StreamGenerate.Read(Call{Model: "fast", Query: query, Body: []byte(`{"contents":[], "later":1}`)})
	require.NoError(t, err)
	require.True(t, r.Stream)
	require.Equal(t, Target{http.MethodPost, "/v1beta/models/gemini-2.5-flash:streamGenerateContent", "alt=sse", "gemini-2.5-flash"}, r.Target("gemini-2.5-flash"))
	body, err := r.UpstreamBody("gemini-2.5-flash", "")
	require.NoError(t, err)
	require.Equal(t, `{"contents":[], "later":1}`, string(body))
	_, err = Generate.Read(Call{Model: "m", Query: url.Values{"alt": {"proto"}}, Body: []byte(`{"contents":[]}`)})
	require.ErrorContains(t, err, "must be json or sse")

	batch := geminiCall(t, BatchEmbed, "e", `{"requests":[{"model":"models/e","content":{"parts":[{"text":"a"}]}},{"content":{}}]}`)
	body, err = batch.UpstreamBody("gemini-embedding-001", "")
	require.NoError(t, err)
	require.Equal(t, `{"requests":[{"model":"models/gemini-embedding-001","content":{"parts":[{"text":"a"}]}},{"content":{}}]}`, string(body))
	require.Zero(t, batch.Estimate("gemini-embedding-001").Output, "embeddings have no answer of tokens")
}

func TestEstimateGemini(t *testing.T) {
	t.Parallel()
	of := func(body string) ledger.Tokens {
		return geminiCall(t, Generate, "gemini-2.5-flash", body).Estimate("gemini-2.5-flash").Input
	}
	text := func(s string) string { return `{"contents":[{"role":"user","parts":[` + s + `]}]}` }
	plain := of(text(`{"text":"Several words of text."}`))
	require.Positive(t, plain)
	require.Equal(t, plain+5, of(text(`{"text":"Several words of text.","thoughtSignature":"`+strings.Repeat("AbCdEfGh", 13)+`"}`)), "a sealed thought is read again")
	require.EqualValues(t, 258+perToolCall+2*perContent, of(text(`{"functionResponse":{"id":"not read","parts":[{"inlineData":{"mimeType":"image/png","data":"`+pngOf(100, 100)+`"}}]}}`)))
	require.Equal(t, 2*plain, of(`{"systemInstruction":{"parts":[{"text":"Several words of text."}]},"contents":[{"parts":[{"text":"Several words of text."}]}]}`))
	require.Equal(t, 2*plain, of(`{"system_instruction":{"parts":{"text":"Several words of text."}},"contents":{"parts":[{"text":"Several words of text."}]}}`))
	require.EqualValues(t, 258+perContent, of(text(`{"inlineData":{"mimeType":"image/png","data":"`+pngOf(100, 100)+`"}}`)))
	require.EqualValues(t, 258+perContent, of(text(`{"inline_data":{"mime_type":"image/png","data":"`+pngOf(100, 100)+`"}}`)))
	require.EqualValues(t, storedTokens+perContent, of(text(`{"fileData":{"mimeType":"video/mp4","fileUri":"https://example.com/a"}}`)))
	require.EqualValues(t, storedPages*geminiPage+perContent, of(text(`{"fileData":{"mimeType":"application/pdf","fileUri":"https://example.com/a"}}`)))
	require.Greater(t, of(`{"contents":[],"tools":[{"functionDeclarations":[{"name":"f","description":"Several words of text."}]}]}`), plain)
	require.Greater(t, of(`{"contents":[],"tools":[{"urlContext":{}}]}`), ledger.Tokens(3000))
	require.Equal(t, of(text(`{"text":"Several words of text."}`)),
		geminiCall(t, CountContent, "gemini-2.5-flash", `{"generateContentRequest":`+text(`{"text":"Several words of text."}`)+`}`).Estimate("gemini-2.5-flash").Input)
}

func TestReadGeminiUsage(t *testing.T) {
	t.Parallel()
	reported := func(u ledger.Usage) Reading { return Reading{Usage: u, State: ledger.UsageReported} }
	inconsistent := func(in, out ledger.Tokens) Reading {
		return Reading{Usage: ledger.Usage{Input: in, Output: out}, State: ledger.UsageInconsistent}
	}
	for name, c := range map[string]struct {
		text string
		want Reading
	}{
		"plain":                 {`{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":15}`, reported(ledger.Usage{Input: 10, Output: 5})},
		"no total":              {`{"promptTokenCount":10,"candidatesTokenCount":5}`, reported(ledger.Usage{Input: 10, Output: 5})},
		"blocked":               {`{"promptTokenCount":10,"totalTokenCount":10}`, reported(ledger.Usage{Input: 10})},
		"thoughts, apart":       {`{"promptTokenCount":10,"candidatesTokenCount":5,"thoughtsTokenCount":30,"totalTokenCount":45}`, reported(ledger.Usage{Input: 10, Output: 5, Reasoning: 30})},
		"nothing but thoughts":  {`{"promptTokenCount":10,"thoughtsTokenCount":30,"totalTokenCount":40}`, reported(ledger.Usage{Input: 10, Reasoning: 30})},
		"cached, contained":     {`{"promptTokenCount":859,"cachedContentTokenCount":594,"candidatesTokenCount":28,"totalTokenCount":887,"promptTokensDetails":[{"modality":"TEXT","tokenCount":859}],"cacheTokensDetails":[{"modality":"TEXT","tokenCount":594}]}`, reported(ledger.Usage{Input: 265, CachedInput: 594, Output: 28})},
		"tools, apart":          {`{"promptTokenCount":17,"candidatesTokenCount":201,"thoughtsTokenCount":213,"toolUsePromptTokenCount":119,"totalTokenCount":550}`, reported(ledger.Usage{Input: 136, Output: 201, Reasoning: 213})},
		"every kind":            {`{"promptTokenCount":100,"candidatesTokenCount":50,"totalTokenCount":150,"promptTokensDetails":[{"modality":"TEXT","tokenCount":10},{"modality":"IMAGE","tokenCount":20},{"modality":"AUDIO","tokenCount":30},{"modality":"VIDEO","tokenCount":25},{"modality":"DOCUMENT","tokenCount":15}],"candidatesTokensDetails":[{"modality":"IMAGE","tokenCount":40},{"modality":"AUDIO","tokenCount":3}]}`, reported(ledger.Usage{Input: 25, InputImage: 20, InputAudio: 30, InputVideo: 25, Output: 7, OutputImage: 40, OutputAudio: 3})},
		"details leave some":    {`{"promptTokenCount":257,"toolUsePromptTokenCount":1732,"candidatesTokenCount":170,"thoughtsTokenCount":773,"totalTokenCount":2932,"promptTokensDetails":[{"modality":"TEXT","tokenCount":196}],"toolUsePromptTokensDetails":[{"modality":"TEXT","tokenCount":1732}]}`, reported(ledger.Usage{Input: 1989, Output: 170, Reasoning: 773})},
		"cached audio":          {`{"promptTokenCount":100,"cachedContentTokenCount":60,"totalTokenCount":100,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":80},{"modality":"TEXT","tokenCount":20}],"cacheTokensDetails":[{"modality":"AUDIO","tokenCount":50},{"modality":"TEXT","tokenCount":10}]}`, reported(ledger.Usage{Input: 10, CachedInput: 10, InputAudio: 30, CachedInputAudio: 50})},
		"cached, of what kind?": {`{"promptTokenCount":100,"cachedContentTokenCount":60,"totalTokenCount":100,"promptTokensDetails":[{"modality":"IMAGE","tokenCount":80},{"modality":"TEXT","tokenCount":20}]}`, reported(ledger.Usage{CachedInput: 20, InputImage: 40, CachedInputImage: 40})},
		"zero":                  {`{"promptTokenCount":0,"totalTokenCount":0}`, Reading{State: ledger.UsageReportedZero}},
		"larger total counts":   {`{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":40}`, inconsistent(10, 30)},
		"too much cached":       {`{"promptTokenCount":10,"cachedContentTokenCount":11,"candidatesTokenCount":5,"totalTokenCount":15}`, inconsistent(10, 5)},
		"details beyond it":     {`{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":15,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":11}]}`, inconsistent(10, 5)},
		"a part is no count":    {`{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":15,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":-1}]}`, inconsistent(10, 5)},
		"total alone":           {`{"totalTokenCount":15}`, Reading{}},
		"negative":              {`{"promptTokenCount":-10,"candidatesTokenCount":5}`, Reading{}},
		"empty":                 {`{}`, Reading{}},
		"null":                  {`null`, Reading{}},
	} {
		require.Equal(t, c.want, readGeminiUsage(parsed(c.text)), name)
	}
}

const (
	geminiChunk1 = `{"candidates": [{"content": {"parts": [{"text": "one \"}] two"}],"role": "model"},"index": 0}],"usageMetadata": {"promptTokenCount": 18,"candidatesTokenCount": 3,"totalTokenCount": 56,"thoughtsTokenCount": 35},"modelVersion": "gemini-2.5-flash","responseId": "r1"}`
	geminiChunk2 = `{"candidates": [{"content": {"parts": [{"text": " three"}],"role": "model"},"finishReason": "STOP","index": 0,"groundingMetadata": {"webSearchQueries": ["a","b"]}}],"usageMetadata": {"promptTokenCount": 18,"candidatesTokenCount": 8,"totalTokenCount": 61,"thoughtsTokenCount": 35,"serviceTier": "flex"},"modelVersion": "gemini-2.5-flash","responseId": "r1"}`
	geminiFailed = `{"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}`
)

func geminiSSE(chunks ...string) string {
	return "data: " + strings.Join(chunks, "\r\n\r\ndata: ") + "\r\n\r\n"
}

func geminiList(chunks ...string) string { return "[" + strings.Join(chunks, "\n,\r\n") + "\n]\n" }

// Both forms of a stream, and an answer in one piece, tell the same.
func TestStreamsOfGemini(t *testing.T) {
	t.Parallel()
	whole := Answer{
		Reading: Reading{Usage: ledger.Usage{Input: 18, Output: 8, Reasoning: 35, Calls: ledger.Calls{WebSearch: 1}}, State: ledger.UsageReported},
		Tier:    ledger.ServiceFlex, Model: "gemini-2.5-flash", UpstreamID: "r1", Finish: ledger.ReasonOK,
	}
	_, answer, err := Generate.ReadAnswer(&http.Response{Body: io.NopCloser(strings.NewReader(geminiChunk2)), ContentLength: -1})
	require.NoError(t, err)
	require.Equal(t, whole, answer)

	part := whole
	part.Usage.Output, part.Usage.Calls, part.Tier = 3, ledger.Calls{}, ledger.ServiceStandard
	part.State = ledger.UsageEstimated // its figures are those so far
	for name, c := range map[string]struct {
		chunks []string
		want   Answer
		finish ledger.Reason
		cut    bool // where nothing but the last event tells the end
	}{
		"whole":            {[]string{geminiChunk1, geminiChunk2}, whole, ledger.ReasonOK, false},
		"without its end":  {[]string{geminiChunk1}, part, ledger.ReasonUpstreamCut, true},
		"an error":         {[]string{geminiChunk1, geminiFailed}, part, ledger.ReasonUpstreamFailed, false},
		"an error at once": {[]string{geminiFailed}, Answer{}, ledger.ReasonUpstreamFailed, false},
		"a blocked prompt": {
			[]string{`{"promptFeedback": {"blockReason": "SAFETY"},"usageMetadata": {"promptTokenCount": 4,"totalTokenCount": 4}}`},
			Answer{Reading: Reading{Usage: ledger.Usage{Input: 4}, State: ledger.UsageReported}},
			ledger.ReasonOK, false,
		},
	} {
		c.want.Events, c.want.FirstByte, c.want.Finish = int64(len(c.chunks)), true, c.finish
		s := &sink{}
		answer, err := StreamGenerate.RelayStream(s, strings.NewReader(geminiSSE(c.chunks...)), Passing{})
		require.Equal(t, c.cut, err != nil, name)
		require.Equal(t, geminiSSE(c.chunks...), s.String(), name)
		c.want.Output = answer.Output
		require.Equal(t, c.want, answer, name)

		list := geminiList(c.chunks...)
		if c.cut {
			list = strings.TrimSuffix(list, "\n]\n")
		}
		for _, size := range []int{1, 7, len(list)} {
			s = &sink{}
			answer, err = StreamGenerate.RelayList(s, inPieces(list, size), Passing{})
			require.Equal(t, c.cut, err != nil, name)
			require.Equal(t, list, s.String(), name)
			require.Equal(t, c.want, answer, name)
		}
	}
}

func inPieces(text string, size int) io.Reader {
	var cut [][]byte
	for rest := []byte(text); len(rest) > 0; {
		n := min(len(rest), size)
		cut, rest = append(cut, rest[:n]), rest[n:]
	}
	return &pieces{cut, io.EOF, 0}
}

// An element of a list goes on as soon as it is there.
func TestListsAreNotHeldBack(t *testing.T) {
	t.Parallel()
	reader, writer := io.Pipe()
	s := &signalSink{wrote: make(chan string, 4)}
	done := make(chan error, 1)
	go func() {
		_, err := StreamGenerate.RelayList(s, reader, Passing{})
		done <- err
	}()
	_, err := io.WriteString(writer, "["+geminiChunk1)
	require.NoError(t, err)
	require.Equal(t, "["+geminiChunk1, <-s.wrote)
	_, err = io.WriteString(writer, "\n,"+geminiChunk2+"]")
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	require.NoError(t, <-done)
}

type signalSink struct{ wrote chan string }

func (s *signalSink) Write(p []byte) (int, error) {
	s.wrote <- string(p)
	return len(p), nil
}

func (*signalSink) Flush() {}

// Since Gemini 3 each query is billed.
func TestGeminiSearches(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 1, geminiSearches(parsed(geminiChunk2)))
	require.EqualValues(t, 2, geminiSearches(parsed(strings.Replace(geminiChunk2, "gemini-2.5", "gemini-3", 1))))
	require.Zero(t, geminiSearches(parsed(geminiChunk1)))
}
