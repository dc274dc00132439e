package sim

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/tidwall/gjson"
)

// Header values shared by all answers. net/http reads them and never writes to them.
var (
	jsonType   = []string{"application/json"}
	streamType = []string{"text/event-stream; charset=utf-8"}
	noCache    = []string{"no-cache"}
)

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled keeps a rare giant answer from being held for ever.
const maxPooled = 1 << 20

func takeBuffer() *[]byte { return buffers.Get().(*[]byte) }

func giveBack(buffer *[]byte) {
	if cap(*buffer) <= maxPooled {
		*buffer = (*buffer)[:0]
		buffers.Put(buffer)
	}
}

func appendQuoted(dst []byte, text string) []byte { return gjson.AppendJSONString(dst, text) }

func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }

// send writes a whole body. Its error is the reader's absence, which is nobody's to handle once everything is in the books.
func send(w http.ResponseWriter, status int, body []byte) {
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
