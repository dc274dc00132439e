package provider

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

func parsed(text string) gjson.Result { return gjson.Parse(text) }

func TestReadOpenAIUsage(t *testing.T) {
	t.Parallel()
	reported := func(u ledger.Usage) Reading { return Reading{Usage: u, State: ledger.UsageReported} }
	inconsistent := func(in, out ledger.Tokens) Reading {
		return Reading{Usage: ledger.Usage{Input: in, Output: out}, State: ledger.UsageInconsistent}
	}
	for name, c := range map[string]struct {
		text string
		want Reading
	}{
		"plain":                   {`{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}`, reported(ledger.Usage{Input: 10, Output: 5})},
		"no total":                {`{"prompt_tokens":10,"completion_tokens":5}`, reported(ledger.Usage{Input: 10, Output: 5})},
		"null total":              {`{"prompt_tokens":10,"completion_tokens":5,"total_tokens":null}`, reported(ledger.Usage{Input: 10, Output: 5})},
		"embeddings":              {`{"prompt_tokens":10,"total_tokens":10}`, reported(ledger.Usage{Input: 10})},
		"null completion":         {`{"prompt_tokens":10,"completion_tokens":null}`, reported(ledger.Usage{Input: 10})},
		"cached":                  {`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}`, reported(ledger.Usage{Input: 6, CachedInput: 4, Output: 5})},
		"all cached":              {`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":10}}`, reported(ledger.Usage{CachedInput: 10, Output: 5})},
		"every part":              {`{"prompt_tokens":10,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":1},"completion_tokens_details":{"reasoning_tokens":3,"audio_tokens":2}}`, reported(ledger.Usage{Input: 5, CachedInput: 4, InputAudio: 1, Output: 4, Reasoning: 3, OutputAudio: 2})},
		"null details":            {`{"prompt_tokens":10,"completion_tokens":9,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":null}}`, reported(ledger.Usage{Input: 10, Output: 9})},
		"whole float":             {`{"prompt_tokens":10.0,"completion_tokens":1e1}`, reported(ledger.Usage{Input: 10, Output: 10})},
		"zero":                    {`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, Reading{State: ledger.UsageReportedZero}},
		"largest":                 {`{"prompt_tokens":1000000000000,"completion_tokens":0}`, reported(ledger.Usage{Input: 1e12})},
		"written to a cache":      {`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":3}}`, reported(ledger.Usage{Input: 3, CachedInput: 4, CacheWrite5m: 3, Output: 5})},
		"images":                  {`{"prompt_tokens":10,"completion_tokens":9,"prompt_tokens_details":{"image_tokens":4},"completion_tokens_details":{"image_tokens":8}}`, reported(ledger.Usage{Input: 6, InputImage: 4, Output: 1, OutputImage: 8})},
		"DeepSeek's cache":        {`{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":6}`, reported(ledger.Usage{Input: 6, CachedInput: 4, Output: 5})},
		"the cache told twice":    {`{"prompt_tokens":10,"completion_tokens":5,"prompt_cache_hit_tokens":4,"prompt_tokens_details":{"cached_tokens":4}}`, reported(ledger.Usage{Input: 6, CachedInput: 4, Output: 5})},
		"xAI's reasoning, apart":  {`{"prompt_tokens":32,"completion_tokens":9,"total_tokens":135,"completion_tokens_details":{"reasoning_tokens":94}}`, reported(ledger.Usage{Input: 32, Output: 9, Reasoning: 94})},
		"nothing but reasoning":   {`{"prompt_tokens":32,"completion_tokens":0,"total_tokens":126,"completion_tokens_details":{"reasoning_tokens":94}}`, reported(ledger.Usage{Input: 32, Reasoning: 94})},
		"neither sum":             {`{"prompt_tokens":32,"completion_tokens":9,"total_tokens":136,"completion_tokens_details":{"reasoning_tokens":94}}`, inconsistent(32, 104)},
		"too many cached":         {`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":11}}`, inconsistent(10, 5)},
		"too much reasoning":      {`{"prompt_tokens":10,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":6}}`, inconsistent(10, 5)},
		"negative part":           {`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":-4}}`, inconsistent(10, 5)},
		"part is text":            {`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":"4"}}`, inconsistent(10, 5)},
		"larger total counts":     {`{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}`, inconsistent(10, 30)},
		"smaller total does not":  {`{"prompt_tokens":10,"completion_tokens":5,"total_tokens":4}`, inconsistent(10, 5)},
		"total is no count":       {`{"prompt_tokens":10,"completion_tokens":5,"total_tokens":-9223372036854775808}`, inconsistent(10, 5)},
		"total is huge":           {`{"prompt_tokens":10,"completion_tokens":5,"total_tokens":9223372036854775807}`, inconsistent(10, 5)},
		"total without its parts": {`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":9}`, inconsistent(0, 9)},
		"absent":                  {``, Reading{}},
		"null":                    {`null`, Reading{}},
		"text":                    {`"12"`, Reading{}},
		"list":                    {`[1]`, Reading{}},
		"empty":                   {`{}`, Reading{}},
		"total alone":             {`{"total_tokens":9}`, Reading{}},
		"nulls":                   {`{"prompt_tokens":null,"completion_tokens":null}`, Reading{}},
		"negative":                {`{"prompt_tokens":-1,"completion_tokens":5,"total_tokens":4}`, Reading{}},
		"smallest":                {`{"prompt_tokens":-9223372036854775808,"completion_tokens":5,"total_tokens":-1}`, Reading{}},
		"fraction":                {`{"prompt_tokens":1.5,"completion_tokens":5}`, Reading{}},
		"infinite":                {`{"prompt_tokens":1e400,"completion_tokens":5}`, Reading{}},
		"huge":                    {`{"prompt_tokens":5,"completion_tokens":9223372036854775807}`, Reading{}},
		"count is text":           {`{"prompt_tokens":"5","completion_tokens":5}`, Reading{}},
		"count is true":           {`{"prompt_tokens":true,"completion_tokens":5}`, Reading{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, readOpenAIUsage(parsed(c.text)))
		})
	}
}
