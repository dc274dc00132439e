package sim

import (
	"context"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"math/big"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

func TestCountText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"": 0, " \t\n": 0, "a": 1, "abcdef": 1, "abcdefg": 2, "hello, world!": 4, "gpt4o": 1, "你好，世界": 5, "naïve": 3,
		"a\u2003b": 2, "\xff": 1, "...": 3,
	} {
		require.Equal(t, want, countText(text), "%q", text)
	}
	for i, word := range vocabulary {
		require.EqualValues(t, 1, countText(word), i)
	}
}

func TestCountMessage(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]int64{
		`{"role":"user","content":"two words"}`: 3 + 1 + 2,
		`{"role":"user","content":null}`:        3 + 1,
		`{"role":"user","name":"bob","content":[{"type":"text","text":"a b"},{"type":"image_url","image_url":{"url":"u"}}]}`: 3 +
			1 + 1 + 2 + 85,
		`{"role":"user","tool_calls":[1]}`: 3 + 1 + 3,
	} {
		require.Equal(t, want, countMessage(gjson.Parse(message)), message)
	}
}

// TestCostIsExact works every price out again as a fraction of a dollar.
func TestCostIsExact(t *testing.T) {
	t.Parallel()
	u := usage{input: 1_234_567, cached: 234_567, output: 99_999_999, reasoning: 7}
	for i, p := range priceList {
		dollarsFor := func(price string, tokens int64) *big.Rat {
			if price == "" {
				price = "0"
			}
			r, ok := new(big.Rat).SetString(price)
			require.True(t, ok)
			return r.Mul(r, big.NewRat(tokens, 1_000_000))
		}
		cached := p.cached
		if cached == "" {
			cached = p.input
		}
		want := dollarsFor(p.input, 1_000_000)
		want.Add(want, dollarsFor(cached, 234_567)).Add(want, dollarsFor(p.output, 99_999_999))
		require.Zero(t, want.Cmp(big.NewRat(models[i].cost(u), 1_000_000_000)), p.alias)
	}
	written := usage{input: 100, cached: 20, write5m: 30, write1h: 7, output: 9}
	require.EqualValues(t, 43*1_000+20*100+30*1_250+7*2_000+9*5_000, models[modelIndex["claude-haiku-4-5"]].cost(written))
	require.Panics(t, func() { nanoPerToken("0.0001") }, "a tenth of a nano-dollar")
	require.Panics(t, func() { nanoPerToken("free") })
}

func TestBooksAddUpUnderLoad(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 520 // more than one block of entries
	s, url := start(t, DefaultConfig())
	var sent [workers]int64
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			client := httpClient(t)
			for i := range each {
				tokens := w*each + i
				answer, err := client.Post(url+chatPath, "application/json", strings.NewReader(strings.Replace(hello, "Say",
					"[[sim prompt_tokens="+strconv.Itoa(tokens)+" completion_tokens=1]]", 1)))
				if err != nil {
					return // the sums below will not fit
				}
				_, err = io.Copy(io.Discard, answer.Body)
				if err = errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != 200 {
					return
				}
				sent[w] += int64(tokens)
			}
		})
	}
	wait.Wait()
	input := int64(0)
	for _, n := range sent {
		input += n
	}
	const n = workers * each
	require.EqualValues(t, n*(n-1)/2, input)
	want := Totals{
		Calls: n, Requests: n, InputTokens: input, OutputTokens: n, CostNanoUSD: input*150 + n*600,
	}
	got := s.Totals()
	require.Positive(t, got.PeakInFlight)
	require.LessOrEqual(t, got.PeakInFlight, int64(workers), "no worker has two at once")
	want.PeakInFlight = got.PeakInFlight
	require.Equal(t, want, got)
	require.Equal(t, want, decode[Totals](t, text(t, do(t, "GET", url+"/sim/totals", ""))))

	records := s.Books(0)
	require.Equal(t, records, decode[[]Record](t, text(t, do(t, "GET", url+"/sim/books", ""))))
	ids, cost := map[string]bool{}, int64(0)
	for i, r := range records {
		require.EqualValues(t, i+1, r.Number)
		ids[r.ID] = true
		cost += r.CostNanoUSD
	}
	require.Len(t, ids, n)
	require.Equal(t, want.CostNanoUSD, cost)
	require.Equal(t, records[4000:], s.Books(4000))
	require.Equal(t, records[4000:], decode[[]Record](t, text(t, do(t, "GET", url+"/sim/books?since=4000", ""))))
	require.Empty(t, s.Books(1<<63))

	require.Equal(t, 204, do(t, "POST", url+"/sim/reset", "").StatusCode)
	require.Equal(t, Totals{}, s.Totals())
	require.Equal(t, "[]\n", text(t, do(t, "GET", url+"/sim/books", "")))
}

func TestBooksSince(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig())
	at := time.Date(2026, 3, 1, 12, 0, 0, 1, time.UTC)
	for i := range 3 {
		s.books.add(bill{received: at, finished: at.Add(time.Duration(i) * time.Second), keyID: "k", project: "p"})
	}
	_, url := serveHandler(t, s)
	got := decode[[]Record](t, text(t, do(t, "GET", url+"/sim/books?since="+at.Add(time.Second).Format(time.RFC3339Nano), "")))
	require.Equal(t, s.Books(1), got)
	require.Equal(t, 400, do(t, "GET", url+"/sim/books?since=yesterday", "").StatusCode)
}

func TestRecordWritesCostAsText(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(Record{CostNanoUSD: 9_007_199_254_740_993})
	require.NoError(t, err)
	require.Contains(t, string(body), `"cost_nanousd":"9007199254740993"`)
}

func TestHeaderTextIsBounded(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	text(t, do(t, "POST", url+chatPath, hello, "X-Tollgate-Request-Id", strings.Repeat("a", 300), "X-Client-Request-Id", "b"))
	r := onlyRecord(t, s)
	require.Equal(t, strings.Repeat("a", 255), r.TollgateRequestID)
	require.Equal(t, "b", r.ClientRequestID)
}

// TestImportsNothingOfOurs keeps the books independent of the code that they are there to check.
func TestImportsNothingOfOurs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range file.Imports {
			require.False(t, strings.HasPrefix(i.Path.Value, `"tollgate/`), "%s imports %s", name, i.Path.Value)
		}
	}
}

// A call is in flight from when it comes in until its caller can know that it is over, however it ends.
func TestPeakInFlight(t *testing.T) {
	t.Parallel()
	s, url := start(t, DefaultConfig())
	for _, body := range []string{hello, streamed(""), `{"model":"none"}`, streamed("[[sim status=500]]")} {
		for range 3 {
			text(t, do(t, "POST", url+chatPath, body))
		}
		require.EqualValues(t, 1, s.Totals().PeakInFlight, "one after the other: %s", body)
	}
	const n = 5
	var wait sync.WaitGroup
	client := httpClient(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for range n {
		wait.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chatPath, strings.NewReader(streamed("[[sim latency=1h]]")))
			if err != nil {
				t.Error(err)
				return
			}
			answer, err := client.Do(r)
			if err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		})
	}
	require.Eventually(t, func() bool { return s.Totals().PeakInFlight == n }, deadline, time.Millisecond)
	leave()
	wait.Wait()
	require.Eventually(t, func() bool {
		s.Reset()
		return s.Totals().PeakInFlight == 0
	}, deadline, time.Millisecond, "they are over when the simulator has noticed that their callers left")
}
