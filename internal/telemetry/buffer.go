package telemetry

import (
	"bufio"
	"bytes"
	"io"
	"sync"
	"time"
)

// Buffer gathers log lines and writes them together: at once when a line is a warning or worse, else within flushEvery. A
// process that is killed loses at most that much of its log. It is safe for concurrent use; Close must be called.
type Buffer struct {
	stop chan struct{}
	done chan struct{}

	mu sync.Mutex // guards w
	w  *bufio.Writer
}

// flushEvery is how long a line may wait.
const flushEvery = 100 * time.Millisecond

// NewBuffer starts a buffer in front of w.
func NewBuffer(w io.Writer) *Buffer {
	b := &Buffer{stop: make(chan struct{}), done: make(chan struct{}), w: bufio.NewWriterSize(w, 64<<10)}
	go b.flush()
	return b
}

var infoLevel = []byte(`"level":"INFO"`)

// Write takes one line.
func (b *Buffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.w.Write(line)
	// The level stands in the first hundred bytes, behind the time.
	if err == nil && !bytes.Contains(line[:min(len(line), 100)], infoLevel) {
		err = b.w.Flush()
	}
	return n, err
}

func (b *Buffer) flush() {
	defer close(b.done)
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-ticker.C:
		}
		b.mu.Lock()
		_ = b.w.Flush() // the writer keeps its error and returns it to the next Write
		b.mu.Unlock()
	}
}

// Close writes what is left and ends the buffer.
func (b *Buffer) Close() error {
	close(b.stop)
	<-b.done
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.w.Flush()
}
