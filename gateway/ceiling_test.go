package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

// talker is how a provider of one protocol streams, and what an answer of it looks like that reached its bound.
type talker struct {
	path, body, media string
	start, piece      string
	end               []string // events that the gateway adds, each a path into its data and the value there
}

var talkers = map[string]talker{
	"chat": {
		path: chatPath, body: `{"model":"gpt-4o-mini","messages":[{"role":"user","content":"Count."}],"stream":true}`, media: "text/event-stream",
		start: `data: {"id":"c-1","object":"chat.completion.chunk","created":7,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n",
		piece: `data: {"id":"c-1","object":"chat.completion.chunk","created":7,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"content":" one two three four"}}]}` + "\n\n",
		end:   []string{"choices.0.finish_reason length", "created 7", "id c-1"},
	},
	"completions": {
		path: "/v1/completions", body: `{"model":"gpt-4o-mini","prompt":"Count.","stream":true}`, media: "text/event-stream",
		piece: `data: {"id":"c-1","object":"text_completion","created":7,"model":"gpt-4o-mini","choices":[{"index":0,"text":" one two three four","finish_reason":null}]}` + "\n\n",
		end:   []string{"choices.0.finish_reason length", "object text_completion"},
	},
	"responses": {
		path: "/v1/responses", body: `{"model":"gpt-4o-mini","input":"Count.","stream":true}`, media: "text/event-stream",
		start: "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r-1\",\"created_at\":7,\"model\":\"gpt-4o-mini\",\"status\":\"in_progress\",\"kept\":true}}\n\n",
		piece: "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":4,\"output_index\":0,\"delta\":\" one two three four\"}\n\n",
		end: []string{
			"type response.incomplete", "sequence_number 5", "response.status incomplete", "response.kept true", "response.id r-1",
			"response.incomplete_details.reason max_output_tokens",
		},
	},
	"messages": {
		path: "/v1/messages", body: `{"model":"claude","max_tokens":100,"messages":[{"role":"user","content":"Count."}],"stream":true}`, media: "text/event-stream",
		start: "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m-1\",\"model\":\"claude-sonnet-4-6\",\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n" +
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
		piece: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" one two three four\"}}\n\n",
		end:   []string{"type content_block_stop", "type message_delta", "delta.stop_reason max_tokens", "type message_stop"},
	},
	"gemini": {
		path: "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", body: `{"contents":[{"parts":[{"text":"Count."}]}]}`, media: "text/event-stream",
		piece: `data: {"candidates":[{"content":{"parts":[{"text":" one two three four"}],"role":"model"},"index":0}],"modelVersion":"gemini-2.5-flash","responseId":"g-1"}` + "\r\n\r\n",
		end:   []string{"candidates.0.finishReason MAX_TOKENS", "responseId g-1"},
	},
	"gemini, a list": {
		path: "/v1beta/models/gemini-2.5-flash:streamGenerateContent", body: `{"contents":[{"parts":[{"text":"Count."}]}]}`, media: "application/json",
		start: "[", piece: `{"candidates":[{"content":{"parts":[{"text":" one two three four"}],"role":"model"},"index":0}],"modelVersion":"gemini-2.5-flash","responseId":"g-1"}`,
		end: []string{"candidates.0.finishReason MAX_TOKENS", "responseId g-1"},
	},
}

// endless streams until its caller has left, which it then tells.
func (c talker) endless(left chan<- struct{}) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", c.media)
		_, _ = io.WriteString(rw, c.start)
		for i := 0; r.Context().Err() == nil; i++ {
			piece := c.piece
			if i > 0 && c.media == "application/json" {
				piece = ",\n" + piece
			}
			if _, err := io.WriteString(rw, piece); err != nil {
				break
			}
			rw.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		left <- struct{}{}
	}
}

// added are the data of the events that the gateway added to what the provider had said.
func (c talker) added(t *testing.T, body string) string {
	t.Helper()
	if c.media == "application/json" {
		require.True(t, json.Valid([]byte(body)), body)
	}
	added := body[strings.LastIndex(body, c.piece)+len(c.piece):]
	require.NotEmpty(t, added)
	return added
}

// A stream that outgrows a hard budget is ended as its protocol ends an answer that has reached its bound, its provider is
// cancelled, and what it used is estimated: no more than the budget, and nearly all of it.
func TestStreamOutgrowsHardBudget(t *testing.T) {
	t.Parallel()
	for name, c := range talkers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			left := make(chan struct{}, 1)
			w := start(t, "  - {name: app-day, tier: app, budget: {tokens: 6000, per: day}, hard: true}\n", c.endless(left))
			a := w.send(http.MethodPost, c.path, c.body)
			require.NoError(t, a.err)
			require.Equal(t, 200, a.StatusCode)
			select {
			case <-left:
			case <-time.After(patience):
				t.Fatal("the provider was not cancelled")
			}
			added := c.added(t, a.body)
			told := 0
			for line := range strings.Lines(added) {
				data := strings.TrimPrefix(strings.TrimRight(line, "\r\n,"), "data: ")
				if !gjson.Valid(data) {
					continue
				}
				for _, want := range c.end {
					path, value, _ := strings.Cut(want, " ")
					if gjson.Get(data, path).String() == value {
						told++
					}
				}
				if reason := gjson.Get(data, "tollgate.reason"); reason.Exists() {
					require.Equal(t, "APP_QUOTA", reason.Str)
					require.Equal(t, "app-day", gjson.Get(data, "tollgate.limit_name").Str)
					require.Contains(t, gjson.Get(data, "tollgate.message").Str, "no room for more")
				}
			}
			require.Equal(t, len(c.end), told, added)
			require.Contains(t, added, `"tollgate":{`)
			if c.path == chatPath {
				require.True(t, strings.HasSuffix(added, "data: [DONE]\n\n"))
			}

			used := w.lastUsed()
			o := used.Outcome
			require.Equal(t, ledger.ReasonAppQuota, o.Finish)
			require.Equal(t, ledger.UsageEstimated, o.UsageState)
			require.Contains(t, used.Reservation.Flags, "hard_limit")
			spent := int64(o.Usage.Total())
			require.LessOrEqual(t, spent, int64(6000))
			require.Greater(t, spent, int64(6000-150), "no more than the smallest step is left, and what is on its way")
			require.LessOrEqual(t, o.Usage.Total(), used.Reservation.HeldInAll().Tokens)
			require.Equal(t, used.Reservation.Extensions, w.extensions())
		})
	}
}

// A stream that is read on without its caller is ended at a hard budget all the same, and its flags tell both.
func TestDrainedStreamOutgrowsHardBudget(t *testing.T) {
	t.Parallel()
	left := make(chan struct{}, 1)
	c := talkers["chat"]
	var w *world
	w = start(t, "  - {name: app-day, tier: app, budget: {tokens: 6000, per: day}, hard: true}\n", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		events(rw, c.start, c.piece)
		stack.Eventually(t, func() error {
			if len(w.gateway.drains) == 0 {
				return errors.New("the gateway has not noticed")
			}
			return nil
		})
		c.endless(left)(rw, r)
	})
	conn := w.rawStream("patient")
	_, err := io.ReadFull(conn, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	used := w.lastUsed()
	<-left
	require.Equal(t, ledger.ReasonAppQuota, used.Outcome.Finish)
	require.Equal(t, "drain", used.Outcome.OnDisconnect)
	require.Contains(t, used.Reservation.Flags, "hard_limit")
	require.Contains(t, used.Reservation.Flags, "disconnect_drain")
	require.LessOrEqual(t, int64(used.Outcome.Usage.Total()), int64(6000))
	require.Empty(t, w.gateway.drains)
}

// lastUsed waits for the Used event of the only request.
func (w *world) lastUsed() (used *event.Event) {
	w.Helper()
	stack.Eventually(w, func() error {
		for _, e := range w.recorded() {
			if e.Kind == event.KindUsed {
				used = e
				return nil
			}
		}
		return fmt.Errorf("no used event")
	})
	return used
}

// recorded are the events of reservations that the stream has.
func (w *world) recorded() []*event.Event {
	w.Helper()
	stream, err := w.js.Stream(w.Context(), event.Stream)
	require.NoError(w, err)
	var found []*event.Event
	for i := uint64(1); i <= stream.CachedInfo().State.LastSeq; i++ {
		msg, err := stream.GetMsg(w.Context(), i)
		require.NoError(w, err)
		e, err := event.Decode(msg.Data)
		require.NoError(w, err)
		if e.Reservation != nil {
			found = append(found, e)
		}
	}
	return found
}

// extensions counts the events that tell of them, each of more than the one before.
func (w *world) extensions() (n int) {
	w.Helper()
	held := ledger.Tokens(0)
	for _, e := range w.recorded() {
		if e.Kind == event.KindExtended {
			n++
			require.Equal(w, event.ExtensionID(e.Reservation.ID, n), e.ID)
			require.Greater(w, e.Reservation.Extended.Tokens, held)
			held = e.Reservation.Extended.Tokens
		}
	}
	return n
}

// longAnswer streams so many pieces of four tokens, then ends with its usage.
func longAnswer(pieces int) http.HandlerFunc {
	c := talkers["chat"]
	return func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		events(rw, c.start, strings.Repeat(c.piece, pieces), lastChunk,
			strings.Replace(usageChunk, `"completion_tokens":5,"total_tokens":17`, fmt.Sprintf(`"completion_tokens":%d,"total_tokens":%d`, 4*pieces, 12+4*pieces), 1), doneChunk)
	}
}

// A soft budget lets the answer finish: every byte of it passes, and the budget is passed by that request.
func TestStreamOutgrowsSoftBudget(t *testing.T) {
	t.Parallel()
	w := start(t, "  - {name: app-day, tier: app, budget: {tokens: 6000, per: day}}\n", longAnswer(2000))
	a := w.send(http.MethodPost, chatPath, talkers["chat"].body)
	require.NoError(t, a.err)
	require.True(t, strings.HasSuffix(a.body, lastChunk+doneChunk))
	used := w.lastUsed()
	require.Equal(t, ledger.ReasonOK, used.Outcome.Finish)
	require.Equal(t, ledger.UsageReported, used.Outcome.UsageState)
	require.EqualValues(t, 8012, used.Outcome.Usage.Total())
	require.GreaterOrEqual(t, int64(used.Reservation.HeldInAll().Tokens), int64(8000))
	require.Contains(t, used.Reservation.Flags, "outgrown")
	require.Equal(t, 1, w.extensions(), "one call for 4,096 tokens")
}

// A request whose bound is held whole asks for nothing more, however tight the budget.
func TestBoundedStreamIsNotExtended(t *testing.T) {
	t.Parallel()
	w := start(t, "  - {name: app-day, tier: app, budget: {tokens: 500, per: day}, hard: true}\n", longAnswer(100))
	a := w.send(http.MethodPost, chatPath, strings.Replace(talkers["chat"].body, `"stream"`, `"max_tokens":400,"stream"`, 1))
	require.NoError(t, a.err)
	require.True(t, strings.HasSuffix(a.body, lastChunk+doneChunk))
	require.Equal(t, ledger.ReasonOK, w.lastUsed().Outcome.Finish)
	require.Zero(t, w.extensions())
}

// While Redis is away a stream under a hard budget has the gateway's own allowance and no more; one without goes on.
func TestStreamGrowsWithoutRedis(t *testing.T) {
	t.Parallel()
	for _, hard := range []bool{true, false} {
		t.Run(fmt.Sprint("hard ", hard), func(t *testing.T) {
			t.Parallel()
			var link *stack.Link
			w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
				link.Refuse(true)
				link.Drop()
				longAnswer(4000)(rw, r)
			})
			link = w.proxied()
			w.run(fmt.Sprintf("  - {name: app-day, tier: app, budget: {tokens: 1000000, per: day}, hard: %t}\n", hard) +
				"degraded:\n  local: {requests_per_second: 100, tokens_per_minute: 3000}\n")
			a := w.send(http.MethodPost, chatPath, talkers["chat"].body)
			require.NoError(t, a.err)
			o := w.lastUsed().Outcome
			if !hard {
				require.Equal(t, ledger.ReasonOK, o.Finish)
				require.EqualValues(t, 16012, o.Usage.Total())
				return
			}
			require.Equal(t, ledger.ReasonDegraded, o.Finish)
			require.Less(t, int64(o.Usage.Output), int64(4096+3000+1))
			require.Greater(t, int64(o.Usage.Output), int64(4096+900))
		})
	}
}
