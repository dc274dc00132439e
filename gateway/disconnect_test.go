package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

// said is how many pieces of four tokens a provider has said when its caller leaves.
const said = 10

// usage is how each protocol ends a stream that said ten pieces, its figures last.
var usage = map[string]string{
	"chat": lastChunk + `data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":41,"total_tokens":53}}` + "\n\n" + doneChunk,
	"completions": `data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\n" +
		`data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":41,"total_tokens":53}}` + "\n\n" + doneChunk,
	"responses": "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"usage\":{\"input_tokens\":12,\"output_tokens\":41,\"total_tokens\":53}}}\n\n",
	"messages": "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":12,\"output_tokens\":41}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
	"gemini":         `data: {"candidates":[{"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":12,"candidatesTokenCount":41,"totalTokenCount":53}}` + "\r\n\r\n",
	"gemini, a list": `,{"candidates":[{"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":12,"candidatesTokenCount":41,"totalTokenCount":53}}]` + "\n",
}

// moments are when a caller can leave, in order.
var moments = []string{"before the first byte", "before the first token", "during", "after the last token"}

// leaving is a provider whose caller leaves at a moment, and that goes on unless it is cancelled.
type leaving struct {
	*testing.T
	name    string
	moment  string
	leave   context.CancelFunc
	noticed func() bool // by the gateway, where the provider is not cancelled
}

func (l *leaving) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c := talkers[l.name]
	_, _ = io.Copy(io.Discard, r.Body)
	say := func(text string) {
		_, _ = io.WriteString(rw, text)
		rw.(http.Flusher).Flush()
	}
	if l.moment == moments[0] {
		l.leave()
		if l.noticed == nil {
			<-r.Context().Done()
			return
		}
	}
	rw.Header().Set("Content-Type", c.media)
	say(c.start)
	switch l.moment {
	case moments[1]:
		l.leave()
	case moments[2]:
		say(c.pieces(said / 2))
	case moments[3]:
		say(c.pieces(said))
	}
	if l.noticed == nil {
		<-r.Context().Done()
		return
	}
	stack.Eventually(l, func() error {
		if !l.noticed() {
			return fmt.Errorf("the gateway has not noticed")
		}
		return nil
	})
	text := usage[l.name]
	if l.moment == moments[0] || l.moment == moments[1] {
		text = strings.TrimPrefix(text, ",")
	}
	say(text)
}

// pieces are so many, as the stream has them.
func (c talker) pieces(n int) string {
	between := ""
	if c.media == "application/json" {
		between = ","
	}
	return strings.TrimSuffix(strings.Repeat(c.piece+between, n), between)
}

// leaveStream asks for a stream and leaves at the moment.
func (l *leaving) leaveStream(w *world, path, body string) {
	ctx, cancel := context.WithCancel(l.Context())
	l.leave = cancel
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, strings.NewReader(body))
	require.NoError(l, err)
	r.Header.Set("X-Api-Key", callerSecret)
	response, err := w.client.Do(r)
	if l.moment == moments[0] || l.moment == moments[1] {
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		return
	}
	require.NoError(l, err)
	c := talkers[l.name]
	n := said
	if l.moment == moments[2] {
		n = said / 2
	}
	_, err = io.ReadFull(response.Body, make([]byte, len(c.start+c.pieces(n))))
	require.NoError(l, err)
	cancel()
	_ = response.Body.Close()
}

// Whenever a caller leaves a stream, of whatever protocol: cancelled, the usage is the input and what was said until then, and
// says so; drained, it is what the provider reports. The ledger knows which was done.
func TestCallerLeavesStream(t *testing.T) {
	t.Parallel()
	for name, c := range talkers {
		for _, policy := range []string{"cancel", "drain"} {
			t.Run(name+", "+policy, func(t *testing.T) {
				t.Parallel()
				l := &leaving{T: t, name: name}
				w := start(t, roomy, l.ServeHTTP)
				path, body := c.path, c.body
				if policy == "drain" {
					l.noticed = func() bool { return len(w.gateway.drains) == 1 }
					for from, to := range map[string]string{`"gpt-4o-mini"`: `"patient"`, `"claude"`: `"steady"`, "gemini-2.5-flash": "calm"} {
						path, body = strings.Replace(path, from, to, 1), strings.Replace(body, from, to, 1)
					}
				}
				for i, moment := range moments {
					w.awaitDrains(0)
					l.moment = moment
					l.leaveStream(w, path, body)
					used := w.usedEvents(i + 1)[i]
					o := used.Outcome
					require.Equal(t, ledger.ReasonClientGone, o.Finish, moment)
					require.Equal(t, policy, o.OnDisconnect, moment)
					require.Contains(t, used.Reservation.Flags, "disconnect_"+policy, moment)
					if policy == "drain" {
						require.Equal(t, ledger.UsageReported, o.UsageState, moment)
						require.Equal(t, ledger.Usage{Input: 12, Output: 41}, o.Usage, moment)
						continue
					}
					require.Equal(t, ledger.UsageEstimated, o.UsageState, moment)
					require.Positive(t, o.Usage.Input, moment)
					want := int64([]int{0, 0, 4 * said / 2, 4 * said}[i])
					if strings.HasPrefix(name, "gemini") {
						want = want * 9 / 10 // by the heuristic
					}
					require.InDelta(t, want, int64(o.Usage.OutputTotal()), 3, moment)
				}
			})
		}
	}
}

// A response in the background goes on at its provider when its stream is left, and is charged its estimate, as one that is not
// streamed.
func TestCallerLeavesBackground(t *testing.T) {
	t.Parallel()
	l := &leaving{T: t, name: "responses"}
	w := start(t, roomy, l.ServeHTTP)
	body := strings.Replace(talkers["responses"].body, "{", `{"background":true,"max_output_tokens":700,`, 1)
	for i, moment := range moments {
		l.moment = moment
		l.leaveStream(w, "/v1/responses", body)
		used := w.usedEvents(i + 1)[i]
		require.Equal(t, ledger.ReasonClientGone, used.Outcome.Finish, moment)
		require.Equal(t, ledger.UsageEstimated, used.Outcome.UsageState, moment)
		require.EqualValues(t, 700, used.Outcome.Usage.Output, moment)
	}
}

// usedEvents waits until so many requests have been used, and gives them in their order.
func (w *world) usedEvents(n int) (used []*event.Event) {
	w.Helper()
	stack.Eventually(w, func() error {
		used = nil
		for _, e := range w.recorded() {
			if e.Kind == event.KindUsed {
				used = append(used, e)
			}
		}
		if len(used) != n {
			return fmt.Errorf("%d used, want %d", len(used), n)
		}
		return nil
	})
	return used
}

// awaitDrains waits until so many streams are read on without their caller.
func (w *world) awaitDrains(n int) {
	w.Helper()
	stack.Eventually(w, func() error {
		if got := len(w.gateway.drains); got != n {
			return fmt.Errorf("%d drains, want %d", got, n)
		}
		return nil
	})
}

// rawStream asks for a stream on a connection of its own.
func (w *world) rawStream(model string) *net.TCPConn {
	w.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	require.NoError(w, conn.SetDeadline(time.Now().Add(patience)))
	body := strings.Replace(talkers["chat"].body, "gpt-4o-mini", model, 1)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Length: %d\r\n\r\n%s", chatPath, callerSecret, len(body), body)
	require.NoError(w, err)
	return conn.(*net.TCPConn)
}

// Callers who reset their connection, close half of it, or stop reading are gone, too: their provider is cancelled, and what it
// said is charged once.
func TestCallerLeavesOddly(t *testing.T) {
	t.Parallel()
	const unread = 3 * time.Second // the first piece must pass within half of it
	for name, c := range map[string]struct {
		patience time.Duration
		leave    func(t *testing.T, conn *net.TCPConn)
	}{
		"reset": {patience, func(t *testing.T, conn *net.TCPConn) {
			require.NoError(t, conn.SetLinger(0))
			require.NoError(t, conn.Close())
		}},
		"half-closed": {patience, func(t *testing.T, conn *net.TCPConn) {
			require.NoError(t, conn.CloseWrite())
			go func() { _, _ = io.Copy(io.Discard, conn) }() // until the test closes it
		}},
		"stops reading": {unread, func(*testing.T, *net.TCPConn) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			left := make(chan struct{}, 1)
			talker := talkers["chat"]
			talker.piece = strings.Replace(talker.piece, " one two", strings.Repeat(" one two", 1000), 1)
			w := begin(t, talker.endless(left))
			w.config.CallerTimeout = c.patience
			w.run(roomy)
			conn := w.rawStream("gpt-4o-mini")
			first := make([]byte, 1)
			_, err := io.ReadFull(conn, first)
			require.NoError(t, err)
			c.leave(t, conn)
			select {
			case <-left:
			case <-time.After(patience):
				t.Fatal("the provider was not cancelled")
			}
			used := w.usedEvents(1)[0]
			require.Equal(t, ledger.ReasonClientGone, used.Outcome.Finish)
			require.Contains(t, used.Reservation.Flags, "disconnect_cancel")
			require.Equal(t, ledger.UsageEstimated, used.Outcome.UsageState)
			require.Positive(t, used.Outcome.Usage.Output)
		})
	}
}

// Drains are bounded in number, in time, and by the gateway's own end.
func TestDrainsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Config)
		did    string
	}{
		"too many": {func(c *Config) { c.Drains = 0 }, "cancel"},
		"too long": {func(c *Config) { c.DrainTimeout = 200 * time.Millisecond }, "drain"},
		"shutdown": {func(c *Config) { c.ShutdownTimeout = 200 * time.Millisecond }, "drain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				events(rw, talkers["chat"].start, talkers["chat"].piece)
				<-r.Context().Done()
			})
			c.change(&w.config)
			w.run(roomy)
			conn := w.rawStream("patient")
			requireRead(t, conn, "one two three four")
			require.NoError(t, conn.Close())
			if name == "shutdown" {
				w.awaitDrains(1)
				require.Error(t, w.stop(), "time was up")
				w.stop = func() error { return nil }
			}
			used := w.usedEvents(1)[0]
			require.Equal(t, ledger.ReasonClientGone, used.Outcome.Finish)
			require.Equal(t, c.did, used.Outcome.OnDisconnect)
			require.Equal(t, ledger.UsageEstimated, used.Outcome.UsageState)
			require.EqualValues(t, 4, used.Outcome.Usage.Output)
			w.awaitDrains(0)
		})
	}
}

// requireRead reads until the text has come.
func requireRead(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	var read []byte
	for piece := make([]byte, 4<<10); !bytes.Contains(read, []byte(text)); {
		n, err := conn.Read(piece)
		require.NoError(t, err)
		read = append(read, piece[:n]...)
	}
}
