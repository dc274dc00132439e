package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// client speaks just enough HTTP/1.1 over one connection to measure a server with little processor time of its own. It is for
// one goroutine; close it when done. After an error it must be closed, and connects again by itself.
type client struct {
	address string
	conn    net.Conn
	reader  *bufio.Reader
	body    []byte // of the last answer; valid until the next
}

func newClient(address string) *client {
	return &client{address: address, reader: bufio.NewReaderSize(nil, 16<<10), body: make([]byte, 0, 16<<10)}
}

// answerLimit bounds one request: a target that hangs is a failure.
const answerLimit = 30 * time.Second

// statusError is an answer with any status but 200.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// do sends a request and reads its answer to the end; the time is that of the first byte. Any status but 200 is a
// *statusError.
func (c *client) do(request []byte) (first time.Time, err error) {
	if c.conn == nil {
		if c.conn, err = net.DialTimeout("tcp", c.address, answerLimit); err != nil {
			return first, err
		}
		c.reader.Reset(c.conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return first, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return first, err
	}
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return first, fmt.Errorf("read status: %w", err)
	}
	first = time.Now()
	if len(line) < 12 || string(line[:9]) != "HTTP/1.1 " {
		return first, fmt.Errorf("not HTTP/1.1: %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return first, fmt.Errorf("status %q: %w", line, err)
	}
	length, err := c.readHeader()
	if err != nil {
		return first, err
	}
	if err := c.readBody(length); err != nil {
		return first, fmt.Errorf("answer broke off: %w", err)
	}
	if status != 200 {
		return first, &statusError{status, string(bytes.TrimSpace(c.body))}
	}
	return first, nil
}

// chunked is the length of a body that comes in chunks.
const chunked = -1

// readHeader reads up to the empty line and returns the body's length.
func (c *client) readHeader() (length int, err error) {
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return 0, fmt.Errorf("read header: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return length, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case len(name) == len("content-length") && bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || length < 0 {
				return 0, fmt.Errorf("content-length %q is no length", value)
			}
		case len(name) == len("transfer-encoding") && bytes.EqualFold(name, []byte("transfer-encoding")):
			length = chunked
		}
	}
}

func (c *client) readBody(length int) error {
	c.body = c.body[:0]
	if length != chunked {
		return c.read(length)
	}
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(bytes.TrimRight(line, "\r\n")), 16, 31)
		if err != nil {
			return fmt.Errorf("chunk of size %q: %w", line, err)
		}
		if size > 0 {
			if err := c.read(int(size)); err != nil {
				return err
			}
		}
		if n, err := c.reader.Discard(2); err != nil {
			return fmt.Errorf("chunk ends after %d of 2 bytes: %w", n, err)
		}
		if size == 0 {
			return nil
		}
	}
}

// read appends n bytes to the body.
func (c *client) read(n int) error {
	at := len(c.body)
	if need := at + n; need > cap(c.body) {
		c.body = append(make([]byte, 0, 2*need), c.body...)
	}
	c.body = c.body[:at+n]
	_, err := io.ReadFull(c.reader, c.body[at:])
	return err
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing is left to be sent
		c.conn = nil
	}
}
