package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Load is how a target is asked.
type Load struct {
	Streamed    bool          `json:"streamed"`
	Upstream    time.Duration `json:"upstream_ns"` // the provider's wait before its first byte
	Connections int           `json:"connections"` // each asks again as soon as it has its answer
}

// operation is one request as the client saw it; times are since the load's start.
type operation struct {
	start, first, end time.Duration
	failed            bool
}

// caller is who a connection speaks for.
type caller struct {
	key, user string
}

const (
	model        = "gpt-4o-mini"
	promptTokens = 60
	outputTokens = 40
	streamChunks = 20
)

// request is the whole text of one request, about 1 kB, as clients send it.
func request(host string, c caller, streamed bool) []byte {
	options := ""
	if streamed {
		options = `"stream":true,"stream_options":{"include_usage":true},`
	}
	body := fmt.Sprintf(`{"model":%q,"max_tokens":64,%s"user":%q,"messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`,
		model, options, c.user, strings.Repeat("You answer in one short sentence. ", 10), strings.Repeat("What does a toll gate do? ", 12))
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nUser-Agent: tollgate-bench\r\n"+
		"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: %d\r\n\r\n%s", host, c.key, len(body), body)
}

// checkAnswer errors unless the answer is whole and tells its usage.
func checkAnswer(body []byte, streamed bool) error {
	switch {
	case !bytes.Contains(body, []byte(`"usage"`)):
		return errors.New("the answer tells no usage")
	case streamed && !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")):
		return errors.New("the stream ends without [DONE]")
	case streamed && bytes.Count(body, []byte("data: ")) < streamChunks+2: // usage and [DONE]
		return errors.New("the stream lacks chunks")
	case !streamed && !bytes.HasSuffix(bytes.TrimSpace(body), []byte("}")):
		return errors.New("the answer is no JSON object")
	}
	return nil
}

// run asks the target from all connections for the time, and returns what each request met; the error is the first failure
// of a request, with the operations all the same.
func run(ctx context.Context, address string, callers []caller, l Load, d time.Duration) ([]operation, error) {
	results := make([][]operation, l.Connections)
	failures := make([]error, l.Connections)
	start := time.Now()
	var group sync.WaitGroup
	for i := range l.Connections {
		group.Go(func() {
			text := request(address, callers[i%len(callers)], l.Streamed)
			results[i], failures[i] = connection(ctx, address, text, l.Streamed, start, d)
		})
	}
	group.Wait()
	var all []operation
	for _, r := range results {
		all = append(all, r...)
	}
	for _, err := range failures {
		if err != nil {
			return all, err
		}
	}
	return all, ctx.Err()
}

// maxFailures ends a connection's load: a target that fails this often will go on failing.
const maxFailures = 100

func connection(ctx context.Context, address string, text []byte, streamed bool, start time.Time, d time.Duration) (ops []operation, failure error) {
	c := newClient(address)
	defer c.close()
	ops = make([]operation, 0, 1024)
	for failures := 0; ctx.Err() == nil && failures < maxFailures; {
		op := operation{start: time.Since(start)}
		if op.start >= d && len(ops) > 0 { // each asks once, however late it comes to it
			break
		}
		first, err := c.do(text)
		if err == nil {
			err = checkAnswer(c.body, streamed)
		}
		op.first, op.end = first.Sub(start), time.Since(start)
		if err != nil {
			failures++
			op.failed, op.first = true, op.end
			if failure == nil {
				failure = err
			}
			c.close()
		}
		ops = append(ops, op)
	}
	return ops, failure
}
