package sim

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkChat measures the handler alone, without a connection: its CPU is taken from what is being compared.
func BenchmarkChat(b *testing.B) {
	message := strings.Repeat("Meter this line for me please. ", 30)
	for name, body := range map[string]string{
		"plain":  strings.Replace(hello, "Say hello.", message, 1),
		"stream": streamed(message),
	} {
		b.Run(name, func(b *testing.B) {
			s := New(DefaultConfig())
			handler := s.Handler()
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(body))
				handler.ServeHTTP(&nowhere{header: http.Header{}}, r)
			}
			require.EqualValues(b, b.N, s.Totals().Requests)
		})
	}
}

// nowhere takes an answer and forgets it.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header            { return n.header }
func (n *nowhere) WriteHeader(int)                {}
func (n *nowhere) Write(body []byte) (int, error) { return len(body), nil }
func (n *nowhere) Flush()                         {}

// BenchmarkBooks reports the memory of one record.
func BenchmarkBooks(b *testing.B) {
	var books books
	at := time.Unix(1_800_000_000, 0)
	before, after := runtime.MemStats{}, runtime.MemStats{}
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	for b.Loop() {
		books.add(bill{
			received: at, finished: at, keyID: "key_0", project: "proj_0", usage: usage{input: 10, output: 10},
			tollgateID: "01980000-0000-7000-8000-000000000000",
		})
		n++
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/float64(n), "heap-B/record")
	require.EqualValues(b, n, books.sums().Requests, fmt.Sprint(n))
}
