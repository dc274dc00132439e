package provider

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

// object is a JSON object under construction.
type object map[string]any

func (o object) String() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // it holds texts and numbers
	}
	return string(text)
}

// eventStream is a stream of events.
func eventStream(events ...object) string {
	var b strings.Builder
	for _, e := range events {
		if kind, ok := e["type"].(string); ok {
			fmt.Fprintf(&b, "event: %s\n", kind)
		}
		fmt.Fprintf(&b, "data: %s\n\n", e)
	}
	return b.String()
}

// figure draws a count, often none.
func figure(t *rapid.T, name string) int {
	return rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 300_000)).Draw(t, name)
}

var drawTier = rapid.SampledFrom([]string{"default", "flex", "priority", "standard", "batch"})

// totals draws a usage object whose totals contain their parts, now and then one that contradicts itself.
func totals(t *rapid.T, in, out string) object {
	cached, written, audio, image := figure(t, "cached"), figure(t, "written"), figure(t, "audio"), figure(t, "image")
	reasoning, spoken := figure(t, "reasoning"), figure(t, "spoken")
	input, output := figure(t, "input")+cached+written+audio+image, figure(t, "output")+reasoning+spoken
	return object{
		in: input, out: output, "total_tokens": input + output + rapid.SampledFrom([]int{0, 0, 0, 7}).Draw(t, "too many"),
		in + "_details":  object{"cached_tokens": cached, "cache_write_tokens": written, "audio_tokens": audio, "image_tokens": image},
		out + "_details": object{"reasoning_tokens": reasoning, "audio_tokens": spoken},
	}
}

// chats draws one answer of chat completions or completions as a body and as streams: the usage in an event of its own, beside the
// last choice, where Groq has it, and besides in every event before, as it was so far. Text and no output would contradict each other.
func chats(t *rapid.T) (body string, streams []string) {
	tier, usage := drawTier.Draw(t, "tier"), totals(t, "prompt_tokens", "completion_tokens")
	event := func(choices []object, usage any) object {
		e := object{"id": "c-1", "model": "m-1", "service_tier": tier, "choices": choices}
		if usage != nil {
			e["usage"] = usage
		}
		return e
	}
	said := "hello"[:min(5, usage["completion_tokens"].(int))]
	text, none := []object{{"index": 0, "delta": object{"content": said}}}, []object{}
	last := []object{{"index": 0, "delta": object{}, "finish_reason": "stop"}}
	soFar := object{"prompt_tokens": usage["prompt_tokens"], "completion_tokens": min(1, len(said))}
	groq := event(last, nil)
	groq["x_groq"] = object{"usage": usage}
	const done = "data: [DONE]\n\n"
	return event([]object{{"index": 0, "message": object{"content": said}, "finish_reason": "stop"}}, usage).String(), []string{
		eventStream(event(text, nil), event(last, nil), event(none, usage)) + done,
		eventStream(event(text, nil), event(last, usage)) + done,
		eventStream(event(text, nil), groq) + done,
		eventStream(event(text, soFar), event(last, soFar), event(none, usage)) + done,
	}
}

func responses(t *rapid.T) (body string, streams []string) {
	output := []object{{"type": "message", "content": []object{{"type": "output_text", "text": "hello"}}}}
	for i := range rapid.IntRange(0, 3).Draw(t, "calls") {
		kind := rapid.SampledFrom([]string{"web_search_call", "file_search_call", "code_interpreter_call"}).Draw(t, "call")
		output = append(output, object{"type": kind, "action": object{"type": "search"}, "container_id": fmt.Sprint("c", i/2)})
	}
	response := object{
		"id": "r-1", "model": "m-1", "service_tier": drawTier.Draw(t, "tier"), "status": "completed", "output": output,
		"usage": totals(t, "input_tokens", "output_tokens"),
	}
	begun := object{"type": "response.created", "response": object{"id": "r-1", "model": "m-1", "status": "in_progress", "usage": nil}}
	delta := object{"type": "response.output_text.delta", "delta": "hello"}
	return response.String(), []string{
		eventStream(begun, delta, object{"type": "response.completed", "response": response}),
		eventStream(object{"type": "response.incomplete", "response": response}),
	}
}

// messages draws one of Anthropic's messages. A stream may state each figure of the input at its start, at its end, or at both; a
// figure that an event leaves out it may also state as 0. The output is stated as it is so far, and at the end.
func messages(t *rapid.T) (body string, streams []string) {
	short, hour := figure(t, "5m"), figure(t, "1h")
	thinking := figure(t, "thinking")
	input := object{
		"input_tokens": figure(t, "input"), "cache_read_input_tokens": figure(t, "cached"), "cache_creation_input_tokens": short + hour,
		"cache_creation":  object{"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": hour},
		"server_tool_use": object{"web_search_requests": figure(t, "searches")},
	}
	output := object{"output_tokens": thinking + figure(t, "output"), "output_tokens_details": object{"thinking_tokens": thinking}}
	tier := drawTier.Draw(t, "tier")
	usage := object{"service_tier": tier}
	start, end := object{"service_tier": tier, "input_tokens": 0, "output_tokens": 1}, object{}
	for name, value := range output {
		usage[name], end[name] = value, value
	}
	for name, value := range input {
		usage[name] = value
		where := rapid.SampledFrom([]string{"start", "end", "both"}).Draw(t, name)
		if where != "end" {
			start[name] = value
		}
		if where != "start" {
			end[name] = value
		} else if _, number := value.(int); number && name != "cache_creation_input_tokens" && rapid.Bool().Draw(t, "as 0") {
			end[name] = 0
		}
	}
	message := func(usage object) object {
		return object{"id": "msg-1", "type": "message", "model": "m-1", "content": []object{{"type": "text", "text": "hello"}}, "usage": usage}
	}
	events := []object{
		{"type": "message_start", "message": message(start)},
		{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": "hello"}},
		{"type": "message_delta", "delta": object{"stop_reason": "end_turn"}, "usage": end},
		{"type": "message_stop"},
	}
	twice := []object{events[0], events[2], events[2], events[3]} // the final figures again change nothing
	return message(usage).String(), []string{eventStream(events...), eventStream(twice...)}
}

// generated draws one of Gemini's answers. Each event of a stream tells the figures so far.
func generated(t *rapid.T) (body string, streams []string) {
	cached, thoughts, tools := figure(t, "cached"), figure(t, "thoughts"), figure(t, "tools")
	prompt, candidates := figure(t, "prompt")+cached, figure(t, "candidates")
	usage := object{
		"promptTokenCount": prompt, "cachedContentTokenCount": cached, "toolUsePromptTokenCount": tools, "candidatesTokenCount": candidates,
		"thoughtsTokenCount": thoughts, "totalTokenCount": prompt + tools + candidates + thoughts, "serviceTier": drawTier.Draw(t, "tier"),
	}
	event := func(finish any, usage object) object {
		candidate := object{"content": object{"parts": []object{{"text": "hello"}}}}
		if finish != nil {
			candidate["finishReason"] = finish
			candidate["groundingMetadata"] = object{"webSearchQueries": []string{"a", "b"}}
		}
		return object{"candidates": []object{candidate}, "usageMetadata": usage, "modelVersion": "gemini-3-pro", "responseId": "g-1"}
	}
	soFar, whole := event(nil, object{"promptTokenCount": prompt, "totalTokenCount": prompt}), event("STOP", usage)
	return whole.String(), []string{eventStream(soFar, whole), eventStream(whole), fmt.Sprintf("[%s,\n%s]", soFar, whole)}
}

// TestStreamedIsReadLikeTheBody: an answer has the same usage, state, tier and model whether it is streamed or not, and wherever a
// stream may state its figures.
func TestStreamedIsReadLikeTheBody(t *testing.T) {
	t.Parallel()
	for protocol, draw := range map[string]func(*rapid.T) (string, []string){
		"chat": chats, "completions": chats, "responses": responses, "messages": messages, "gemini": generated,
	} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			endpoint, ok := EndpointOf(protocol)
			require.True(t, ok)
			rapid.Check(t, func(t *rapid.T) {
				body, streams := draw(t)
				want, err := endpoint.ReadUsage([]byte(body))
				require.NoError(t, err, body)
				require.False(t, want.Usage.Negative())
				require.Contains(t, []ledger.UsageState{ledger.UsageReported, ledger.UsageReportedZero, ledger.UsageInconsistent}, want.State)
				for _, stream := range streams {
					got, err := endpoint.ReadUsage([]byte(stream))
					require.NoError(t, err, stream)
					require.Equal(t, want.Reading, got.Reading, "%s\n%s", body, stream)
					require.Equal(t, want.Tier, got.Tier, stream)
					require.Equal(t, want.Model, got.Model, stream)
				}
			})
		})
	}
}
