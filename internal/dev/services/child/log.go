package child

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// tailBytes bounds what LogTail returns.
const tailBytes = 8 << 10

// Log returns all that this child has written so far.
func (p *Process) Log() (string, error) {
	return readFrom(p.log, p.logStart)
}

// LogTail returns the last lines that this child has written, at most n lines and 8 KiB. It is made for error messages: where
// the log cannot be read it says so in its place.
func (p *Process) LogTail(n int) string {
	start := p.logStart
	if info, err := os.Stat(p.log); err == nil {
		start = max(start, info.Size()-tailBytes)
	}
	text, err := readFrom(p.log, start)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimRight([]byte(text), "\n"), []byte("\n"))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}

func readFrom(path string, offset int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read log: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return "", fmt.Errorf("read log: %w", err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("read log: %w", err)
	}
	return string(text), nil
}
