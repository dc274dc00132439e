package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

const (
	firstChunk = "data: {\"id\":\"c-1\",\"model\":\"gpt-4o-mini\",\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n"
	lastChunk  = "data: {\"id\":\"c-1\",\"model\":\"gpt-4o-mini\",\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	usageChunk = "data: {\"id\":\"c-1\",\"model\":\"gpt-4o-mini\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5,\"total_tokens\":17}}\n\n"
	doneChunk  = "data: [DONE]\n\n"
)

// events answers with a stream of the parts, each flushed.
func events(rw http.ResponseWriter, parts ...string) {
	rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, part := range parts {
		_, _ = io.WriteString(rw, part)
		rw.(http.Flusher).Flush()
	}
}

// cut breaks the connection off.
func cut() { panic(http.ErrAbortHandler) }

func TestStream(t *testing.T) {
	t.Parallel()
	var body string
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body = string(text)
		events(rw, firstChunk, lastChunk, usageChunk, doneChunk)
	})
	a := w.chat(`,"stream":true`)
	require.NoError(t, a.err)
	require.Equal(t, firstChunk+lastChunk+doneChunk, a.body, "the usage chunk that nobody asked for is withheld")
	require.Contains(t, body, `"stream_options":{"include_usage":true}`)
	require.Equal(t, "text/event-stream; charset=utf-8", a.Header.Get("Content-Type"))
	o := w.outcome()
	require.Equal(t, ledger.Usage{Input: 12, Output: 5}, o.Usage)
	require.Equal(t, ledger.UsageReported, o.UsageState)
	require.Equal(t, ledger.ReasonOK, o.Finish)
}

func TestStreamWithUsageAsked(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) {
		events(rw, firstChunk, lastChunk, usageChunk, doneChunk)
	})
	a := w.chat(`,"stream":true,"stream_options":{"include_usage":true}`)
	require.Equal(t, firstChunk+lastChunk+usageChunk+doneChunk, a.body)
	require.Equal(t, ledger.UsageReported, w.outcome().UsageState)
}

// An error that the provider tells inside its stream ends the answer; it is passed on, and not cut off.
func TestStreamFails(t *testing.T) {
	t.Parallel()
	const failure = "data: {\"error\":{\"message\":\"overloaded\"}}\n\n"
	w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) { events(rw, firstChunk, failure) })
	a := w.chat(`,"stream":true`)
	require.NoError(t, a.err)
	require.Equal(t, firstChunk+failure, a.body)
	o := w.outcome()
	require.Equal(t, ledger.ReasonUpstreamFailed, o.Finish)
	require.Equal(t, ledger.UsageEstimated, o.UsageState)
}

// A provider that does not stream is answered through, and metered.
func TestStreamThatIsNone(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	a := w.chat(`,"stream":true`)
	require.NoError(t, a.err)
	require.Equal(t, plainAnswer, a.body)
	require.Equal(t, ledger.UsageReported, w.outcome().UsageState)
}

// Whatever the provider refuses is passed on and given back; its key does not come along.
func TestUpstreamRefuses(t *testing.T) {
	t.Parallel()
	for _, status := range []int{302, 400, 401, 429, 500, 503} {
		for _, stream := range []string{"", `,"stream":true`} {
			t.Run(fmt.Sprint(status, stream), func(t *testing.T) {
				t.Parallel()
				w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
					rw.Header().Set("Retry-After", "7")
					rw.Header().Set("Location", "/elsewhere")
					rw.WriteHeader(status)
					_, _ = io.WriteString(rw, `{"error":{"message":"no: `+strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")+`"}}`)
				})
				w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
				a := w.chat(stream)
				require.NoError(t, a.err)
				require.Equal(t, status, a.StatusCode)
				require.Equal(t, `{"error":{"message":"no: [hidden]"}}`, a.body)
				require.Equal(t, "7", a.Header.Get("Retry-After"))
				require.NotEmpty(t, a.Header.Get("X-Tollgate-Request-Id"))
				require.Equal(t, event.Release{Reason: ledger.ReasonUpstreamFailed, Status: status}, *w.released())
			})
		}
	}
}

func TestUpstreamRefusesTheConnection(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	w.provider.Close()
	a := w.chat("")
	require.Equal(t, 502, a.StatusCode)
	require.Equal(t, "UPSTREAM_FAILED", w.problemOf(a).Tollgate.Reason)
	require.Equal(t, event.Release{Reason: ledger.ReasonUpstreamFailed, Tries: 2}, *w.released())
	require.Equal(t, 1.0, testutil.ToFloat64(w.gateway.metrics.retries.WithLabelValues("openai", "connect")))
	require.Equal(t, 2.0, testutil.ToFloat64(w.gateway.metrics.upstreamRequests.WithLabelValues("openai", "gpt-4o-mini", "0")))
}

// Once a request was sent, nobody knows what it cost: the estimate is charged.
func TestUpstreamTimesOut(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	w := begin(t, func(http.ResponseWriter, *http.Request) { <-leave })
	t.Cleanup(func() { close(leave) })
	w.config.HeaderTimeout = 30 * time.Millisecond
	w.run(roomy)
	a := w.chat("")
	require.Equal(t, 504, a.StatusCode)
	require.Equal(t, "UPSTREAM_TIMEOUT", w.problemOf(a).Tollgate.Reason)
	o := w.outcome()
	require.Equal(t, ledger.UsageEstimated, o.UsageState)
	require.Equal(t, ledger.Tokens(10), o.Usage.Output, "the bound of the request")
	require.Positive(t, o.Usage.Input)
	require.Positive(t, o.Cost)
	require.Equal(t, ledger.ReasonUpstreamTimeout, o.Finish)
}

func TestUpstreamClosesWithoutAnswer(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(http.ResponseWriter, *http.Request) { cut() })
	a := w.chat("", "Idempotency-Key", "k")
	require.Equal(t, 502, a.StatusCode)
	o := w.outcome()
	require.Equal(t, ledger.UsageEstimated, o.UsageState)
	require.Equal(t, ledger.ReasonUpstreamFailed, o.Finish)
}

func TestPlainAnswerIsCut(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(rw, plainAnswer[:50])
		rw.(http.Flusher).Flush()
		cut()
	})
	a := w.chat("")
	require.NoError(t, a.err)
	require.Equal(t, 502, a.StatusCode)
	require.Equal(t, "UPSTREAM_CUT", w.problemOf(a).Tollgate.Reason)
	require.Equal(t, ledger.UsageEstimated, w.outcome().UsageState)
}

func TestStreamIsCut(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]string{
		"nothing": {}, "first": {firstChunk}, "in an event": {firstChunk, lastChunk[:30]}, "finish": {firstChunk, lastChunk}, "usage": {firstChunk, lastChunk, usageChunk},
	} {
		for _, clean := range []bool{false, true} {
			t.Run(fmt.Sprint(name, clean), func(t *testing.T) {
				t.Parallel()
				w := start(t, roomy, func(rw http.ResponseWriter, _ *http.Request) {
					events(rw, parts...)
					rw.(http.Flusher).Flush()
					if !clean {
						cut()
					}
				})
				a := w.chat(`,"stream":true`)
				if len(parts) == 0 {
					require.NoError(t, a.err)
					require.Equal(t, 502, a.StatusCode)
					require.Equal(t, "UPSTREAM_CUT", w.problemOf(a).Tollgate.Reason)
				} else {
					require.ErrorIs(t, a.err, io.ErrUnexpectedEOF, "it must not look complete")
					require.Equal(t, strings.ReplaceAll(strings.Join(parts, ""), usageChunk, ""), a.body)
				}
				o := w.outcome()
				require.Equal(t, ledger.ReasonUpstreamCut, o.Finish)
				if name == "usage" {
					require.Equal(t, ledger.Usage{Input: 12, Output: 5}, o.Usage)
				} else {
					require.Equal(t, ledger.UsageEstimated, o.UsageState)
					require.Positive(t, o.Usage.Input)
					require.Equal(t, len(parts) > 0, o.Usage.Output > 0)
				}
			})
		}
	}
}

// A caller that leaves while a plain answer is made: it is made, and settled exactly.
func TestCallerLeavesPlain(t *testing.T) {
	t.Parallel()
	arrived, proceed := make(chan struct{}), make(chan struct{})
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-proceed
		if r.Context().Err() != nil {
			t.Error("the upstream call was cancelled")
		}
		plain(rw, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	a := w.sendContext(ctx, "POST", chatPath, chatBody(""))
	require.ErrorIs(t, a.err, context.Canceled)
	close(proceed)
	o := w.outcome()
	require.Equal(t, ledger.Usage{Input: 12, Output: 5}, o.Usage)
	require.Equal(t, ledger.UsageReported, o.UsageState)
}

// leaveStream starts a stream, leaves after its first event and returns when the provider knows, or goes on.
func leaveStream(t *testing.T, model string, after func(rw http.ResponseWriter, r *http.Request)) *world {
	t.Helper()
	w := start(t, roomy, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		events(rw, firstChunk)
		after(rw, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", w.url+chatPath, strings.NewReader(`{"model":"`+model+`","messages":[],"stream":true}`))
	require.NoError(t, err)
	r.Header.Set("X-Api-Key", callerSecret)
	response, err := w.client.Do(r)
	require.NoError(t, err)
	first := make([]byte, len(firstChunk))
	_, err = io.ReadFull(response.Body, first)
	require.NoError(t, err)
	require.Equal(t, firstChunk, string(first))
	cancel()
	_ = response.Body.Close()
	return w
}

func TestCallerLeavesStreamCancel(t *testing.T) {
	t.Parallel()
	cancelled := make(chan struct{})
	w := leaveStream(t, "gpt-4o-mini", func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(cancelled)
	})
	select {
	case <-cancelled:
	case <-time.After(patience):
		t.Fatal("the upstream call was not cancelled")
	}
	o := w.outcome()
	require.Equal(t, ledger.ReasonClientGone, o.Finish)
	require.Equal(t, "cancel", o.OnDisconnect)
	require.Equal(t, ledger.UsageEstimated, o.UsageState)
	require.Equal(t, ledger.Tokens(1), o.Usage.Output)
}

func TestCallerLeavesStreamDrain(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	w := leaveStream(t, "patient", func(rw http.ResponseWriter, r *http.Request) {
		<-proceed
		// Enough to notice that nobody reads.
		for range 200 {
			events(rw, strings.Replace(firstChunk, "Hel", strings.Repeat("x", 20_000), 1))
		}
		events(rw, lastChunk, usageChunk, doneChunk)
	})
	w.awaitDrains(1)
	close(proceed)
	o := w.outcome()
	require.Equal(t, ledger.ReasonClientGone, o.Finish)
	require.Equal(t, "drain", o.OnDisconnect)
	require.Equal(t, ledger.Usage{Input: 12, Output: 5}, o.Usage)
}

// A caller that leaves before its body is complete costs nothing.
func TestCallerLeavesEarly(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(http.ResponseWriter, *http.Request) { t.Error("reached the provider") })
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Length: 100\r\n\r\n{\"model\"", chatPath, callerSecret)
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 400, response.StatusCode)
	require.NoError(t, response.Body.Close())
	require.NoError(t, conn.Close())
	w.events(0)
}

type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("a bug") }

// A bug answers 500, and what was held is charged as estimated: nobody knows what happened.
func TestPanic(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, plain)
	p := w.rules(roomy)
	upstreams, err := connect(p, panicking{})
	require.NoError(t, err)
	require.NoError(t, w.gateway.admission.SetPolicy(p, upstreams))
	a := w.chat("")
	require.Equal(t, 500, a.StatusCode)
	require.Equal(t, "INTERNAL", w.problemOf(a).Tollgate.Reason)
	o := w.outcome()
	require.Equal(t, ledger.ReasonInternal, o.Finish)
	require.Equal(t, ledger.UsageEstimated, o.UsageState)
	require.Contains(t, w.logs.String(), `"panic":"a bug"`)
}

// With Redis away the gateway judges by itself. Where it refuses, whether the hold was made nobody knows: its release is on
// record. Where it allows, the events say how.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	for name, local := range map[string]string{"allows": "{requests_per_second: 2, tokens_per_minute: 100000}", "refuses": "{requests_per_second: 0, tokens_per_minute: 0}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, plain)
			w.config.LimiterTimeout = 30 * time.Millisecond
			link := w.proxied()
			w.run(roomy + "degraded:\n  local: " + local + "\n")
			link.BlackHole(true)
			a := w.chat("")
			if name == "allows" {
				require.Equal(t, 200, a.StatusCode)
				found := w.events(2)
				require.Equal(t, []string{"degraded"}, found[event.KindReserved][0].Reservation.Flags)
				require.Equal(t, found[event.KindReserved][0].Reservation, found[event.KindUsed][0].Reservation)
				return
			}
			require.Equal(t, 429, a.StatusCode)
			require.Equal(t, "DEGRADED", w.problemOf(a).Tollgate.Reason)
			require.NotEmpty(t, a.Header.Get("Retry-After"))
			found := w.events(1)
			require.Equal(t, ledger.ReasonDegraded, found[event.KindReleased][0].Release.Reason)
			require.Equal(t, 1.0, testutil.ToFloat64(w.gateway.metrics.decisions.WithLabelValues("refuse", "DEGRADED", "")))
		})
	}
}

// A reservation that cannot go on record is given back, and the provider is not called.
func TestEventLogIsDown(t *testing.T) {
	t.Parallel()
	w := start(t, roomy, func(http.ResponseWriter, *http.Request) { t.Error("reached the provider") })
	require.NoError(t, w.outbox.Close())
	a := w.chat("")
	require.Equal(t, 503, a.StatusCode)
	require.Equal(t, "EVENT_LOG_DOWN", w.problemOf(a).Tollgate.Reason)
	require.Equal(t, "1", a.Header.Get("Retry-After"))
	require.Equal(t, 1.0, testutil.ToFloat64(w.gateway.metrics.decisions.WithLabelValues("refuse", "EVENT_LOG_DOWN", "")))
	deadlines, err := w.redis.ZCard(t.Context(), "{app:"+app+"}:tg1:deadlines").Result()
	require.NoError(t, err)
	require.Zero(t, deadlines)
	require.Error(t, w.stop(), "the outbox was closed before")
	w.stop = func() error { return nil }
}
