package stack

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link is a TCP proxy between a client and a server, with switches for what networks do. Its methods are safe for concurrent
// use.
type Link struct {
	// Addr is the host:port that stands for the target.
	Addr string

	t        testing.TB
	listener net.Listener
	wg       sync.WaitGroup

	mu        sync.Mutex
	target    string
	closed    bool
	refuse    bool
	latency   time.Duration
	passing   chan struct{} // closed while bytes may pass
	dropAfter int64         // bytes from the server until a reset; negative: no limit
	pairs     map[*pair]struct{}
}

// pair is one connection through the link.
type pair struct {
	client, server *net.TCPConn
	gone           chan struct{} // closed by end
	once           sync.Once
	halfClosed     atomic.Bool
}

// Proxy starts a link to target (host:port); it ends with the test.
func Proxy(t testing.TB, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{
		Addr: listener.Addr().String(), t: t, target: target, listener: listener,
		passing: make(chan struct{}), dropAfter: -1, pairs: map[*pair]struct{}{},
	}
	close(l.passing)
	l.wg.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

// SetLatency delays every byte of both directions by d from now on; throughput stays.
func (l *Link) SetLatency(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latency = d
}

// SetTarget has new connections go to another server (host:port). Those that exist stay: Drop ends them.
func (l *Link) SetTarget(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
}

// BlackHole keeps connections open and lets nothing through, in either direction, until it is switched off; then what was held
// back arrives, as after a network outage. New connections are accepted and hang.
func (l *Link) BlackHole(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.passing:
		if on {
			l.passing = make(chan struct{})
		}
	default:
		if !on {
			close(l.passing)
		}
	}
}

// Refuse resets new connections as soon as they are accepted, until it is switched off. Those that exist stay.
func (l *Link) Refuse(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = on
}

// Drop resets all connections that exist.
func (l *Link) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		p.reset()
	}
}

// DropAfter resets the connection over which the n-th byte from the server passes, counted over all connections from now on,
// once that byte is delivered. It happens once; a negative n cancels it.
func (l *Link) DropAfter(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropAfter = n
}

// HalfClose ends the server's direction of all connections that exist: the client reads a clean end and may go on sending.
func (l *Link) HalfClose() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for p := range l.pairs {
		p.halfClosed.Store(true)
		err = errors.Join(err, p.client.CloseWrite())
	}
	return err
}

// Connections is how many connections exist.
func (l *Link) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pairs)
}

func (l *Link) close() {
	err := l.listener.Close()
	l.mu.Lock()
	l.closed = true
	for p := range l.pairs {
		p.reset()
	}
	l.mu.Unlock()
	l.wg.Wait()
	if err != nil {
		l.t.Errorf("close proxy: %v", err)
	}
}

func (l *Link) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return // Closed at the end of the test.
		}
		p := &pair{client: conn.(*net.TCPConn), gone: make(chan struct{})}
		l.mu.Lock()
		if l.closed || l.refuse {
			p.reset()
		} else {
			l.pairs[p] = struct{}{}
			l.wg.Go(func() { l.serve(p) })
		}
		l.mu.Unlock()
	}
}

func (l *Link) serve(p *pair) {
	defer func() {
		p.end((*net.TCPConn).Close)
		l.mu.Lock()
		delete(l.pairs, p)
		l.mu.Unlock()
	}()
	if !l.pass(p) {
		return
	}
	l.mu.Lock()
	target := l.target
	l.mu.Unlock()
	conn, err := net.Dial("tcp", target)
	if err != nil {
		p.reset()
		return
	}
	if !l.attach(p, conn.(*net.TCPConn)) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(p, p.server, p.client, false) })
	both.Go(func() { l.pump(p, p.client, p.server, true) })
	both.Wait()
}

// attach gives p its server side, unless p was reset while the server was dialled.
func (l *Link) attach(p *pair, server *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.server = server
	select {
	case <-p.gone:
		_ = abort(server)
		return false
	default:
		return true
	}
}

// pass waits until bytes may pass, and tells whether p is still there.
func (l *Link) pass(p *pair) bool {
	for {
		l.mu.Lock()
		passing := l.passing
		l.mu.Unlock()
		select {
		case <-p.gone:
			return false
		case <-passing:
		}
		// It may have been switched on again meanwhile.
		l.mu.Lock()
		same := l.passing == passing
		l.mu.Unlock()
		if same {
			return true
		}
	}
}

type chunk struct {
	bytes []byte
	due   time.Time
}

// pump carries one direction. Reading runs ahead of writing, so that latency does not lower the throughput.
func (l *Link) pump(p *pair, dst, src *net.TCPConn, fromServer bool) {
	// About as much as a network path of some megabytes holds.
	queue := make(chan chunk, 128)
	var reader sync.WaitGroup
	reader.Go(func() { l.read(p, src, queue) })
	defer reader.Wait()
	for c := range queue {
		if !p.await(c.due) {
			return
		}
		if !l.pass(p) {
			return
		}
		send, last := len(c.bytes), false
		if fromServer {
			send, last = l.count(send)
		}
		if _, err := dst.Write(c.bytes[:send]); err != nil {
			// After HalfClose what the server sends is thrown away.
			if fromServer && p.halfClosed.Load() {
				continue
			}
			p.reset()
			return
		}
		if last {
			p.reset()
			return
		}
	}
	// A failure to pass the end on means that dst is gone, which its own direction notices.
	_ = dst.CloseWrite()
}

// await returns when it is due, and tells whether p is still there.
func (p *pair) await(due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.gone:
		return false
	}
}

// read ends the queue at the end of src; a connection that broke is reset on both sides.
func (l *Link) read(p *pair, src *net.TCPConn, queue chan<- chunk) {
	defer close(queue)
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			l.mu.Lock()
			due := time.Now().Add(l.latency)
			l.mu.Unlock()
			select {
			case queue <- chunk{bytes.Clone(buf[:n]), due}:
			case <-p.gone:
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.reset()
			}
			return
		}
	}
}

// count takes n bytes off what DropAfter allows, and returns how many may pass and whether they are the last.
func (l *Link) count(n int) (send int, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropAfter < 0 {
		return n, false
	}
	if int64(n) < l.dropAfter {
		l.dropAfter -= int64(n)
		return n, false
	}
	send = int(l.dropAfter)
	l.dropAfter = -1
	return send, true
}

// reset ends both sides with a TCP reset. The link's lock need not be held, except while the server side is attached.
func (p *pair) reset() { p.end(abort) }

// end closes both sides in one of two ways; only the first call counts. Closing fails only where a side is already gone.
func (p *pair) end(closeSide func(*net.TCPConn) error) {
	p.once.Do(func() {
		close(p.gone)
		_ = closeSide(p.client)
		if p.server != nil {
			_ = closeSide(p.server)
		}
	})
}

// abort closes with a reset instead of a clean end.
func abort(conn *net.TCPConn) error {
	return errors.Join(conn.SetLinger(0), conn.Close())
}
