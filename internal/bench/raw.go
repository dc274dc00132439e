package bench

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// raw keeps every single measurement, so that a run can be looked at again: a gzipped CSV file with a header. nil keeps nothing.
type raw struct {
	file   *os.File
	zip    *gzip.Writer
	buffer *bufio.Writer
}

func openRaw(path, header string) (*raw, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("--raw: %w", err)
	}
	zip := gzip.NewWriter(file)
	r := &raw{file: file, zip: zip, buffer: bufio.NewWriter(zip)}
	_, err = r.buffer.WriteString(header + "\n")
	return r, err
}

// gatewayHeader names the columns of write.
const gatewayHeader = "target,streamed,upstream_ms,connections,start_us,first_us,end_us,failed"

// write adds the requests of one point; their times are microseconds since its start.
func (r *raw) write(target string, l Load, operations []operation) error {
	if r == nil {
		return nil
	}
	prefix := fmt.Sprintf("%s,%t,%d,%d,", target, l.Streamed, l.Upstream.Milliseconds(), l.Connections)
	var line []byte
	for _, op := range operations {
		line = append(line[:0], prefix...)
		line = append(strconv.AppendInt(line, op.start.Microseconds(), 10), ',')
		line = append(strconv.AppendInt(line, op.first.Microseconds(), 10), ',')
		line = append(strconv.AppendInt(line, op.end.Microseconds(), 10), ',')
		line = append(strconv.AppendBool(line, op.failed), '\n')
		if _, err := r.buffer.Write(line); err != nil {
			return fmt.Errorf("--raw: %w", err)
		}
	}
	return nil
}

// line adds a row, its end included.
func (r *raw) line(text string) error {
	if r == nil {
		return nil
	}
	if _, err := r.buffer.WriteString(text); err != nil {
		return fmt.Errorf("--raw: %w", err)
	}
	return nil
}

func (r *raw) close() error {
	if r == nil {
		return nil
	}
	if err := errors.Join(r.buffer.Flush(), r.zip.Close(), r.file.Close()); err != nil {
		return fmt.Errorf("--raw: %w", err)
	}
	return nil
}
