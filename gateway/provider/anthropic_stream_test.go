package provider

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

// sse is one event as the provider writes it, blanks at the end of the data included.
func sse(name, data string) string { return "event: " + name + "\ndata: " + data + "  \n\n" }

func messageStart(usage string) string {
	return sse("message_start", `{"type":"message_start","message":{"model":"claude-9","id":"msg_7","type":"message","role":"assistant","content":[],"stop_reason":null,"usage":`+usage+`}}`)
}

func textDelta(text string) string {
	return sse("content_block_delta", fmt.Sprintf(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%q}}`, text))
}

func messageDelta(reason, usage string) string {
	return sse("message_delta", `{"type":"message_delta","delta":{"stop_reason":"`+reason+`","stop_sequence":null},"usage":`+usage+`}`)
}

const (
	startUsage = `{"input_tokens":700,"cache_creation_input_tokens":30,"cache_read_input_tokens":400,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20},"output_tokens":2,"service_tier":"standard"}`
	endUsage   = `{"output_tokens":60,"output_tokens_details":{"thinking_tokens":25}}`
	fullUsage  = `{"input_tokens":1500,"cache_creation_input_tokens":30,"cache_read_input_tokens":400,"output_tokens":60,"server_tool_use":{"web_search_requests":1}}`
)

var (
	ping           = sse("ping", `{"type": "ping"}`)
	blockStart     = sse("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
	blockStop      = sse("content_block_stop", `{"type":"content_block_stop","index":0}`)
	thinkingStart  = sse("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`)
	thinkingDelta  = sse("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Let me see what that may be."}}`)
	signatureDelta = sse("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2lnbmF0dXJl"}}`)
	toolStart      = sse("content_block_start", `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"rate","input":{}}}`)
	toolDelta      = sse("content_block_delta", `{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"from\": \"USD\"}"}}`)
	messageStop    = sse("message_stop", `{"type":"message_stop"}`)
	overloaded     = sse("error", `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`)
)

// message is a whole stream with thinking, text and a tool.
func message() string {
	return messageStart(startUsage) + thinkingStart + ping + thinkingDelta + signatureDelta + blockStop + blockStart + textDelta("Hello, é 漢 🙂") +
		blockStop + toolStart + toolDelta + blockStop + messageDelta("tool_use", endUsage) + messageStop
}

func relayMessage(t require.TestingT, text string) (string, Answer) {
	s := &sink{}
	answer, err := Messages.RelayStream(s, strings.NewReader(text), Passing{})
	require.NoError(t, err)
	require.False(t, s.unflushed)
	return s.String(), answer
}

// BerriAI/litellm #11789, maximhq/bifrost #3451, envoyproxy/ai-gateway #2290, apache/apisix #13662: what the first and the last
// event tell of usage is merged, and each figure counts once.
//
// Long: one row a kind of stream.
func TestRelayMessage(t *testing.T) {
	t.Parallel()
	start, end := messageStart(startUsage), messageDelta("end_turn", endUsage)+messageStop
	cached := ledger.Usage{Input: 700, CachedInput: 400, CacheWrite5m: 10, CacheWrite1h: 20, Output: 35, Reasoning: 25}
	done := func(r Reading, events int64) Answer {
		return Answer{Reading: r, Model: "claude-9", UpstreamID: "msg_7", Events: events, FirstByte: true, Finish: ledger.ReasonOK}
	}
	reported := func(u ledger.Usage, events int64) Answer {
		return done(Reading{Usage: u, State: ledger.UsageReported}, events)
	}
	failed := func(u ledger.Usage, events int64) Answer {
		a := done(Reading{Usage: u, State: ledger.UsageEstimated}, events)
		a.Finish = ledger.ReasonUpstreamFailed
		return a
	}
	changed := func(with func(u *ledger.Usage)) ledger.Usage {
		u := cached
		with(&u)
		return u
	}
	for name, c := range map[string]struct {
		text string
		want Answer
	}{
		"every kind of block":      {message(), reported(cached, 4)},
		"final figures count":      {start + textDelta("a") + messageDelta("end_turn", fullUsage) + messageStop, reported(ledger.Usage{Input: 1500, CachedInput: 400, CacheWrite5m: 10, CacheWrite1h: 20, Output: 60, Calls: ledger.Calls{WebSearch: 1}}, 1)},
		"two final figures":        {start + messageDelta("", `{"output_tokens":9}`) + end, reported(cached, 0)},
		"zeros are left out":       {start + messageDelta("end_turn", `{"input_tokens":0,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,"output_tokens":5}`) + messageStop, reported(ledger.Usage{Input: 700, CachedInput: 400, CacheWrite5m: 10, CacheWrite1h: 20, Output: 5}, 0)},
		"usage at the end alone":   {messageStart(`null`) + messageDelta("end_turn", fullUsage) + messageStop, reported(ledger.Usage{Input: 1500, CachedInput: 400, CacheWrite5m: 30, Output: 60, Calls: ledger.Calls{WebSearch: 1}}, 0)},
		"a refusal":                {start + textDelta("I can") + messageDelta("refusal", `{"output_tokens":4}`) + messageStop, reported(changed(func(u *ledger.Usage) { u.Output, u.Reasoning = 4, 0 }), 1)},
		"later cache of an hour":   {messageStart(`{"input_tokens":1,"cache_creation_input_tokens":20,"cache_creation":{"ephemeral_1h_input_tokens":20},"output_tokens":1}`) + messageDelta("end_turn", `{"cache_creation_input_tokens":50,"output_tokens":2}`) + messageStop, reported(ledger.Usage{Input: 1, CacheWrite1h: 50, Output: 2}, 0)},
		"no usage":                 {messageStart(`null`) + textDelta("a") + messageDelta("end_turn", `null`) + messageStop, done(Reading{}, 1)},
		"no start":                 {textDelta("a") + end, Answer{Events: 1, FirstByte: true, Finish: ledger.ReasonOK}},
		"no final figures":         {start + textDelta("a") + messageStop, done(Reading{Usage: changed(func(u *ledger.Usage) { u.Output, u.Reasoning = 2, 0 }), State: ledger.UsageEstimated}, 1)},
		"an error at once":         {overloaded, Answer{FirstByte: true, Finish: ledger.ReasonUpstreamFailed}},
		"an error in the middle":   {start + strings.Repeat(textDelta("a"), 40) + overloaded, failed(changed(func(u *ledger.Usage) { u.Output, u.Reasoning = 40, 0 }), 40)},
		"an error after the usage": {start + textDelta("a") + messageDelta("end_turn", endUsage) + overloaded, func() Answer { a := reported(cached, 1); a.Finish = ledger.ReasonUpstreamFailed; return a }()},
		"a text about an end":      {start + textDelta(`{"type":"message_stop"}`) + end, reported(cached, 1)},
		"a text about usage":       {start + textDelta(`"usage":{"input_tokens":9}`) + end, reported(cached, 1)},
		"type at the end":          {start + "data: {\"usage\":{\"output_tokens\":3},\"type\":\"message_delta\"}\n\n" + messageStop, reported(changed(func(u *ledger.Usage) { u.Output, u.Reasoning = 3, 0 }), 0)},
		"data without blanks":      {strings.ReplaceAll(message(), "data: ", "data:"), reported(cached, 4)},
		"crlf":                     {strings.ReplaceAll(message(), "\n", "\r\n"), reported(cached, 4)},
		"no names":                 {strings.ReplaceAll(message(), "event: ", ": "), reported(cached, 4)},
		"unknown events":           {start + sse("surprise", `{"type":"surprise","usage":{"output_tokens":1}}`) + ping + end, reported(cached, 0)},
		"stop without line end":    {start + messageDelta("end_turn", endUsage) + "data: {\"type\":\"message_stop\"}", reported(cached, 0)},
		"absurd figures":           {messageStart(`{"input_tokens":-1,"output_tokens":1}`) + end, done(Reading{}, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			passed, answer := relayMessage(t, c.text)
			require.Equal(t, c.text, passed, "byte for byte")
			answer.Output = 0
			require.Equal(t, c.want, answer)
		})
	}
}

// Where the final figures did not come, the output is what was streamed: text, thinking and the input of tools.
func TestStreamedMessageIsEstimated(t *testing.T) {
	t.Parallel()
	words := strings.Repeat("several words of text here ", 10)
	for name, delta := range map[string]string{
		"text":     fmt.Sprintf(`{"type":"text_delta","text":%q}`, words),
		"thinking": fmt.Sprintf(`{"type":"thinking_delta","thinking":%q}`, words),
		"tool":     fmt.Sprintf(`{"type":"input_json_delta","partial_json":%q}`, words),
	} {
		s := &sink{}
		text := messageStart(startUsage) + sse("content_block_delta", `{"type":"content_block_delta","index":0,"delta":`+delta+`}`)
		answer, err := Messages.RelayStream(s, strings.NewReader(text), Passing{})
		require.ErrorIs(t, err, ErrUpstreamCut, name)
		require.Equal(t, text, s.String())
		require.Equal(t, ledger.UsageEstimated, answer.State, name)
		require.Equal(t, ledger.Tokens(700), answer.Usage.Input, name)
		require.GreaterOrEqual(t, answer.Usage.Output, ledger.Tokens(50), name)
		require.LessOrEqual(t, answer.Usage.Output, ledger.Tokens(90), name)
		require.Equal(t, answer.Output, answer.Usage.Output, name)
	}
}

func TestRelayMessageCut(t *testing.T) {
	t.Parallel()
	reset := errors.New("connection reset")
	whole := message()
	for name, c := range map[string]struct {
		text string
		err  error
	}{
		"nothing":            {"", io.EOF},
		"no stop":            {strings.TrimSuffix(whole, messageStop), io.EOF},
		"half a stop":        {strings.TrimSuffix(whole, messageStop) + `data: {"type":"message_st`, io.EOF},
		"OpenAI's end":       {strings.TrimSuffix(whole, messageStop) + "data: [DONE]\n\n", io.EOF},
		"a text about ends":  {messageStart(startUsage) + textDelta(`"type":"message_stop"`), io.EOF},
		"only pings":         {ping, io.EOF},
		"reset":              {messageStart(startUsage), reset},
		"reset after stop":   {whole, reset},
		"reset in an event":  {messageStart(startUsage)[:50], reset},
		"no event stream":    {`{"type":"message"}`, io.EOF},
		"stop in a message":  {sse("x", `{"message":{"type":"message_stop"}}`), io.EOF},
		"error in a message": {sse("x", `{"message":{"type":"error"}}`), io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &sink{}
			answer, err := Messages.RelayStream(s, &pieces{[][]byte{[]byte(c.text)}, c.err, 0}, Passing{})
			require.ErrorIs(t, err, ErrUpstreamCut)
			require.Equal(t, ledger.ReasonUpstreamCut, answer.Finish)
			require.Equal(t, c.text, s.String(), "what has come is passed on")
		})
	}
}

// Figures that are cut anywhere are whole or not believed: a number that lost digits would be a smaller one.
func TestRelayMessageUsageCutAnywhere(t *testing.T) {
	t.Parallel()
	start, end := messageStart(startUsage), messageDelta("end_turn", fullUsage)
	want := ledger.Usage{Input: 1500, CachedInput: 400, CacheWrite5m: 10, CacheWrite1h: 20, Output: 60, Calls: ledger.Calls{WebSearch: 1}}
	for size := range len(end) {
		answer, err := Messages.RelayStream(&sink{}, iotest.TimeoutReader(strings.NewReader(start+end[:size])), Passing{})
		require.ErrorIs(t, err, ErrUpstreamCut)
		if answer.State == ledger.UsageReported {
			require.Equal(t, want, answer.Usage, "cut at %d", size)
			continue
		}
		require.Equal(t, ledger.UsageEstimated, answer.State, "cut at %d", size)
		require.Equal(t, ledger.Tokens(700), answer.Usage.Input, "cut at %d", size)
	}
	for size := range len(start) - 4 {
		answer, err := Messages.RelayStream(&sink{}, strings.NewReader(start[:size]), Passing{})
		require.ErrorIs(t, err, ErrUpstreamCut)
		require.Empty(t, answer.State, "cut at %d", size)
	}
}

func TestRelayMessageSplitAtEveryByte(t *testing.T) {
	t.Parallel()
	text := message()
	_, want := relayMessage(t, text)
	for at := range len(text) + 1 {
		s := &sink{}
		answer, err := Messages.RelayStream(s, &pieces{[][]byte{[]byte(text[:at]), []byte(text[at:])}, io.EOF, 0}, Passing{})
		require.NoError(t, err)
		require.Equal(t, text, s.String(), "split at %d", at)
		require.Equal(t, want, answer, "split at %d", at)
	}
}

// Any chunking of any stream passes on the same bytes and meters the same, and pings, unknown events and blanks change nothing.
func TestRelayMessageAnyChunking(t *testing.T) {
	t.Parallel()
	noise := []string{ping, ": comment\n\n", "\n", sse("later", `{"type":"later"}`), "event: x\n\n", "data:\n\n", "junk\n\n", "data: {\n\n"}
	rapid.Check(t, func(t *rapid.T) {
		parts := []string{messageStart(startUsage)}
		plain := parts[0]
		for range rapid.IntRange(0, 8).Draw(t, "blocks") {
			part := rapid.SampledFrom([]string{textDelta("a"), thinkingDelta, toolDelta, signatureDelta, blockStart, textDelta(strings.Repeat("long ", 5000))}).Draw(t, "block")
			plain += part
			parts = append(parts, rapid.SliceOfN(rapid.SampledFrom(noise), 0, 2).Draw(t, "noise")...)
			parts = append(parts, part)
		}
		end := rapid.SampledFrom([]string{messageDelta("end_turn", endUsage) + messageStop, overloaded, messageStop + "tail"}).Draw(t, "end")
		_, want := relayMessage(t, plain+end)
		text := strings.Join(parts, "") + end
		var cut [][]byte
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, 3000).Draw(t, "size"))
			cut, rest = append(cut, rest[:n]), rest[n:]
		}
		s := &sink{}
		got, err := Messages.RelayStream(s, &pieces{cut, io.EOF, 0}, Passing{})
		require.NoError(t, err)
		require.Equal(t, text, s.String())
		require.Equal(t, want, got)
	})
}

func TestRelayMessageCallerLeaves(t *testing.T) {
	t.Parallel()
	events := []string{messageStart(startUsage), textDelta("a"), textDelta("b"), messageDelta("end_turn", endUsage), messageStop}
	for failAt := 1; failAt <= len(events); failAt++ {
		for _, drain := range []bool{false, true} {
			var cut [][]byte
			for _, e := range events {
				cut = append(cut, []byte(e))
			}
			body := &pieces{cut, io.EOF, 0}
			answer, err := Messages.RelayStream(&sink{failAt: failAt}, body, Passing{Drain: func() bool { return drain }})
			require.NoError(t, err)
			require.Equal(t, ledger.ReasonClientGone, answer.Finish)
			if drain || failAt >= 4 {
				require.Equal(t, ledger.UsageReported, answer.State)
				require.Equal(t, ledger.Tokens(35), answer.Usage.Output)
				continue
			}
			require.Equal(t, failAt, body.reads, "the rest is not read")
			require.Equal(t, ledger.UsageEstimated, answer.State)
			require.Equal(t, ledger.Tokens(700), answer.Usage.Input)
			require.Equal(t, ledger.Tokens(2), answer.Usage.Output, "as the start says, and as many events")
		}
	}
}

func BenchmarkRelayMessage(b *testing.B) {
	text := messageStart(startUsage) + strings.Repeat(textDelta("token "), 100) + messageDelta("end_turn", endUsage) + messageStop
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	s := &sink{}
	for b.Loop() {
		s.Reset()
		if _, err := Messages.RelayStream(s, strings.NewReader(text), Passing{}); err != nil {
			b.Fatal(err)
		}
	}
}
