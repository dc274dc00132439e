package sim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

const (
	// maxTokens bounds each token count. At the highest price of the list a million requests of that size still fit an int64.
	maxTokens  = 100_000_000
	maxChunks  = 100_000
	unset      = -1
	headerMark = "X-Sim-"
)

// behaviour is how one request is answered. Counts are unset where the request decides.
type behaviour struct {
	prompt, completion, cached, reasoning int64
	write5m, write1h                      int64
	latency, chunkDelay                   time.Duration
	chunks                                int
	status                                int // 0: no error
	errorCode                             string
	retryAfter                            int
	cutAfter, errorAfter                  int
	finish                                string // "" where the request decides
	noUsage, zeroUsage, noDone, useTool   bool
}

func (c Config) behaviour() behaviour {
	return behaviour{
		prompt: unset, completion: unset, cached: unset, reasoning: unset, write5m: unset, write1h: unset,
		latency: c.Latency, chunkDelay: c.ChunkDelay, chunks: c.Chunks, retryAfter: unset, cutAfter: unset, errorAfter: unset,
	}
}

// settings are the names that headers, directives and the control endpoint share.
var settings = map[string]func(b *behaviour, value string) error{
	"prompt_tokens":     func(b *behaviour, v string) error { return setTokens(&b.prompt, v) },
	"completion_tokens": func(b *behaviour, v string) error { return setTokens(&b.completion, v) },
	"cached_tokens":     func(b *behaviour, v string) error { return setTokens(&b.cached, v) },
	"reasoning_tokens":  func(b *behaviour, v string) error { return setTokens(&b.reasoning, v) },
	"cache_write_5m":    func(b *behaviour, v string) error { return setTokens(&b.write5m, v) },
	"cache_write_1h":    func(b *behaviour, v string) error { return setTokens(&b.write1h, v) },
	"latency":           func(b *behaviour, v string) error { return setDuration(&b.latency, v) },
	"chunk_delay":       func(b *behaviour, v string) error { return setDuration(&b.chunkDelay, v) },
	"chunks":            func(b *behaviour, v string) error { return setInt(&b.chunks, v, 1, maxChunks) },
	"status":            func(b *behaviour, v string) error { return setInt(&b.status, v, 400, 599) },
	"error":             setErrorCode,
	"retry_after":       func(b *behaviour, v string) error { return setInt(&b.retryAfter, v, 0, 1<<31-1) },
	"cut_after":         func(b *behaviour, v string) error { return setInt(&b.cutAfter, v, 0, 1<<31-1) },
	"error_after":       func(b *behaviour, v string) error { return setInt(&b.errorAfter, v, 0, 1<<31-1) },
	"finish":            setFinish,
	"use_tool":          func(b *behaviour, v string) error { return setFlag(&b.useTool, v) },
	"no_usage":          func(b *behaviour, v string) error { return setFlag(&b.noUsage, v) },
	"zero_usage":        func(b *behaviour, v string) error { return setFlag(&b.zeroUsage, v) },
	"no_done":           func(b *behaviour, v string) error { return setFlag(&b.noDone, v) },
}

func setInt(to *int, value string, least, most int) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a number from %d to %d", value, least, most)
	}
	*to = n
	return nil
}

func setTokens(to *int64, value string) error {
	n := 0
	if err := setInt(&n, value, 0, maxTokens); err != nil {
		return err
	}
	*to = int64(n)
	return nil
}

func setDuration(to *time.Duration, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration such as 50ms", value)
	}
	*to = d
	return nil
}

func setFlag(to *bool, value string) error {
	if value == "" {
		*to = true
		return nil
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", value)
	}
	*to = on
	return nil
}

func setFinish(b *behaviour, value string) error {
	if value == "" || strings.Trim(value, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return fmt.Errorf("%q is no reason such as refusal", value)
	}
	b.finish = value
	return nil
}

func setErrorCode(b *behaviour, value string) error {
	if value == "" {
		return fmt.Errorf("no code")
	}
	b.errorCode = value
	if b.status == 0 {
		b.status = http.StatusInternalServerError
	}
	return nil
}

func (b *behaviour) set(name, value string) error {
	set, known := settings[name]
	if !known {
		return fmt.Errorf("unknown setting %q", name)
	}
	if err := set(b, value); err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	return nil
}

// setAll reads settings as they stand in a directive: "prompt_tokens=60 no_done".
func (b *behaviour) setAll(text string) error {
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		if err := b.set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// setDirectives reads every directive in a text.
func (b *behaviour) setDirectives(text string) error {
	for {
		_, after, found := strings.Cut(text, "[[sim ")
		if !found {
			return nil
		}
		directive, rest, closed := strings.Cut(after, "]]")
		if !closed {
			return fmt.Errorf("directive %q has no end", "[[sim "+after)
		}
		if err := b.setAll(directive); err != nil {
			return err
		}
		text = rest
	}
}

// setHeaders reads the X-Sim-… headers of a request. Header names are in canonical form.
func (b *behaviour) setHeaders(header http.Header) error {
	for name, values := range header {
		if !strings.HasPrefix(name, headerMark) {
			continue
		}
		setting := strings.ReplaceAll(strings.ToLower(name[len(headerMark):]), "-", "_")
		for _, value := range values {
			if err := b.set(setting, strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// setJSON reads the body of POST /sim/control: {"latency": "50ms", "no_usage": true, "prompt_tokens": 60}.
func (b *behaviour) setJSON(body []byte) error {
	if !gjson.ValidBytes(body) {
		return fmt.Errorf("the body is no JSON")
	}
	object := gjson.ParseBytes(body)
	if !object.IsObject() {
		return fmt.Errorf("the body is no JSON object")
	}
	var err error
	object.ForEach(func(name, value gjson.Result) bool {
		switch value.Type {
		case gjson.JSON, gjson.Null:
			err = fmt.Errorf("setting %s: %s is neither text, number, true nor false", name.Str, value.Raw)
		case gjson.String:
			err = b.set(name.Str, value.Str)
		default:
			err = b.set(name.Str, value.Raw)
		}
		return err == nil
	})
	return err
}

// usage settles what a request takes: counted is what the package's own rules say, settings replace it.
func (b *behaviour) usage(counted usage) (usage, error) {
	u := counted
	replace := func(to *int64, with int64) {
		if with != unset {
			*to = with
		}
	}
	replace(&u.input, b.prompt)
	replace(&u.output, b.completion)
	replace(&u.cached, b.cached)
	replace(&u.reasoning, b.reasoning)
	replace(&u.write5m, b.write5m)
	replace(&u.write1h, b.write1h)
	switch {
	case u.plain() < 0:
		return usage{}, fmt.Errorf("cached_tokens %d and cache_write tokens %d are more than the input of %d", u.cached, u.write5m+u.write1h, u.input)
	case u.reasoning > u.output:
		return usage{}, fmt.Errorf("reasoning_tokens %d is more than the output of %d", u.reasoning, u.output)
	case u.input > maxTokens || u.output > maxTokens:
		return usage{}, fmt.Errorf("more than %d tokens", maxTokens)
	}
	return u, nil
}

// charged is what of a usage is told and billed.
func (b *behaviour) charged(u usage) usage {
	if b.zeroUsage {
		return usage{}
	}
	return u
}
