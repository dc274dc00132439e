package provider

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strings"
)

// decode takes the compression off an answer that came compressed though that was not asked for: what cannot be read cannot be
// metered. Of another compression than gzip and deflate nothing can be read; such an answer passes as it is.
func decode(response *http.Response) {
	var open func(io.Reader) (io.ReadCloser, error)
	switch strings.ToLower(response.Header.Get("Content-Encoding")) {
	case "gzip", "x-gzip":
		open = func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }
	case "deflate":
		open = zlib.NewReader
	default:
		return
	}
	response.Body = &decoded{body: response.Body, open: open}
	response.Header.Del("Content-Encoding")
	response.Header.Del("Content-Length")
	response.ContentLength, response.Uncompressed = -1, true
}

// decoded opens its reader with the first read, because that waits for the answer's first bytes.
type decoded struct {
	body   io.ReadCloser
	open   func(io.Reader) (io.ReadCloser, error)
	reader io.ReadCloser
}

func (d *decoded) Read(p []byte) (int, error) {
	if d.reader == nil {
		reader, err := d.open(d.body)
		if errors.Is(err, io.EOF) {
			return 0, io.EOF // an answer without a body
		}
		if err != nil {
			return 0, err
		}
		d.reader = reader
	}
	return d.reader.Read(p)
}

func (d *decoded) Close() error {
	if d.reader == nil {
		return d.body.Close()
	}
	return errors.Join(d.reader.Close(), d.body.Close())
}
