package outbox

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
)

func TestStreamAwayFromTheStart(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	require.NoError(t, w.nats.Shutdown(t.Context()))
	nc := connect(t, w.nats.ClientURL())
	config := testConfig(t.TempDir())
	config.AckTimeout = time.Minute
	o := start(t, config, nc)
	begun := time.Now()
	ids := mustRecord(t, o, 20)
	require.Less(t, time.Since(begun), o.config.AckTimeout, "a stream that is known to be away is not waited for")
	for sequence, id := range mustAppend(t, o, 20, 0) {
		ids[sequence] = id
	}
	require.Equal(t, 40, o.Pending())
	require.NoError(t, w.nats.Restart(t.Context()))
	o.flush()
	w.requireAll(40, ids)
}

func TestStreamComesAndGoes(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	o := start(t, testConfig(t.TempDir()), w.nc)
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				if e := reserved(0); i%2 == 0 {
					err = o.Record(context.Background(), e)
				} else if o.Pending() < 2000 {
					err = o.Append(e)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		require.NoError(t, w.nats.Shutdown(t.Context()))
		reached := func() error {
			if o.Pending() < 100 {
				return errors.New("not enough pending")
			}
			return nil
		}
		stack.Eventually(t, reached)
		require.NoError(t, w.nats.Restart(t.Context()))
		stack.Eventually(t, func() error {
			if !w.nc.IsConnected() {
				return errors.New("not connected")
			}
			return nil
		})
	}
	close(stop)
	workers.Wait()
	o.flush()
	o.mu.Lock()
	total := o.sequence
	o.mu.Unlock()
	w.requireAll(total, nil)
}

func TestStreamIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := start(t, testConfig(t.TempDir()), w.nc)
	ids := mustRecord(t, o, 1)
	for sequence, id := range mustAppend(t, o, 5, 0) {
		ids[sequence] = id
	}
	w.createStream()
	o.flush()
	w.requireAll(6, ids)
}

// gate is a dialer whose connections take no byte while it is shut, as a socket whose other side is silent.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while bytes pass
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
}

func (g *gate) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return gatedConn{conn, g}, err
}

type gatedConn struct {
	net.Conn
	gate *gate
}

func (c gatedConn) Write(p []byte) (int, error) {
	c.gate.mu.Lock()
	open := c.gate.open
	c.gate.mu.Unlock()
	<-open
	return c.Conn.Write(p)
}

// A server that takes nothing more costs Record its timeout and Append nothing, and stops neither from being durable.
func TestStreamIsSilent(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	g := newGate()
	nc, err := nats.Connect(w.nats.ClientURL(), nats.SetCustomDialer(g), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.ReconnectWait(10*time.Millisecond), nats.Timeout(patience))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	o := start(t, testConfig(t.TempDir()), nc)
	mustRecord(t, o, 1)
	o.flush()
	g.shut()
	ids := mustAppend(t, o, 100, 1<<10)
	begun := time.Now()
	for sequence, id := range mustRecord(t, o, 1) {
		ids[sequence] = id
	}
	require.GreaterOrEqual(t, time.Since(begun), o.config.AckTimeout)
	require.Equal(t, 101, o.Pending())
	g.pass()
	o.flush()
	w.requireAll(102, ids)
}

// When more waits for the stream than the queue holds, Append still returns, and the drainer delivers what found no place.
func TestQueueIsFull(t *testing.T) {
	t.Parallel()
	w := streamed(t)
	o := open(t, testConfig(t.TempDir()), w.nc)
	o.queue = make(chan *publication, 10)
	ids := mustAppend(t, o, 30, 0)
	for sequence, id := range mustRecord(t, o, 1) {
		ids[sequence] = id
	}
	o.run()
	o.flush()
	w.requireAll(31, ids)
}
