package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

// own is what differs from answer to answer: its id and when it was made.
var own = regexp.MustCompile(`"id":"[^"]*"|"created":\d+`)

func normal(body []byte) string { return string(own.ReplaceAll(body, nil)) }

// streams are requests whose answers hold every shape of stream, sent with the fields a caller may set.
func streams(asked bool) map[string]string {
	options := ""
	if asked {
		options = `,"stream_options":{"include_usage":true}`
	}
	return map[string]string{
		"/v1/chat/completions": `{"model":"gpt-4o-mini","stream":true,"n":2,"max_tokens":60,"messages":[{"role":"user","content":"count"}]` + options + `}`,
		"/v1/completions":      `{"model":"gpt-3.5-turbo-instruct","stream":true,"max_tokens":60,"prompt":"count"` + options + `}`,
	}
}

// Streams of an instant upstream arrive whole, all of them, byte for byte as from the provider itself.
func TestNoStreamIsCut(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1, Settlers: 1})
	key := s.KnownKey(system.App)
	const n = 2000
	for path, body := range streams(true) {
		r := system.Request{Key: key, Path: path, Body: body}
		direct := s.Send(t.Context(), s.Sim.URL, r)
		require.True(t, direct.Passed(), direct.String())
		want := normal(direct.Body)
		require.Contains(t, want, `"usage":{"prompt_tokens"`)
		require.True(t, strings.HasSuffix(want, "data: [DONE]\n\n"))
		for i, a := range system.Load(n, 16, func(int) system.Answer { return s.Send(t.Context(), s.Gateways[0].URL, r) }) {
			require.True(t, a.Passed(), "stream %d: %s", i, a)
			require.Equal(t, want, normal(a.Body), "stream %d", i)
		}
	}
	// Who has not asked for the usage chunk does not get it. What remains of asking the provider for it is "usage":null.
	for path, body := range streams(false) {
		r := system.Request{Key: key, Path: path, Body: body}
		direct := s.Send(t.Context(), s.Sim.URL, r)
		a := s.Send(t.Context(), s.Gateways[0].URL, r)
		require.True(t, a.Passed(), a.String())
		require.Equal(t, normal(direct.Body), strings.ReplaceAll(normal(a.Body), `,"usage":null`, ""))
	}
	// Plain answers and their errors are the provider's bytes, too.
	for _, header := range []map[string]string{{}, {"X-Sim-Status": "500"}, {"X-Sim-Status": "429"}} {
		r := system.Request{Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "Hello", 9, false), Header: header}
		direct, a := s.Send(t.Context(), s.Sim.URL, r), s.Send(t.Context(), s.Gateways[0].URL, r)
		require.Equal(t, direct.Status, a.Status)
		require.Equal(t, normal(direct.Body), normal(a.Body))
	}
	s.Check()
}

// An answer that breaks off upstream never looks complete: not to a client that reads bytes, not to the SDK.
func TestCutAnswersAreErrors(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1, Settlers: 1})
	key := s.KnownKey(system.App)
	client := sdk(t, s.Gateways[0].URL, key)
	for _, c := range []struct {
		name   string
		stream bool
		header map[string]string
	}{
		{"stream cut before its first byte", true, map[string]string{"X-Sim-Cut-After": "0"}},
		{"stream cut after the first chunk", true, map[string]string{"X-Sim-Cut-After": "1"}},
		{"stream cut after many chunks", true, map[string]string{"X-Sim-Cut-After": "19"}},
		{"stream cut slowly", true, map[string]string{"X-Sim-Cut-After": "5", "X-Sim-Chunk-Delay": "5ms"}},
		{"stream that ends without DONE", true, map[string]string{"X-Sim-No-Done": "true"}},
		{"plain answer cut in its body", false, map[string]string{"X-Sim-Cut-After": "7"}},
		{"plain answer cut before its first byte", false, map[string]string{"X-Sim-Cut-After": "0"}},
	} {
		r := system.Request{
			Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "Hello", 40, c.stream), Header: c.header,
		}
		for _, a := range system.Load(40, 8, func(int) system.Answer { return s.Send(t.Context(), s.Gateways[0].URL, r) }) {
			require.False(t, a.Passed(), "%s: %s", c.name, a)
			require.False(t, bytes.HasSuffix(a.Body, []byte("[DONE]\n\n")), c.name)
		}
		options := []option.RequestOption{}
		for name, value := range c.header {
			options = append(options, option.WithHeader(name, value))
		}
		params := openai.ChatCompletionNewParams{Model: "gpt-4o-mini", Messages: message("Hello"), MaxTokens: openai.Int(40)}
		if c.stream {
			stream := client.Chat.Completions.NewStreaming(t.Context(), params, options...)
			for stream.Next() {
			}
			require.Error(t, stream.Err(), c.name)
			continue
		}
		_, err := client.Chat.Completions.New(t.Context(), params, options...)
		require.Error(t, err, c.name)
	}
	// The connections that were not cut serve on.
	ok := s.Send(t.Context(), s.Gateways[0].URL, system.Request{Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "Hello", 40, true)})
	require.True(t, ok.Passed(), ok.String())
	s.Check()
	require.Zero(t, s.Int(`SELECT count(*) FROM reservations WHERE state = 'settled' AND finish = 'OK'`)-1, "only the last was complete")
}

// A caller who leaves in mid-stream is charged what was generated until then, and marked.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1, Settlers: 1})
	key := s.KnownKey(system.App)
	client := sdk(t, s.Gateways[0].URL, key)
	params := openai.ChatCompletionNewParams{Model: "gpt-4o-mini", Messages: message("Hello"), MaxTokens: openai.Int(40)}
	left := make(chan error, 10)
	for range cap(left) {
		go func() {
			// So slow that none is over before its caller leaves.
			stream := client.Chat.Completions.NewStreaming(t.Context(), params, option.WithHeader("X-Sim-Chunk-Delay", "1s"))
			for range 5 {
				if !stream.Next() {
					left <- errors.Join(errors.New("the stream ended"), stream.Err(), stream.Close())
					return
				}
			}
			left <- stream.Close()
		}()
	}
	for range cap(left) {
		require.NoError(t, <-left)
	}
	s.Check()
	require.EqualValues(t, 10, s.Int(`SELECT count(*) FROM finance.requests WHERE usage_state = 'estimated' AND finish = 'CLIENT_GONE'`))
}

// A gateway that is told to stop finishes the streams it has begun and flushes their events.
func TestTermInMidStream(t *testing.T) {
	t.Parallel()
	s := system.New(t, system.Options{Limits: everyTier, Gateways: 1, Settlers: 1})
	key := s.KnownKey(system.App)
	r := system.Request{
		Key: key, Path: "/v1/chat/completions", Body: system.ChatBody("gpt-4o-mini", "Hello", 40, true),
		Header: map[string]string{"X-Sim-Chunk-Delay": "400ms"},
	}
	const n = 8
	answers := make(chan []system.Answer, 1)
	go func() {
		answers <- system.Load(n, n, func(int) system.Answer { return s.Send(t.Context(), s.Gateways[0].URL, r) })
	}()
	s.Eventually(system.Patience, "all streams have begun", func() error {
		totals, err := s.Sim.Totals(t.Context())
		if err == nil && totals.Calls != n {
			err = fmt.Errorf("%d of %d", totals.Calls, n)
		}
		return err
	})
	require.Zero(t, s.Gateways[0].Term())
	for _, a := range <-answers {
		require.True(t, a.Passed(), a.String())
	}
	refused := s.Send(t.Context(), s.Gateways[0].URL, r)
	require.Error(t, refused.Err)
	s.Check()
	require.EqualValues(t, n, s.Int(`SELECT count(*) FROM finance.requests WHERE usage_state = 'reported'`))
	require.NotEqual(t, http.StatusOK, refused.Status)
}
