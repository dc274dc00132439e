package provider

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

func TestParseAnthropicRefuses(t *testing.T) {
	t.Parallel()
	const least = `{"model":"m","messages":[],"max_tokens":9`
	for name, c := range map[string]struct {
		body, param, message string
	}{
		"empty":                {``, "", "not valid JSON"},
		"list":                 {`[]`, "", "not a JSON object"},
		"no model":             {`{"messages":[],"max_tokens":9}`, "model", "must provide a model"},
		"model is a number":    {`{"model":4,"messages":[],"max_tokens":9}`, "model", "must be a string, not 4"},
		"model twice":          {least + `,"model":"dear"}`, "model", "twice"},
		"no messages":          {`{"model":"m","max_tokens":9}`, "messages", "list of messages"},
		"messages is text":     {`{"model":"m","messages":"hi","max_tokens":9}`, "messages", "list of messages"},
		"no max_tokens":        {`{"model":"m","messages":[]}`, "max_tokens", "how many tokens"},
		"null max_tokens":      {`{"model":"m","messages":[],"max_tokens":null}`, "max_tokens", "how many tokens"},
		"max_tokens -1":        {`{"model":"m","messages":[],"max_tokens":-1}`, "max_tokens", "whole number from 0"},
		"max_tokens 1.5":       {`{"model":"m","messages":[],"max_tokens":1.5}`, "max_tokens", "not 1.5"},
		"max_tokens text":      {`{"model":"m","messages":[],"max_tokens":"9"}`, "max_tokens", "whole number"},
		"max_tokens 1e400":     {`{"model":"m","messages":[],"max_tokens":1e400}`, "max_tokens", "not 1e400"},
		"max_tokens twice":     {least + `,"max_tokens":1}`, "max_tokens", "twice"},
		"escaped name":         {least + `,"str\u0065am":true}`, "stream", "without escapes"},
		"stream is text":       {least + `,"stream":"yes"}`, "stream", "must be true or false"},
		"metadata is text":     {least + `,"metadata":"eve"}`, "metadata", "must be an object"},
		"user is a number":     {least + `,"metadata":{"user_id":7}}`, "metadata.user_id", "must be a string"},
		"user twice":           {least + `,"metadata":{"user_id":"a","user_id":"b"}}`, "user_id", "twice"},
		"user of great length": {least + `,"metadata":{"user_id":"` + strings.Repeat("u", MaxName+1) + `"}}`, "metadata.user_id", "at most 512 bytes"},
		"nested":               {least + `,"x":` + strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting) + `}`, "", "nests deeper"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Messages.Parse([]byte(c.body))
			var bad *RequestError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, c.param, bad.Param)
			require.Contains(t, bad.Message, c.message)
			require.Less(t, len(bad.Error()), 200, "a caller's text is not told back at length")
		})
	}
}

func TestParseAnthropicReads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		more string
		want read
	}{
		"least":           {``, read{Output: 9}},
		"stream":          {`,"stream":true`, read{Output: 9, Stream: true}},
		"nulls":           {`,"stream":null,"metadata":null`, read{Output: 9}},
		"user":            {`,"metadata":{"user_id":"ada","x":1}`, read{Output: 9, User: "ada"}},
		"null user":       {`,"metadata":{"user_id":null}`, read{Output: 9}},
		"not OpenAI's":    {`,"user":"eve","n":7`, read{Output: 9}},
		"cache of 5 min":  {`,"cache_control":{"type":"ephemeral","ttl":"5m"}`, read{Output: 9}},
		"cache of 1 h":    {`,"cache_control":{"type":"ephemeral","ttl":"1h"}`, read{Output: 9, Also: []ledger.Class{ledger.ClassCacheWrite1h}}},
		"1 h in a text":   {`,"system":"say \"1h\""`, read{Output: 9}},
		"unknown fields":  {`,"thinking":{"type":"adaptive"},"container":{"id":"c"},"speed":"fast"`, read{Output: 9}},
		"thinking counts": {`,"thinking":{"type":"enabled","budget_tokens":8}`, read{Output: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := `{"model":"m","messages":[],"max_tokens":9` + c.more + `}`
			got, err := Messages.Parse([]byte(body))
			require.NoError(t, err)
			c.want.UsageAsked, c.want.Input = true, readOf(got).Input
			require.Positive(t, c.want.Input)
			require.Equal(t, c.want, readOf(got))
			require.Equal(t, []any{"m", Messages, body}, []any{got.Model, got.Endpoint, string(got.body)})
			sent, err := got.UpstreamBody("m", "")
			require.NoError(t, err)
			require.Equal(t, body, string(sent), "nothing is added")
			sent, err = got.UpstreamBody("claude-1", "")
			require.NoError(t, err)
			require.Equal(t, strings.Replace(body, `"m"`, `"claude-1"`, 1), string(sent))
		})
	}
	r, err := Messages.Parse([]byte(`{"model":"m","messages":[],"max_tokens":0}`))
	require.NoError(t, err, "it fills a cache")
	require.Zero(t, readOf(r).Output)
}

func TestParseCountTokens(t *testing.T) {
	t.Parallel()
	r, err := CountTokens.Parse([]byte(`{"model":"m","messages":[]}`))
	require.NoError(t, err, "an answer without tokens has no bound")
	require.Equal(t, "m", r.Model)
	require.Zero(t, readOf(r).Output)
	for _, body := range []string{`{"messages":[]}`, `{"model":"m"}`, `{"model":"m","model":"n","messages":[]}`, `{`} {
		_, err := CountTokens.Parse([]byte(body))
		require.Error(t, err, body)
	}
}

func TestReadAnthropicUsage(t *testing.T) {
	t.Parallel()
	reported := func(u ledger.Usage) Reading { return Reading{Usage: u, State: ledger.UsageReported} }
	inconsistent := func(u ledger.Usage) Reading { return Reading{Usage: u, State: ledger.UsageInconsistent} }
	for name, c := range map[string]struct {
		text string
		want Reading
	}{
		"plain":                  {`{"input_tokens":10,"output_tokens":5}`, reported(ledger.Usage{Input: 10, Output: 5})},
		"nulls":                  {`{"input_tokens":10,"output_tokens":5,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"cache_creation":null,"output_tokens_details":null}`, reported(ledger.Usage{Input: 10, Output: 5})},
		"cache is no input":      {`{"input_tokens":10,"output_tokens":5,"cache_read_input_tokens":900,"cache_creation_input_tokens":70}`, reported(ledger.Usage{Input: 10, CachedInput: 900, CacheWrite5m: 70, Output: 5})},
		"split":                  {`{"input_tokens":0,"output_tokens":5,"cache_creation_input_tokens":70,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":40}}`, reported(ledger.Usage{CacheWrite5m: 30, CacheWrite1h: 40, Output: 5})},
		"all for an hour":        {`{"input_tokens":1,"output_tokens":5,"cache_creation_input_tokens":70,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":70}}`, reported(ledger.Usage{Input: 1, CacheWrite1h: 70, Output: 5})},
		"split without sum":      {`{"input_tokens":1,"output_tokens":5,"cache_creation":{"ephemeral_1h_input_tokens":70}}`, reported(ledger.Usage{Input: 1, CacheWrite1h: 70, Output: 5})},
		"thinking":               {`{"input_tokens":1,"output_tokens":50,"output_tokens_details":{"thinking_tokens":30}}`, reported(ledger.Usage{Input: 1, Output: 20, Reasoning: 30})},
		"whole float":            {`{"input_tokens":10.0,"output_tokens":1e1}`, reported(ledger.Usage{Input: 10, Output: 10})},
		"zero":                   {`{"input_tokens":0,"output_tokens":0}`, Reading{State: ledger.UsageReportedZero}},
		"largest":                {`{"input_tokens":1000000000000,"output_tokens":0}`, reported(ledger.Usage{Input: 1e12})},
		"more thinking than out": {`{"input_tokens":1,"output_tokens":5,"output_tokens_details":{"thinking_tokens":30}}`, inconsistent(ledger.Usage{Input: 1, Output: 5})},
		"thinking is text":       {`{"input_tokens":1,"output_tokens":5,"output_tokens_details":{"thinking_tokens":"3"}}`, inconsistent(ledger.Usage{Input: 1, Output: 5})},
		"split above its sum":    {`{"input_tokens":1,"output_tokens":5,"cache_creation_input_tokens":3,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":40}}`, inconsistent(ledger.Usage{Input: 1, CacheWrite5m: 30, CacheWrite1h: 40, Output: 5})},
		"split below its sum":    {`{"input_tokens":1,"output_tokens":5,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":40}}`, inconsistent(ledger.Usage{Input: 1, CacheWrite5m: 60, CacheWrite1h: 40, Output: 5})},
		"split is negative":      {`{"input_tokens":1,"output_tokens":5,"cache_creation_input_tokens":7,"cache_creation":{"ephemeral_5m_input_tokens":-1}}`, inconsistent(ledger.Usage{Input: 1, CacheWrite5m: 7, Output: 5})},
		"absent":                 {``, Reading{}},
		"null":                   {`null`, Reading{}},
		"text":                   {`"12"`, Reading{}},
		"list":                   {`[1]`, Reading{}},
		"empty":                  {`{}`, Reading{}},
		"no input":               {`{"output_tokens":5}`, Reading{}},
		"no output":              {`{"input_tokens":5}`, Reading{}},
		"negative":               {`{"input_tokens":-1,"output_tokens":5}`, Reading{}},
		"fraction":               {`{"input_tokens":1.5,"output_tokens":5}`, Reading{}},
		"huge":                   {`{"input_tokens":5,"output_tokens":9223372036854775807}`, Reading{}},
		"count is text":          {`{"input_tokens":"5","output_tokens":5}`, Reading{}},
		"cache is negative":      {`{"input_tokens":5,"output_tokens":5,"cache_read_input_tokens":-1}`, Reading{}},
		"another protocol's":     {`{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}`, Reading{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := `{"id":"msg_1","model":"m-1"}`
			if c.text != "" {
				body = `{"id":"msg_1","model":"m-1","usage":` + c.text + `}`
			}
			_, got, err := Messages.ReadAnswer(&http.Response{Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1})
			require.NoError(t, err)
			require.Equal(t, Answer{Reading: c.want, Model: "m-1", UpstreamID: "msg_1", Finish: ledger.ReasonOK}, got)
		})
	}
}
