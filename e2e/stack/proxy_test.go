package stack_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

// enough is longer than anything takes that happens at all.
const enough = time.Minute

// echo is a server that sends back what it gets, and ends a connection when the client does.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(conn, conn) // Broken connections are the point of these tests.
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		wg.Wait()
	})
	return l.Addr().String()
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(enough)))
	return conn.(*net.TCPConn)
}

func exchange(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	got := make([]byte, len(text))
	_, err = io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func TestProxyPassesEverythingAndTheEnd(t *testing.T) {
	t.Parallel()
	link := stack.Proxy(t, echo(t))
	conn := dial(t, link.Addr)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := conn.Write(sent); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	got, err := io.ReadAll(conn)
	wg.Wait()
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.Eventually(t, func() bool { return link.Connections() == 0 }, enough, time.Millisecond)
}

func TestProxyLatency(t *testing.T) {
	t.Parallel()
	link := stack.Proxy(t, echo(t))
	conn := dial(t, link.Addr)
	exchange(t, conn, "before")
	const delay = 100 * time.Millisecond
	link.SetLatency(delay)
	begin := time.Now()
	exchange(t, conn, "delayed")
	require.GreaterOrEqual(t, time.Since(begin), 2*delay, "each direction is delayed")
}

func TestProxyBlackHole(t *testing.T) {
	t.Parallel()
	link := stack.Proxy(t, echo(t))
	old := dial(t, link.Addr)
	exchange(t, old, "before")
	link.BlackHole(true)
	link.BlackHole(true)
	fresh := dial(t, link.Addr)
	for _, conn := range []net.Conn{old, fresh} {
		_, err := io.WriteString(conn, "held")
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		_, err = conn.Read(make([]byte, 1))
		var netErr net.Error
		require.ErrorAs(t, err, &netErr)
		require.True(t, netErr.Timeout())
	}
	link.BlackHole(false)
	for _, conn := range []net.Conn{old, fresh} {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(enough)))
		got := make([]byte, 4)
		_, err := io.ReadFull(conn, got)
		require.NoError(t, err)
		require.Equal(t, "held", string(got), "what was held back arrives")
	}
}

func TestProxyRefusesAndDrops(t *testing.T) {
	t.Parallel()
	link := stack.Proxy(t, echo(t))
	old := dial(t, link.Addr)
	exchange(t, old, "before")
	link.Refuse(true)
	requireReset(t, link.Addr)
	exchange(t, old, "still there")
	link.Drop()
	_, err := old.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET, "never a clean end")
	link.Refuse(false)
	exchange(t, dial(t, link.Addr), "again")
}

func TestProxyDropsAfterSomeBytes(t *testing.T) {
	t.Parallel()
	link := stack.Proxy(t, echo(t))
	conn := dial(t, link.Addr)
	link.DropAfter(5)
	_, err := io.WriteString(conn, "0123456789")
	require.NoError(t, err)
	got, err := io.ReadAll(conn)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, "01234", string(got))
	exchange(t, dial(t, link.Addr), "it happens once")
}

func TestProxyHalfClose(t *testing.T) {
	t.Parallel()
	link := stack.Proxy(t, echo(t))
	conn := dial(t, link.Addr)
	exchange(t, conn, "before")
	require.NoError(t, link.HalfClose())
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = io.WriteString(conn, "into the void")
	require.NoError(t, err)
	require.Equal(t, 1, link.Connections(), "the other direction is still open")
}

func TestProxyToNowhere(t *testing.T) {
	t.Parallel()
	requireReset(t, stack.Proxy(t, stack.FreeAddr(t)).Addr)
}

// requireReset requires that a new connection is reset, which the client may learn as early as while it connects.
func requireReset(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(enough)))
		_, err = conn.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}
