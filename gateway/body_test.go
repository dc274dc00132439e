package gateway

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"tollgate/ledger/event"
)

// largeChat is a body with an image of so many bytes.
func largeChat(model string, size int, more string) string {
	image := make([]byte, size)
	_, _ = rand.Read(image)
	return `{"model":"` + model + `","messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},` +
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64.StdEncoding.EncodeToString(image) + `"}}]}],"max_tokens":10,"user":"eve"` + more + `}`
}

// Large bodies lie on disk on their way. They reach the provider byte for byte, or with nothing changed but what must be, are
// metered as if they were small, and leave nothing.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	var got atomic.Value
	w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		require.Equal(t, r.ContentLength, int64(len(text)))
		got.Store(string(text))
		plain(rw, r)
	})
	w.config.MaxBody = 8 << 20
	w.run(roomy)
	same := largeChat("gpt-4o-mini", 3<<20, "")
	a := w.send(http.MethodPost, chatPath, same)
	require.Equal(t, 200, a.StatusCode, a.body)
	require.True(t, got.Load() == same, "byte for byte")

	alias := largeChat("fast", 1<<20, "")
	require.Equal(t, 200, w.send(http.MethodPost, chatPath, alias).StatusCode)
	require.True(t, got.Load() == strings.Replace(alias, `"fast"`, `"gpt-4o-mini"`, 1), "only the model is another")

	streamed := largeChat("gpt-4o-mini", 1<<20, `,"stream":true`)
	require.Equal(t, 200, w.send(http.MethodPost, chatPath, streamed).StatusCode)
	require.True(t, got.Load() == strings.TrimSuffix(streamed, "}")+`,"stream_options":{"include_usage":true}}`)

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if a := w.send(http.MethodPost, chatPath, alias); a.err != nil || a.StatusCode != 200 {
				t.Errorf("answer %+v", a)
			}
		})
	}
	all.Wait()
	found := w.events(22)
	small := gjson.Get(same, "messages.0.content.0.text").Str
	require.Equal(t, "What is it?", small)
	for _, e := range found[event.KindReserved] {
		require.Equal(t, "eve", e.Reservation.User)
		require.Equal(t, found[event.KindReserved][0].Reservation.Held, e.Reservation.Held, "the size of an image that cannot be read is not its tokens")
	}
	require.Zero(t, w.gateway.bodies.used.Load())
}

// A large body that is wrong is told so as a small one is, also after its memory went to the next.
func TestLargeBodyIsRefused(t *testing.T) {
	t.Parallel()
	w := begin(t, func(http.ResponseWriter, *http.Request) { t.Error("reached the provider") })
	w.config.MaxBody, w.config.MaxBodies = 2<<20, 3<<20
	w.run(roomy)
	pad := strings.Repeat("x", 1<<20)
	for reason, body := range map[string]string{
		"BAD_REQUEST":    `{"pad":"` + pad + `","twice":1,"twice":2}`,
		"UNKNOWN_MODEL":  `{"model":"nobody","messages":[],"pad":"` + pad + `"}`,
		"BODY_TOO_LARGE": `{"pad":"` + pad + pad + `"}`,
	} {
		require.Equal(t, reason, w.problemOf(w.send(http.MethodPost, chatPath, body)).Tollgate.Reason)
	}
	require.Equal(t, "twice", *w.problemOf(w.send(http.MethodPost, chatPath, `{"pad":"`+pad+`","twice":1,"twice":2}`)).Error.Param)

	w.gateway.bodies.used.Add(5 << 19)
	tooLarge := w.problemOf(w.send(http.MethodPost, chatPath, `{"pad":"`+pad+pad+`"}`))
	require.Equal(t, "BODY_TOO_LARGE", tooLarge.Tollgate.Reason, "what cannot be taken needs no room")
	for _, chunked := range []bool{false, true} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+chatPath, struct{ io.Reader }{strings.NewReader(`{"pad":"` + pad + `"}`)})
		require.NoError(t, err)
		if !chunked {
			r.ContentLength = int64(len(pad) + 10)
		}
		r.Header.Set("Authorization", "Bearer "+callerSecret)
		response, err := w.client.Do(r)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, 503, response.StatusCode)
		require.Equal(t, "BODIES_FULL", gjson.GetBytes(text, "tollgate.reason").Str)
	}
	require.Equal(t, int64(5<<19), w.gateway.bodies.used.Load())
}

// What a gateway that died left in its folder goes with the next one.
func TestLeftBodiesAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "body-1"), bytes.Repeat([]byte("x"), 10), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kept"), nil, 0o600))
	_, err := newBodies(dir, 1<<20)
	require.NoError(t, err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// A caller that stops in the middle of its body gives back the room that it took, and is told so; the deadline is not that of the
// answer.
func TestStalledBody(t *testing.T) {
	t.Parallel()
	w := begin(t, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(700 * time.Millisecond) // longer than the caller's time, as answers are
		plain(rw, r)
	})
	w.config.MaxBody, w.config.CallerTimeout = 2<<20, 500*time.Millisecond
	w.run(roomy)
	for name, sent := range map[string]string{"small": "{", "large": `{"pad":"` + strings.Repeat("x", 1<<20)} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		require.NoError(t, err, name)
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chatPath, callerSecret, len(sent)+10, sent)
		require.NoError(t, err, name)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, name)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err, name)
		require.Equal(t, 408, response.StatusCode, string(text))
		require.True(t, response.Close)
		require.Equal(t, "BODY_TIMEOUT", gjson.GetBytes(text, "tollgate.reason").Str)
		require.Contains(t, gjson.GetBytes(text, "error.message").Str, "500ms")
		require.NoError(t, conn.Close())
	}
	require.Zero(t, w.gateway.bodies.used.Load())

	const pace = 200 * time.Millisecond // each in time, all of them not
	slow, feed := io.Pipe()
	var paced atomic.Int64
	go func() {
		for piece := range strings.SplitAfterSeq(chatBody(""), ",") {
			time.Sleep(pace)
			paced.Add(int64(pace))
			_, _ = io.WriteString(feed, piece)
		}
		_ = feed.Close()
	}()
	begun := time.Now()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+chatPath, slow)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+callerSecret)
	response, err := w.client.Do(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	if response.StatusCode == 408 {
		stood := time.Since(begun) - time.Duration(paced.Load())
		require.Greater(t, stood, w.config.CallerTimeout-pace, "a piece was late because this process stood still")
		return
	}
	require.Equal(t, 200, response.StatusCode)
}
