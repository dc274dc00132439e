package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/system"
)

const messagesPath = "/v1/messages"

// withClaude is a system whose simulator is Anthropic, too.
func withClaude(t *testing.T) *system.System {
	t.Helper()
	return system.New(t, system.Options{
		Limits: everyTier, Gateways: 1, Settlers: 1,
		Providers: `  anthropic: {protocol: anthropic, base_url: "${TOLLGATE_SIM_URL}/v1", api_key_env: TOLLGATE_SIM_KEY}`,
		Models:    "  claude-haiku-4-5: {provider: anthropic}\n  smart: {provider: anthropic, upstream_model: claude-opus-4-5}",
	})
}

// claude is a message's request; more are fields of the body, header pairs of name and value.
func claude(key, model string, stream bool, more string, header ...string) system.Request {
	r := system.Request{
		Key: key, Path: messagesPath, Header: map[string]string{"Anthropic-Version": "2023-06-01"},
		Body: fmt.Sprintf(`{"model":%q,"max_tokens":60,"stream":%t,"metadata":{"user_id":"ada"},"messages":[{"role":"user","content":"Say hello."}]%s}`, model, stream, more),
	}
	for i := 0; i < len(header); i += 2 {
		r.Header["X-Sim-"+header[i]] = header[i+1]
	}
	return r
}

// ownOfMessage is what differs from message to message.
var ownOfMessage = regexp.MustCompile(`"(id|request_id)":"[^"]*"`)

// Messages arrive byte for byte as from the provider itself, and what each used and cost is in the ledger as in the provider's
// books: caches, thinking and tools, plain and streamed, and on an alias.
func TestMessagesAgainstTheBooks(t *testing.T) {
	t.Parallel()
	s := withClaude(t)
	key := s.KnownKey(system.App)
	tools := `,"tools":[{"name":"rate","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}`
	var requests []system.Request
	for _, stream := range []bool{false, true} {
		requests = append(requests,
			claude(key, "claude-haiku-4-5", stream, ""),
			claude(key, "claude-haiku-4-5", stream, tools+`,"thinking":{"type":"adaptive"}`),
			claude(key, "claude-haiku-4-5", stream, "", "Prompt-Tokens", "9000", "Cached-Tokens", "4000", "Cache-Write-5m", "3000", "Cache-Write-1h", "500"),
			claude(key, "claude-haiku-4-5", stream, "", "Finish", "refusal", "Completion-Tokens", "3"),
			claude(key, "claude-haiku-4-5", stream, "", "Zero-Usage", "true"),
			claude(key, "claude-haiku-4-5", stream, "", "Status", "529"),
			claude(key, "claude-haiku-4-5", stream, "", "Error-After", "5"),
		)
	}
	const rounds = 20
	for _, r := range requests {
		direct := s.Send(t.Context(), s.Sim.URL, r)
		for _, a := range system.Load(rounds, 8, func(int) system.Answer { return s.Send(t.Context(), s.Gateways[0].URL, r) }) {
			require.NoError(t, a.Err)
			require.Equal(t, direct.Status, a.Status)
			require.Equal(t, ownOfMessage.ReplaceAllString(string(direct.Body), ""), ownOfMessage.ReplaceAllString(string(a.Body), ""))
		}
	}
	require.True(t, s.Send(t.Context(), s.Gateways[0].URL, claude(key, "smart", true, "")).Passed())
	s.Check()
	require.EqualValues(t, 11*rounds+1, s.Int(`SELECT count(*) FROM finance.requests WHERE usage_state IN ('reported', 'zero') AND end_user = 'ada' AND finish = 'OK'`))
	require.EqualValues(t, rounds, s.Int(`SELECT count(*) FROM finance.requests WHERE usage_state = 'estimated' AND finish = 'UPSTREAM_FAILED'`))
	require.EqualValues(t, 2*rounds*3500, s.Int(`SELECT sum(cache_write_tokens)::bigint FROM finance.requests WHERE usage_state = 'reported'`))
	require.EqualValues(t, 2*rounds*10, s.Int(`SELECT sum(reasoning_tokens)::bigint FROM finance.requests WHERE usage_state = 'reported'`))
}

// A message that its caller leaves, or that breaks off, is charged its input as told and its output as streamed, and marked.
func TestMessagesThatBreakOff(t *testing.T) {
	t.Parallel()
	s := withClaude(t)
	key := s.KnownKey(system.App)
	for _, header := range [][]string{{"Cut-After", "0"}, {"Cut-After", "7"}, {"No-Done", "true"}} {
		r := claude(key, "claude-haiku-4-5", true, "", header...)
		for _, a := range system.Load(10, 5, func(int) system.Answer { return s.Send(t.Context(), s.Gateways[0].URL, r) }) {
			require.False(t, a.Passed(), "%v: %s", header, a)
			require.NotContains(t, string(a.Body), "message_stop")
		}
	}
	left := claude(key, "claude-haiku-4-5", true, "", "Chunk-Delay", "1m", "Prompt-Tokens", "333")
	for range 10 {
		leaveMessage(t, s.Gateways[0].URL, left)
	}
	s.Check()
	require.EqualValues(t, 10, s.Int(`SELECT count(*) FROM finance.requests WHERE usage_state = 'estimated' AND finish = 'CLIENT_GONE' AND input_tokens = 333`))
	require.EqualValues(t, 10, s.Int(`SELECT count(*) FROM finance.requests WHERE usage_state = 'reported' AND finish = 'UPSTREAM_CUT'`), "the figures had come, the stop had not")
}

// leaveMessage reads the beginning of a stream, its first text included, and leaves.
func leaveMessage(t *testing.T, url string, r system.Request) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+r.Path, strings.NewReader(r.Body))
	require.NoError(t, err)
	req.Header.Set("X-Api-Key", r.Key)
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	seen := ""
	for buffer := make([]byte, 512); !strings.Contains(seen, "text_delta"); {
		n, err := res.Body.Read(buffer)
		seen += string(buffer[:n])
		if err == io.EOF {
			t.Fatalf("the stream ended: %s", seen)
		}
		require.NoError(t, err)
	}
}

// Counting tokens is free: it leaves nothing in the ledger and nothing in the provider's books.
func TestCountTokensIsFree(t *testing.T) {
	t.Parallel()
	s := withClaude(t)
	key := s.KnownKey(system.App)
	r := claude(key, "smart", false, "")
	r.Path = messagesPath + "/count_tokens"
	r.Body = `{"model":"smart","messages":[{"role":"user","content":"Say hello."}]}`
	for _, a := range system.Load(20, 4, func(int) system.Answer { return s.Send(t.Context(), s.Gateways[0].URL, r) }) {
		require.True(t, a.Passed(), a.String())
		require.Contains(t, string(a.Body), `"input_tokens":`)
		require.Empty(t, a.ID)
	}
	s.Check()
	require.Zero(t, s.Int(`SELECT count(*) FROM reservations`))
	totals, err := s.Sim.Totals(t.Context())
	require.NoError(t, err)
	require.Zero(t, totals.Requests)
	require.EqualValues(t, 20, totals.Calls)
}
