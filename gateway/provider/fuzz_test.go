package provider

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// Each of these targets takes the endpoint as an input: what holds for one decoder must hold for all, also for those of a row that
// is new in the table.

// FuzzRequest holds that what is accepted has an input above zero, and becomes a body that says the same but for model and usage.
func FuzzRequest(f *testing.F) {
	kinds := map[string]uint8{}
	for i, e := range Endpoints() {
		kinds[e.Path] = uint8(i)
	}
	for _, seed := range []struct {
		endpoint Endpoint
		body     string
	}{
		{Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`},
		{Chat, `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":null}}`},
		{Completions, `{"model":"m","prompt":["a",[1,2]],"n":3,"best_of":4,"max_tokens":1e3}`},
		{Embeddings, `{"model":"m","input":[[1],[]]}`},
		{Responses, `{"model":"m","input":[{"type":"function_call","arguments":"{}"},{"role":"user","content":[{"type":"input_image"}]}],"tools":[{"type":"web_search"}]}`},
		{Messages, `{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}],"max_tokens":0,"metadata":{"user_id":"u"}}`},
		{CountTokens, `{"model":"m","messages":[],"system":[{"type":"text","text":"x","cache_control":{"ttl":"1h"}}]}`},
		{Generate, `{"contents":[{"parts":[{"inlineData":{"data":"AA"}},{"functionCall":{"args":{}}}]}],"generation_config":{"candidate_count":2}}`},
		{BatchEmbed, `{"requests":[{"model":"models/m","content":{"parts":{"text":"a"}}}]}`},
		{Images, `{"model":"m","prompt":"a cat","n":2,"quality":"low"}`},
		{Speech, `{"model":"m","input":"hello","voice":"alloy"}`},
		{Transcriptions, "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--x--\r\n"},
	} {
		f.Add([]byte(seed.body), "multipart/form-data; boundary=x", kinds[seed.endpoint.Path])
	}
	f.Fuzz(func(t *testing.T, body []byte, contentType string, kind uint8) {
		endpoint := Endpoints()[int(kind)%len(Endpoints())]
		call := Call{Body: body, ContentType: contentType}
		if endpoint.ModelInPath() {
			call.Model = "m"
		}
		r, err := endpoint.Read(call)
		if err != nil {
			var bad *RequestError
			require.ErrorAs(t, err, &bad)
			return
		}
		e := r.Estimate(r.Model)
		require.Positive(t, e.Input)
		require.GreaterOrEqual(t, e.Output, ledger.Tokens(0))
		require.Equal(t, r.choices == 0, e.Output == 0)
		require.LessOrEqual(t, len(r.User), MaxName)
		require.False(t, ledger.Usage{Calls: r.Calls()}.Negative())
		sent, err := r.UpstreamBody("other", "")
		require.NoError(t, err)
		requireSame(t, r, call, sent)
	})
}

// requireSame holds what is sent against what came.
func requireSame(t *testing.T, r *Request, call Call, sent []byte) {
	t.Helper()
	if r.form != nil {
		again, err := r.Endpoint.Read(Call{Body: sent, ContentType: call.ContentType})
		require.NoError(t, err)
		require.Equal(t, "other", again.Model)
		require.Equal(t, r.form.files, again.form.files)
		return
	}
	var before, after map[string]any
	if json.Unmarshal(call.Body, &before) != nil {
		return // numbers that this decoder does not take
	}
	require.NoError(t, json.Unmarshal(sent, &after))
	if r.Endpoint.ModelInPath() {
		require.Equal(t, len(before), len(after))
		return
	}
	require.Equal(t, "other", after["model"])
	if r.Stream && !r.UsageAsked {
		options, _ := after["stream_options"].(map[string]any)
		require.Equal(t, true, options["include_usage"])
		delete(before, "stream_options")
		delete(after, "stream_options")
	}
	delete(before, "model")
	delete(after, "model")
	require.Equal(t, before, after)
}

// FuzzReadUsage holds that no text makes the reading of an answer panic, or gives a usage that contradicts itself, is beyond what
// can be summed, or changes when it is told again.
func FuzzReadUsage(f *testing.F) {
	for i, e := range Endpoints() {
		if e == Embeddings {
			f.Add(`{"completion_tokens":1}`, uint8(i)) // of output alone, which an embedding has not
		}
		if e == Images {
			f.Add("data: {\"type\":\"image_generation.completed\",\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}\n\n"+
				"data: {\"type\":\"image_generation.completed\",\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}\n\n", uint8(i))
		}
		if e == Chat {
			f.Add(`{"prompt_tokens":0,"completion_tokens":0,"completion_tokens_details":{"reasoning_tokens":-1}}`, uint8(i))
		}
		for _, text := range []string{
			`{"prompt_tokens":10,"completion_tokens":9,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":1},"completion_tokens_details":{"reasoning_tokens":3},"cost":0.1,"num_sources_used":3}`,
			`{"input_tokens":10,"output_tokens":1,"cache_creation":{"ephemeral_1h_input_tokens":4},"iterations":[{"type":"compaction","input_tokens":3,"output_tokens":2},{"model":"n","input_tokens":3,"output_tokens":2}]}`,
			`{"promptTokenCount":10,"cachedContentTokenCount":9,"candidatesTokenCount":5,"totalTokenCount":15,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":8}]}`,
			`{"usage":{"input_tokens":1,"output_tokens":1e400},"tool_usage":{"image_gen":{"input_tokens":1,"output_tokens":-1}},"output":[{"type":"image_generation_call","result":"x"}]}`,
		} {
			if e.Kind == "chat" || e.Kind == "messages" || e.Kind == "generate" || e.Kind == "responses" || e.Kind == "images" {
				f.Add(text, uint8(i))
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string, kind uint8) {
		endpoint := Endpoints()[int(kind)%len(Endpoints())]
		answer, err := endpoint.ReadUsage([]byte(text))
		if err != nil {
			return
		}
		require.False(t, answer.Usage.Negative())
		require.LessOrEqual(t, answer.Usage.Total(), ledger.Tokens(4*maxSteps*maxTokens))
		require.Contains(t, []ledger.UsageState{ledger.UsageReported, ledger.UsageReportedZero, ledger.UsageInconsistent}, answer.State)
		if answer.State != ledger.UsageInconsistent { // figures that contradict each other may come to nothing
			require.Equal(t, answer.State == ledger.UsageReportedZero, answer.Usage == ledger.Usage{}, "zero is said, and nothing else is")
		}
		for _, other := range answer.Others {
			require.False(t, other.Usage.Negative())
			require.Positive(t, other.Usage.Total())
			require.NotEmpty(t, other.Model)
		}
		if answer.Cost != nil {
			require.GreaterOrEqual(t, *answer.Cost, ledger.NanoUSD(0))
		}
		if root := parsed(text); root.IsObject() && !endpoint.ModelInPath() {
			requireToldAgain(t, text)
		}
	})
}

// requireToldAgain holds that figures of a message that are told again change nothing.
func requireToldAgain(t *testing.T, text string) {
	t.Helper()
	var u anthropicUsage
	u.read(parsed(text))
	once := u.reading()
	u.read(parsed(text))
	if once.State != "" {
		require.Equal(t, once, u.reading())
	}
}

// FuzzRelay holds that a stream passes as it is, in whatever pieces it comes, and is metered the same.
func FuzzRelay(f *testing.F) {
	kinds := map[string]uint8{}
	for i, e := range Endpoints() {
		kinds[e.Path] = uint8(i)
	}
	f.Add([]byte(mixedStream()), uint16(10), true, kinds[Chat.Path])
	f.Add([]byte("data: {\"usage\":{\"prompt_tokens\":1}}\r\n\r\ndata:[DONE]"), uint16(3), false, kinds[Chat.Path])
	f.Add([]byte("\xef\xbb\xbfdata: {\"usage\":\ndata: {\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n"), uint16(3), false, kinds[Completions.Path])
	f.Add([]byte(responseStream("completed", responseUsage)), uint16(7), true, kinds[Responses.Path])
	f.Add([]byte(geminiSSE(geminiChunk1, geminiChunk2)), uint16(9), true, kinds[StreamGenerate.Path])
	f.Add([]byte(geminiList(geminiChunk1, geminiChunk2)), uint16(9), false, uint8(len(Endpoints())))
	f.Add([]byte(message()), uint16(10), false, kinds[Messages.Path])
	f.Add([]byte(messageStart(startUsage)+textDelta("x")+overloaded), uint16(3), false, kinds[Messages.Path])
	f.Add([]byte("data: {\"type\":\"image_generation.completed\",\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}\n\n"), uint16(3), false, kinds[Images.Path])
	f.Fuzz(func(t *testing.T, text []byte, size uint16, withhold bool, kind uint8) {
		at := int(kind) % (len(Endpoints()) + 1)
		relay := func(s Sink, body io.Reader) (Answer, error) { return StreamGenerate.RelayList(s, body, Passing{}) }
		if at < len(Endpoints()) {
			relay = func(s Sink, body io.Reader) (Answer, error) {
				return Endpoints()[at].RelayStream(s, body, Passing{Withhold: withhold})
			}
		}
		whole, parts := &sink{}, &sink{}
		want, wantErr := relay(whole, bytes.NewReader(text))
		var cut [][]byte
		for rest := text; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			cut, rest = append(cut, rest[:n]), rest[n:]
		}
		got, err := relay(parts, &pieces{cut, io.EOF, 0})
		require.Equal(t, wantErr == nil, err == nil)
		require.Equal(t, want, got)
		require.Equal(t, whole.String(), parts.String())
		if !withhold {
			require.Equal(t, string(text), whole.String())
		}
		require.False(t, got.Usage.Negative())
	})
}
