package provider

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// The digest of a request stays what it is when the next body is read over its own.
func TestDigestOutlivesItsBody(t *testing.T) {
	t.Parallel()
	body := []byte(`{"model":"gpt-5","user":"eve","previous_response_id":"resp_1","service_tier":"flex","stream":true,"input":"hi","tools":[{"type":"web_search"}]}`)
	request, err := Responses.Parse(body)
	require.NoError(t, err)
	digest := request.Digest()
	for i := range body {
		body[i] = 'x'
	}
	require.Equal(t, []any{"gpt-5", "eve", "resp_1", ledger.ServiceFlex, true, ledger.Calls{WebSearch: usualCalls}},
		[]any{digest.Model, digest.User, digest.Previous, digest.Tier(), digest.Stream, digest.Calls()})
	require.True(t, digest.Unchanged("gpt-5", ""))
}

// TestCallsAndTierOfARequest reads what a request may be billed for beside its tokens.
func TestCallsAndTierOfARequest(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct {
		calls ledger.Calls
		tier  ledger.ServiceTier
	}{
		`{}`:                          {},
		`{"service_tier":"priority"}`: {tier: ledger.ServicePriority},
		`{"service_tier":"flex"}`:     {tier: ledger.ServiceFlex},
		`{"service_tier":"auto"}`:     {},
		`{"service_tier":7}`:          {},
		`{"tools":[{"type":"function","name":"web_search"}]}`:                         {},
		`{"model":"gpt-4o-mini-search-preview"}`:                                      {calls: ledger.Calls{WebSearch: 1}},
		`{"web_search_options":{}}`:                                                   {calls: ledger.Calls{WebSearch: 1}},
		`{"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":3}]}`: {calls: ledger.Calls{WebSearch: 3}},
		`{"tools":[{"type":"web_search_preview"},{"type":"file_search"},{"type":"code_interpreter"}]}`: {
			calls: ledger.Calls{WebSearch: usualCalls, FileSearch: usualCalls, CodeInterpreter: 1},
		},
		`{"max_tool_calls":2,"tools":[{"type":"web_search"},{"type":"file_search"}]}`: {calls: ledger.Calls{WebSearch: 2, FileSearch: 2}},
		`{"tools":[{"googleSearch":{}}]}`:                                             {calls: ledger.Calls{WebSearch: usualCalls}},
		`{"max_tool_calls":-1,"tools":[{"type":"web_search","max_uses":1e300}]}`:      {calls: ledger.Calls{WebSearch: usualCalls}},
	} {
		found, err := fields([]byte(body))
		require.NoError(t, err)
		r := &Request{found: found, Model: found["model"].Str}
		require.Equal(t, want.calls, r.Calls(), body)
		require.Equal(t, want.tier, r.Tier(), body)
	}
}
