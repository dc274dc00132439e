package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
)

// Request is one call of the data plane.
type Request struct {
	Key    string // secret
	Path   string
	Body   string
	Header map[string]string
}

// Answer is what came of a Request.
type Answer struct {
	Status int
	ID     string // X-Tollgate-Request-Id
	Reason string // of a refusal or failure
	Header http.Header
	Body   []byte
	Err    error // of the connection, before or within the body

	Sent time.Time
	Took time.Duration // until the body was read
}

// Passed reports whether the provider's answer arrived whole.
func (a Answer) Passed() bool { return a.Err == nil && a.Status == http.StatusOK }

func (a Answer) String() string {
	return fmt.Sprintf("status %d %s %s, error %v, body %.200q", a.Status, a.Reason, a.ID, a.Err, a.Body)
}

// Send makes one call of the gateway at url and reads the answer whole. It is safe for concurrent use.
func (s *System) Send(ctx context.Context, url string, r Request) Answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+r.Path, strings.NewReader(r.Body))
	if err != nil {
		return Answer{Err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	if r.Key != "" {
		req.Header.Set("Authorization", "Bearer "+r.Key)
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	sent := time.Now()
	res, err := s.client.Do(req)
	if err != nil {
		return Answer{Err: err, Sent: sent, Took: time.Since(sent)}
	}
	a := Answer{Status: res.StatusCode, ID: res.Header.Get("X-Tollgate-Request-Id"), Header: res.Header, Sent: sent}
	a.Body, a.Err = io.ReadAll(res.Body)
	a.Err = errors.Join(a.Err, res.Body.Close())
	a.Took = time.Since(sent)
	a.Reason = gjson.GetBytes(a.Body, "tollgate.reason").Str
	return a
}

// Load makes n calls, concurrency at a time, and returns their answers in the order of their numbers. It is safe for concurrent
// use.
func Load(n, concurrency int, call func(i int) Answer) []Answer {
	answers := make([]Answer, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				answers[i] = call(i)
			}
		})
	}
	wg.Wait()
	return answers
}

// Traffic makes calls until stop is called, which waits for those under way and returns all answers.
func Traffic(concurrency int, call func(i int) Answer) (stop func() []Answer) {
	var (
		next    atomic.Int64
		ending  atomic.Bool
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers []Answer
	)
	for range concurrency {
		wg.Go(func() {
			for !ending.Load() {
				a := call(int(next.Add(1)) - 1)
				mu.Lock()
				answers = append(answers, a)
				mu.Unlock()
			}
		})
	}
	return func() []Answer {
		ending.Store(true)
		wg.Wait()
		return answers
	}
}

// Tally counts answers by what became of them: "passed", the reason of a refusal, or "broken".
func Tally(answers []Answer) map[string]int {
	tally := map[string]int{}
	for _, a := range answers {
		switch {
		case a.Passed():
			tally["passed"]++
		case a.Err != nil:
			tally["broken"]++
		case a.Reason != "":
			tally[a.Reason]++
		default:
			tally[fmt.Sprint("status ", a.Status)]++
		}
	}
	return tally
}

// ChatBody is a chat request of one message, allowed at most maxTokens of output.
func ChatBody(model, text string, maxTokens int, stream bool) string {
	body := map[string]any{
		"model": model, "max_tokens": maxTokens, "messages": []any{map[string]string{"role": "user", "content": text}},
	}
	if stream {
		body["stream"] = true
	}
	return encode(body)
}

// EmbeddingBody is a request for the embedding of so many token ids, which cost exactly that many tokens.
func EmbeddingBody(tokens int) string {
	ids := make([]int, tokens)
	for i := range ids {
		ids[i] = i + 1
	}
	return encode(map[string]any{"model": EmbeddingModel, "input": ids})
}

// EmbeddingModel is the model of EmbeddingBody; a token of it costs EmbeddingPrice nano-dollars.
const (
	EmbeddingModel = "text-embedding-3-small"
	EmbeddingPrice = 20
)

func encode(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return string(data)
}
