package provider

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/policy"
)

// The frames of HTTP/2 that resetting speaks (RFC 9113, section 6), and two reasons for a reset (section 7).
const (
	frameData, frameHeaders, frameReset, frameSettings = 0, 1, 3, 4

	flagEndOrAck = 1

	resetProtocol, resetRefused = 1, 7
)

// resetting speaks HTTP/2 with one connection and answers whole requests with a reset of their streams, after a time.
func resetting(conn net.Conn, reason uint32, after time.Duration, requests *atomic.Int64) {
	var writing sync.Mutex
	write := func(kind, flags byte, stream uint32, payload ...byte) {
		writing.Lock()
		defer writing.Unlock()
		frame := binary.BigEndian.AppendUint32([]byte{0, 0, byte(len(payload)), kind, flags}, stream)
		_, _ = conn.Write(append(frame, payload...))
	}
	if _, err := io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	write(frameSettings, 0, 0)
	for {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, conn, size); err != nil {
			return
		}
		kind, flags, stream := head[3], head[4], binary.BigEndian.Uint32(head[5:])
		switch {
		case kind == frameSettings && flags&flagEndOrAck == 0:
			write(frameSettings, flagEndOrAck, 0)
		case (kind == frameHeaders || kind == frameData) && flags&flagEndOrAck != 0:
			requests.Add(1)
			time.Sleep(after) // what the provider does meanwhile is billed
			write(frameReset, 0, stream, binary.BigEndian.AppendUint32(nil, reason)...)
		}
	}
}

// A provider that has had a whole request for a while, and then resets its stream, gets it once: net/http takes a reset for
// PROTOCOL_ERROR as leave to send the request again, up to seven times. One that refuses it at once has not begun.
func TestResetStreamIsSentOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reason uint32
		after  time.Duration
		again  bool
	}{
		"broken, after a while": {resetProtocol, refusedWithin + 100*time.Millisecond, false},
		"refused at once":       {resetRefused, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			certified := httptest.NewUnstartedServer(nil)
			certified.StartTLS()
			defer certified.Close()
			listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"h2"}})
			require.NoError(t, err)
			var requests atomic.Int64
			var serving sync.WaitGroup
			var conns []net.Conn
			var mu sync.Mutex
			serving.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					mu.Lock()
					conns = append(conns, conn)
					mu.Unlock()
					serving.Go(func() { resetting(conn, c.reason, c.after, &requests) })
				}
			})
			transport := NewTransport(Timeouts{Dial: time.Minute, Header: time.Minute})
			transport.TLSClientConfig = certified.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			t.Cleanup(func() {
				transport.CloseIdleConnections()
				require.NoError(t, listener.Close())
				mu.Lock()
				all := slices.Clone(conns)
				mu.Unlock()
				for _, conn := range all {
					_ = conn.Close()
				}
				serving.Wait()
			})
			u := NewUpstream(&policy.Provider{Name: "openai", Protocol: policy.ProtocolOpenAI, BaseURL: "https://" + listener.Addr().String() + "/v1"}, transport, secret)
			u.Timeouts.Total = 4 * time.Second
			call := func() (sent int64) {
				requests.Store(0)
				_, err := send(u, nil)
				var failed *SendError
				require.ErrorAs(t, err, &failed)
				return requests.Load()
			}
			if !c.again {
				require.LessOrEqual(t, call(), int64(1))
				return
			}
			stack.Eventually(t, func() error { // who stands still takes a refusal at once for a late one
				if n := call(); n < 2 {
					return fmt.Errorf("%d requests", n)
				}
				return nil
			})
		})
	}
}
