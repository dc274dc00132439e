package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"tollgate/gateway/provider"
)

const (
	// inlineBody is the largest body that is kept in memory, in bytes.
	inlineBody = 256 << 10
	// desks is how many larger ones are read at the same time: each takes its size in memory for that moment.
	desks = 2
	// copySize is what one larger body takes in memory while it comes in.
	copySize = 64 << 10
	// bodyFiles names the files of larger bodies; they have no name once they are open.
	bodyFiles = "body-*"
)

// bodies keeps the bodies of requests on their way: small ones in memory, larger ones on disk, where all of them together are
// bounded. So memory does not grow with the size of bodies, however many come at once. It is safe for concurrent use.
type bodies struct {
	dir     string
	most    int64 // bytes on disk
	used    atomic.Int64
	desks   chan []byte
	buffers sync.Pool // of *[]byte, copySize long
}

// newBodies removes what a gateway that died left in the folder.
func newBodies(dir string, most int64) (*bodies, error) {
	b := &bodies{dir: dir, most: most, desks: make(chan []byte, desks)}
	b.buffers.New = func() any {
		buffer := make([]byte, copySize)
		return &buffer
	}
	for range desks {
		b.desks <- nil
	}
	if dir == "" {
		return b, nil // the system's own for temporary files
	}
	left, err := filepath.Glob(filepath.Join(dir, bodyFiles))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return nil, fmt.Errorf("remove left bodies: %w", err)
	}
	return b, nil
}

// errBodiesFull is wrapped by errors for a body that the disk has no room for.
var errBodiesFull = errors.New("no room on disk for large bodies")

// body is one body. Close it when nothing reads it any more.
type body struct {
	of     *bodies
	memory []byte   // all of it, where file is nil
	file   *os.File // without a name: it goes with this process
	size   int64
}

// read takes a body whole, of length bytes where that is not negative, of at most limit bytes; a larger one is a *http.MaxBytesError. It wraps errBodiesFull.
func (b *bodies) read(w http.ResponseWriter, from io.ReadCloser, length, limit int64) (*body, error) {
	reader := http.MaxBytesReader(w, from, limit)
	if length > limit { // what it sends is read, for many see no answer before they have sent all, and is not kept
		if _, err := io.Copy(io.Discard, reader); err != nil {
			return nil, err
		}
		return nil, io.ErrUnexpectedEOF
	}
	if length > 0 && length <= min(limit, inlineBody) {
		memory := make([]byte, length)
		_, err := io.ReadFull(reader, memory)
		return &body{memory: memory, size: length}, err
	}
	var head []byte
	if length <= 0 {
		var err error
		if head, err = io.ReadAll(io.LimitReader(reader, inlineBody)); err != nil || len(head) < inlineBody {
			return &body{memory: head, size: int64(len(head))}, err
		}
	}
	if length > b.most-b.used.Load() {
		return nil, errBodiesFull
	}
	return b.store(head, reader)
}

// store writes what has come and what comes into a file.
func (b *bodies) store(head []byte, rest io.Reader) (*body, error) {
	file, err := os.CreateTemp(b.dir, bodyFiles)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBodiesFull, err)
	}
	kept := &body{of: b, file: file}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("body file: %w", err), kept.close())
	}
	buffer := b.buffers.Get().(*[]byte)
	defer b.buffers.Put(buffer)
	if _, err = kept.Write(head); err == nil {
		_, err = io.CopyBuffer(kept, struct{ io.Reader }{rest}, *buffer)
	}
	if err != nil {
		return nil, errors.Join(err, kept.close())
	}
	return kept, nil
}

// Write appends to the file.
func (k *body) Write(p []byte) (int, error) {
	n := int64(len(p))
	if k.of.used.Add(n) > k.of.most {
		k.of.used.Add(-n)
		return 0, errBodiesFull
	}
	k.size += n
	written, err := k.file.Write(p)
	if err != nil {
		err = fmt.Errorf("%w: %w", errBodiesFull, err)
	}
	return written, err
}

// close gives the room on disk back. It may be called for nil, and more than once.
func (k *body) close() error {
	if k == nil || k.file == nil {
		return nil
	}
	k.of.used.Add(-k.size)
	k.size = 0
	err := k.file.Close()
	k.file = nil
	return err
}

// large reports whether the body is on disk.
func (k *body) large() bool { return k.file != nil }

// payload is the body as it came.
func (k *body) payload() provider.Payload {
	if k.large() {
		return provider.Payload{ReaderAt: k.file, Size: k.size}
	}
	return provider.Bytes(k.memory)
}

// load hands the whole body on, which must not be kept: a large one lies on a desk, and the next will be read over it.
func (k *body) load(ctx context.Context, use func([]byte) error) error {
	if !k.large() {
		return use(k.memory)
	}
	var desk []byte
	select {
	case desk = <-k.of.desks:
	case <-ctx.Done():
		return fmt.Errorf("read body: %w", context.Cause(ctx))
	}
	defer func() { k.of.desks <- desk }()
	if int64(cap(desk)) < k.size {
		desk = make([]byte, k.size)
	}
	whole := desk[:k.size]
	if _, err := k.file.ReadAt(whole, 0); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	return use(whole)
}
