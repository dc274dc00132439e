package sim

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/stretchr/testify/require"
)

// examples has a value for every setting, and what it does.
var examples = map[string]struct {
	value string
	want  func(*behaviour)
}{
	"prompt_tokens":     {"60", func(b *behaviour) { b.prompt = 60 }},
	"completion_tokens": {"0", func(b *behaviour) { b.completion = 0 }},
	"cached_tokens":     {"10", func(b *behaviour) { b.cached = 10 }},
	"reasoning_tokens":  {"5", func(b *behaviour) { b.reasoning = 5 }},
	"cache_write_5m":    {"3", func(b *behaviour) { b.write5m = 3 }},
	"cache_write_1h":    {"4", func(b *behaviour) { b.write1h = 4 }},
	"error_after":       {"2", func(b *behaviour) { b.errorAfter = 2 }},
	"finish":            {"refusal", func(b *behaviour) { b.finish = "refusal" }},
	"use_tool":          {"true", func(b *behaviour) { b.useTool = true }},
	"latency":           {"50ms", func(b *behaviour) { b.latency = 50 * time.Millisecond }},
	"chunk_delay":       {"2ms", func(b *behaviour) { b.chunkDelay = 2 * time.Millisecond }},
	"chunks":            {"20", func(b *behaviour) { b.chunks = 20 }},
	"status":            {"429", func(b *behaviour) { b.status = 429 }},
	"error":             {"code", func(b *behaviour) { b.status, b.errorCode = 500, "code" }},
	"retry_after":       {"3", func(b *behaviour) { b.retryAfter = 3 }},
	"cut_after":         {"7", func(b *behaviour) { b.cutAfter = 7 }},
	"no_usage":          {"", func(b *behaviour) { b.noUsage = true }},
	"zero_usage":        {"true", func(b *behaviour) { b.zeroUsage = true }},
	"no_done":           {"1", func(b *behaviour) { b.noDone = true }},
}

func TestSettingsMeanTheSameInEverySyntax(t *testing.T) {
	t.Parallel()
	require.Len(t, examples, len(settings))
	base := DefaultConfig().behaviour()
	for name, example := range examples {
		want := base
		example.want(&want)

		directive := base
		require.NoError(t, directive.setDirectives("before [[sim "+name+"="+example.value+"]] after"), name)
		require.Equal(t, want, directive, name)

		header := http.Header{}
		header.Set("X-Sim-"+strings.ReplaceAll(name, "_", "-"), example.value)
		headers := base
		require.NoError(t, headers.setHeaders(header), name)
		require.Equal(t, want, headers, name)

		object := base
		require.NoError(t, object.setJSON([]byte(`{"`+name+`":"`+example.value+`"}`)), name)
		require.Equal(t, want, object, name)
	}
	typed := base
	require.NoError(t, typed.setJSON([]byte(`{"prompt_tokens":60,"no_done":true}`)))
	require.EqualValues(t, 60, typed.prompt)
	require.True(t, typed.noDone)
}

func TestSettingsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"speed=1", "prompt_tokens=-1", "prompt_tokens=1.5", "prompt_tokens", "completion_tokens=100000001", "latency=50",
		"latency=-1s", "chunks=0", "status=200", "status=600", "error=", "cut_after=x", "no_done=maybe",
	} {
		b := DefaultConfig().behaviour()
		require.Error(t, b.setAll(text), text)
	}
	b := DefaultConfig().behaviour()
	require.ErrorContains(t, b.setDirectives("[[sim no_done"), "no end")
	for _, body := range []string{"", "[]", `{"latency":null}`, `{"latency":{}}`, `{"speed":"1"}`} {
		require.Error(t, b.setJSON([]byte(body)), body)
	}
	b.prompt, b.cached = 5, 6
	_, err := b.usage(usage{})
	require.ErrorContains(t, err, "cached_tokens 6")
	b = DefaultConfig().behaviour()
	b.reasoning = 41
	_, err = b.usage(usage{output: 40})
	require.ErrorContains(t, err, "reasoning_tokens 41")
}

func TestHeaderOverDirectiveOverDefaults(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	require.Equal(t, 204, do(t, "POST", url+"/sim/control", `{"completion_tokens":1,"prompt_tokens":1,"cached_tokens":1}`).StatusCode)
	text(t, do(t, "POST", url+chatPath, strings.Replace(hello, "Say", "[[sim completion_tokens=2 prompt_tokens=2]]", 1),
		"X-Sim-Completion-Tokens", "3"))
	r := onlyRecord(t, s)
	require.Equal(t, []int64{2, 1, 3}, []int64{r.InputTokens, r.CachedTokens, r.OutputTokens})

	require.Equal(t, 400, do(t, "POST", url+"/sim/control", `{"completion_tokens":5,"speed":1}`).StatusCode)
	require.Error(t, s.SetDefaults("completion_tokens=5 speed=1"))
	s.Reset()
	text(t, do(t, "POST", url+chatPath, hello))
	require.EqualValues(t, 1, onlyRecord(t, s).OutputTokens, "a refused change changes nothing")

	require.NoError(t, s.SetDefaults(""))
	s.Reset()
	text(t, do(t, "POST", url+chatPath, hello))
	require.EqualValues(t, 40, onlyRecord(t, s).OutputTokens)
}

func TestDirectiveStandsInTheLastUserMessage(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	text(t, do(t, "POST", url+chatPath, `{"model":"gpt-4o","messages":[
		{"role":"user","content":"[[sim completion_tokens=1]]"},
		{"role":"user","content":[{"type":"text","text":"look"},{"type":"text","text":"[[sim completion_tokens=2]]"}]},
		{"role":"assistant","content":"[[sim completion_tokens=3]]"}]}`))
	require.EqualValues(t, 2, onlyRecord(t, s).OutputTokens)
}

func TestLatencyAndChunkDelay(t *testing.T) {
	t.Parallel()
	_, url := start(t, DefaultConfig())
	began := time.Now()
	text(t, do(t, "POST", url+chatPath, streamed("[[sim latency=40ms chunk_delay=10ms chunks=5]]")))
	require.GreaterOrEqual(t, time.Since(began), 80*time.Millisecond)
}

func TestLastOfTwoFieldsCounts(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	text(t, do(t, "POST", url+chatPath, `{"model":"gpt-4o-mini","max_tokens":1,"messages":[{"role":"user","content":"Hi"}],
		"model":"o1","max_tokens":9,"n":null}`))
	r := onlyRecord(t, s)
	require.Equal(t, "o1-2024-12-17", r.Model)
	require.EqualValues(t, 9, r.OutputTokens)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, DefaultConfig().Validate())
	var empty, full Config
	require.NoError(t, env.ParseWithOptions(&empty, env.Options{Environment: map[string]string{}}))
	require.Equal(t, DefaultConfig(), empty)
	require.NoError(t, env.ParseWithOptions(&full, env.Options{Environment: map[string]string{
		"TOLLGATE_SIM_LISTEN": "127.0.0.1:1", "TOLLGATE_SIM_KEYS": "sk-a:proj_a,sk-b", "TOLLGATE_SIM_ADMIN_KEY": "sk-admin",
		"TOLLGATE_SIM_LATENCY": "50ms", "TOLLGATE_SIM_CHUNK_DELAY": "2ms", "TOLLGATE_SIM_CHUNKS": "3",
		"TOLLGATE_SIM_OUTPUT_TOKENS": "7", "TOLLGATE_SIM_SHUTDOWN_TIMEOUT": "1s",
	}}))
	require.Equal(t, Config{
		Listen: "127.0.0.1:1", Keys: []Secret{"sk-a:proj_a", "sk-b"}, AdminKey: "sk-admin", Latency: 50 * time.Millisecond,
		ChunkDelay: 2 * time.Millisecond, Chunks: 3, OutputTokens: 7, ShutdownTimeout: time.Second,
	}, full)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		require.NotContains(t, fmt.Sprintf(format, full), "sk-")
	}
	err := Config{Keys: []Secret{"a", "a:"}, Latency: -1, ChunkDelay: -1}.Validate()
	for _, name := range []string{
		"LISTEN", "KEYS: entry 2", "LATENCY", "CHUNK_DELAY", "CHUNKS", "OUTPUT_TOKENS", "SHUTDOWN_TIMEOUT",
	} {
		require.ErrorContains(t, err, "TOLLGATE_SIM_"+name)
	}
	require.NotContains(t, err.Error(), "a:")
}
