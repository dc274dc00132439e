package provider

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tollgate/ledger"
)

// sink takes writes and counts flushes; it fails from the write on that failAt names, counted from 1.
type sink struct {
	bytes.Buffer
	writes, flushes, failAt int
	unflushed               bool
}

func (s *sink) Write(p []byte) (int, error) {
	s.writes++
	if s.failAt > 0 && s.writes >= s.failAt {
		return 0, errors.New("the caller left")
	}
	s.unflushed = true
	return s.Buffer.Write(p)
}

func (s *sink) Flush() { s.flushes++; s.unflushed = false }

// pieces hands out one piece a read, then err.
type pieces struct {
	pieces [][]byte
	err    error
	reads  int
}

func (p *pieces) Read(buffer []byte) (int, error) {
	p.reads++
	if len(p.pieces) == 0 {
		return 0, p.err
	}
	n := copy(buffer, p.pieces[0])
	if p.pieces[0] = p.pieces[0][n:]; len(p.pieces[0]) == 0 {
		p.pieces = p.pieces[1:]
	}
	return n, nil
}

func chunk(content string) string {
	return fmt.Sprintf("data: {\"id\":\"c-1\",\"model\":\"m-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}],\"usage\":null}\n\n", content)
}

const (
	finishChunk = "data: {\"id\":\"c-1\",\"model\":\"m-1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
	usageChunk  = "data: {\"id\":\"c-1\",\"model\":\"m-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":34,\"total_tokens\":46}}\n\n"
	doneChunk   = "data: [DONE]\n\n"
	keepAlive   = ": keep-alive\n\n"
)

var used = Reading{Usage: ledger.Usage{Input: 12, Output: 34}, State: ledger.UsageReported}

func relay(t require.TestingT, text string, withhold bool) (string, Answer) {
	s := &sink{}
	answer, err := Chat.RelayStream(s, strings.NewReader(text), Passing{Withhold: withhold})
	require.NoError(t, err)
	return s.String(), answer
}

func TestRelayStream(t *testing.T) {
	t.Parallel()
	body := chunk("a") + chunk("b") + finishChunk
	done := func(r Reading, events int64) Answer {
		return Answer{Reading: r, Model: "m-1", UpstreamID: "c-1", Events: events, FirstByte: true, Finish: ledger.ReasonOK}
	}
	failed := func(events int64) Answer {
		a := done(Reading{}, events)
		a.Finish = ledger.ReasonUpstreamFailed
		return a
	}
	inChoices := strings.Replace(finishChunk, `"usage":null`, `"usage":{"prompt_tokens":12,"completion_tokens":34}`, 1)
	filter := `data: {"id":"c-1","model":"m-1","choices":[],"prompt_filter_results":[],"usage":null}` + "\n\n"
	for name, c := range map[string]struct {
		text     string
		withhold bool
		passed   string // "" is all of it
		want     Answer
	}{
		"usage asked":            {body + usageChunk + doneChunk, false, "", done(used, 3)},
		"usage withheld":         {body + usageChunk + doneChunk, true, body + doneChunk, done(used, 3)},
		"usage in last choices":  {chunk("a") + inChoices + doneChunk, true, "", done(used, 2)},
		"no usage":               {body + doneChunk, true, "", done(Reading{}, 3)},
		"no finish but done":     {chunk("a") + doneChunk, true, "", done(Reading{}, 1)},
		"done without line end":  {chunk("a") + "data: [DONE]", true, "", done(Reading{}, 1)},
		"usage after the end":    {body + doneChunk + strings.TrimSpace(usageChunk), true, body + doneChunk, done(used, 3)},
		"comments":               {keepAlive + chunk("a") + keepAlive + finishChunk + keepAlive + usageChunk + doneChunk + keepAlive, true, keepAlive + chunk("a") + keepAlive + finishChunk + keepAlive + doneChunk + keepAlive, done(used, 2)},
		"event and id fields":    {"event: x\nid: 7\n" + body + doneChunk, true, "", done(Reading{}, 3)},
		"no blank after colon":   {strings.ReplaceAll(body+usageChunk+doneChunk, "data: ", "data:"), true, strings.ReplaceAll(body+doneChunk, "data: ", "data:"), done(used, 3)},
		"crlf":                   {strings.ReplaceAll(body+usageChunk+doneChunk, "\n", "\r\n"), true, strings.ReplaceAll(body+doneChunk, "\n", "\r\n"), done(used, 3)},
		"empty choices at first": {filter + body + usageChunk + doneChunk, true, filter + body + doneChunk, done(used, 4)},
		"error event":            {chunk("a") + "data: {\"error\":{\"message\":\"overloaded\"}}\n\n", true, "", failed(2)},
		"a text about errors":    {chunk(`"error":{}`) + finishChunk + doneChunk, true, "", done(Reading{}, 2)},
		"a text about usage":     {chunk(`"usage":{"prompt_tokens":9}`) + finishChunk + usageChunk + doneChunk, true, chunk(`"usage":{"prompt_tokens":9}`) + finishChunk + doneChunk, done(used, 2)},
		"the last usage counts":  {strings.Replace(chunk("a"), "null}\n", `{"prompt_tokens":1,"completion_tokens":1}}`+"\n", 1) + finishChunk + usageChunk + doneChunk, true, strings.Replace(chunk("a"), "null}\n", `{"prompt_tokens":1,"completion_tokens":1}}`+"\n", 1) + finishChunk + doneChunk, done(used, 2)},
		"usage that says naught": {body + "data: {\"choices\":[],\"usage\":{}}\n\n" + doneChunk, true, "", done(Reading{}, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			passed, answer := relay(t, c.text, c.withhold)
			if c.passed == "" {
				c.passed = c.text
			}
			require.Equal(t, c.passed, passed)
			answer.Output = 0 // see TestStreamedCountsTextAndEvents
			require.Equal(t, c.want, answer)
		})
	}
}

func TestRelayStreamCut(t *testing.T) {
	t.Parallel()
	reset := errors.New("connection reset")
	for name, c := range map[string]struct {
		text string
		err  error
	}{
		"nothing":             {"", io.EOF},
		"no finish":           {chunk("a"), io.EOF},
		"no done":             {chunk("a") + finishChunk, io.EOF},
		"half a done":         {chunk("a") + finishChunk + "data: [DON", io.EOF},
		"a text about errors": {chunk(`"error":{}`), io.EOF},
		"only comments":       {keepAlive, io.EOF},
		"reset at first":      {"", reset},
		"reset":               {chunk("a"), reset},
		"reset after finish":  {chunk("a") + finishChunk, reset},
		"reset after done":    {chunk("a") + finishChunk + doneChunk, reset},
		"reset in an event":   {chunk("a") + finishChunk[:20], reset},
		"no event stream":     {`{"id":"c-1"}`, io.EOF},
		"finish that is null": {chunk("a") + chunk("b"), io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &sink{}
			answer, err := Chat.RelayStream(s, &pieces{[][]byte{[]byte(c.text)}, c.err, 0}, Passing{Withhold: true})
			require.ErrorIs(t, err, ErrUpstreamCut)
			if c.err != io.EOF {
				require.ErrorIs(t, err, c.err)
			}
			require.Equal(t, ledger.ReasonUpstreamCut, answer.Finish)
			require.Equal(t, c.text, s.String(), "what has come is passed on")
			require.Equal(t, c.text != "", answer.FirstByte)
		})
	}
}

// A usage chunk that is cut anywhere is whole or not believed: a number that lost digits would be a smaller one.
func TestRelayUsageCutAnywhere(t *testing.T) {
	t.Parallel()
	body := chunk("a") + finishChunk
	for size := range len(usageChunk) {
		s := &sink{}
		answer, err := Chat.RelayStream(s, iotest.TimeoutReader(strings.NewReader(body+usageChunk[:size])), Passing{Withhold: true})
		require.ErrorIs(t, err, ErrUpstreamCut)
		if answer.State != "" {
			require.Equal(t, used, answer.Reading, "cut at %d", size)
			require.GreaterOrEqual(t, size, len(usageChunk)-2)
		}
	}
}

func mixedStream() string {
	text := keepAlive + chunk("one") + strings.ReplaceAll(chunk("two é 漢 🙂"), "\n", "\r\n") + keepAlive + chunk("") + finishChunk + usageChunk + doneChunk
	return text
}

func TestRelaySplitAtEveryByte(t *testing.T) {
	t.Parallel()
	text := mixedStream()
	want, wantAnswer := relay(t, text, true)
	require.NotContains(t, want, "46")
	for at := range len(text) + 1 {
		s := &sink{}
		answer, err := Chat.RelayStream(s, &pieces{[][]byte{[]byte(text[:at]), []byte(text[at:])}, io.EOF, 0}, Passing{Withhold: true})
		require.NoError(t, err)
		require.Equal(t, want, s.String(), "split at %d", at)
		require.Equal(t, wantAnswer, answer, "split at %d", at)
		require.False(t, s.unflushed, "split at %d", at)
	}
}

// Any chunking of any stream passes on the same bytes and meters the same.
func TestRelayAnyChunking(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.SampledFrom([]string{
			chunk("a"), chunk("b\nb"), strings.ReplaceAll(chunk("c"), "\n", "\r\n"), keepAlive, "\n", "event: x\n\n", "data:\n\n", usageChunk,
			"data: {\"usage\":{\"prompt_tokens\":-1}}\n\n", "data: {\n\n", "junk\n\n", chunk(strings.Repeat("long ", 5000)),
		}), 0, 12).Draw(t, "events")
		text := strings.Join(events, "") + finishChunk + rapid.SampledFrom([]string{doneChunk, doneChunk + usageChunk, "data: [DONE]", doneChunk + "tail"}).Draw(t, "end")
		withhold := rapid.Bool().Draw(t, "withhold")
		want, wantAnswer := relay(t, text, withhold)
		if withhold {
			require.Equal(t, strings.ReplaceAll(text, usageChunk, ""), want)
		} else {
			require.Equal(t, text, want)
		}
		var cut [][]byte
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, 3000).Draw(t, "size"))
			cut, rest = append(cut, rest[:n]), rest[n:]
		}
		s := &sink{}
		answer, err := Chat.RelayStream(s, &pieces{cut, io.EOF, 0}, Passing{Withhold: withhold})
		require.NoError(t, err)
		require.Equal(t, want, s.String())
		require.Equal(t, wantAnswer, answer)
		require.False(t, s.unflushed)
	})
}

func TestRelayReaders(t *testing.T) {
	t.Parallel()
	text := mixedStream()
	want, wantAnswer := relay(t, text, true)
	for name, reader := range map[string]io.Reader{
		"one byte": iotest.OneByteReader(strings.NewReader(text)), "with the end": iotest.DataErrReader(strings.NewReader(text)),
		"halves": iotest.HalfReader(strings.NewReader(text)),
	} {
		s := &sink{}
		answer, err := Chat.RelayStream(s, reader, Passing{Withhold: true})
		require.NoError(t, err, name)
		require.Equal(t, want, s.String(), name)
		require.Equal(t, wantAnswer, answer, name)
	}
}

// Text before a withheld chunk goes out at once: what comes next may take its time.
func TestRelayFlushesBeforeWithheld(t *testing.T) {
	t.Parallel()
	s := &sink{}
	seen := ""
	body := io.MultiReader(strings.NewReader(finishChunk+usageChunk), readerFunc(func([]byte) (int, error) {
		require.False(t, s.unflushed)
		seen = s.String()
		return 0, io.EOF
	}), strings.NewReader(doneChunk))
	_, err := Chat.RelayStream(s, body, Passing{Withhold: true})
	require.NoError(t, err)
	require.Equal(t, finishChunk, seen)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestRelayCallerLeaves(t *testing.T) {
	t.Parallel()
	events := []string{chunk("a"), chunk("b"), finishChunk, usageChunk, doneChunk}
	for failAt := 1; failAt <= 4; failAt++ { // the usage chunk is no write
		for _, drain := range []bool{false, true} {
			var cut [][]byte
			for _, e := range events {
				cut = append(cut, []byte(e))
			}
			body := &pieces{cut, io.EOF, 0}
			s := &sink{failAt: failAt}
			answer, err := Chat.RelayStream(s, body, Passing{Withhold: true, Drain: func() bool { return drain }})
			require.NoError(t, err)
			require.Equal(t, ledger.ReasonClientGone, answer.Finish)
			require.Equal(t, failAt > 1, answer.FirstByte)
			require.Equal(t, failAt, s.writes, "nothing is written after a failure")
			if drain {
				require.Equal(t, used, answer.Reading)
				require.Equal(t, int64(3), answer.Events)
			} else if failAt < 4 {
				require.Equal(t, failAt, body.reads, "the rest is not read")
				require.Equal(t, int64(failAt), answer.Events)
			}
		}
	}
}

func TestRelayDrainedStreamIsCut(t *testing.T) {
	t.Parallel()
	answer, err := Chat.RelayStream(&sink{failAt: 1}, &pieces{[][]byte{[]byte(chunk("a"))}, io.ErrUnexpectedEOF, 0}, Passing{Withhold: true, Drain: func() bool { return true }})
	require.NoError(t, err, "nobody is left to be told")
	require.Equal(t, ledger.ReasonClientGone, answer.Finish)
}

func TestRelayGiantEvent(t *testing.T) {
	t.Parallel()
	giant := chunk(strings.Repeat("x", 2*maxEvent))
	text := chunk("a") + giant + finishChunk + usageChunk + doneChunk
	passed, answer := relay(t, text, true)
	require.Equal(t, len(text)-len(usageChunk), len(passed))
	require.True(t, passed == chunk("a")+giant+finishChunk+doneChunk)
	require.Equal(t, used, answer.Reading)
	endless := io.LimitReader(readerFunc(func(p []byte) (int, error) { return len(p), nil }), 3*maxEvent)
	answer, err := Chat.RelayStream(&sink{}, endless, Passing{Withhold: true})
	require.ErrorIs(t, err, ErrUpstreamCut)
	require.Zero(t, answer.Reading)
}

func TestReadAnswer(t *testing.T) {
	t.Parallel()
	read := func(body io.Reader, length int64) (string, Answer, error) {
		data, answer, err := Chat.ReadAnswer(&http.Response{Body: io.NopCloser(body), ContentLength: length})
		if err != nil {
			require.Nil(t, data)
			return "", answer, err
		}
		defer data.Close()
		require.Nil(t, data.Rest)
		return string(data.Text), answer, nil
	}
	const text = `{"id":"c-1","model":"m-1","usage":{"prompt_tokens":12,"completion_tokens":34}}`
	body, answer, err := read(strings.NewReader(text), -1)
	require.NoError(t, err)
	require.Equal(t, text, body)
	require.Equal(t, Answer{Reading: used, Model: "m-1", UpstreamID: "c-1", Finish: ledger.ReasonOK}, answer)
	for name, strange := range map[string]string{
		"empty": "", "no JSON": "<html>", "cut JSON": text[:len(text)-3], "list": "[" + text + "]", "two": text + text, "deep": strings.Repeat("[", 40<<20),
	} {
		body, answer, err := read(strings.NewReader(strange), int64(len(strange)))
		require.NoError(t, err, name)
		require.True(t, strange == body, name)
		require.Equal(t, Answer{Finish: ledger.ReasonOK}, answer, name)
	}
	body, answer, err = read(io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)), 1000)
	require.ErrorIs(t, err, ErrUpstreamCut)
	require.Empty(t, body)
	require.Equal(t, Answer{Finish: ledger.ReasonUpstreamCut}, answer)
}

func BenchmarkRelay(b *testing.B) {
	text := strings.Repeat(chunk("token "), 100) + finishChunk + usageChunk + doneChunk
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	s := &sink{}
	for b.Loop() {
		s.Reset()
		if _, err := Chat.RelayStream(s, strings.NewReader(text), Passing{Withhold: true}); err != nil {
			b.Fatal(err)
		}
	}
}
