package outbox

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func benchConfig(b *testing.B) Config {
	b.Helper()
	config := testConfig(b.TempDir())
	config.SegmentBytes, config.SyncEvery, config.AckTimeout = 1<<24, 50*time.Millisecond, patience
	return config
}

func places(b *testing.B) map[string]*nats.Conn {
	b.Helper()
	return map[string]*nats.Conn{"stream": streamed(b).nc, "away": away(b)}
}

// What a caller waits for, alone and among others: with sync the callers share a sync.
func BenchmarkRecord(b *testing.B) {
	for _, c := range []struct {
		name       string
		durability Durability
		nc         *nats.Conn
	}{
		{"ack", DurabilityAck, streamed(b).nc}, {"sync", DurabilitySync, streamed(b).nc}, {"ack/away", DurabilityAck, away(b)},
	} {
		for _, callers := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", c.name, callers), func(b *testing.B) {
				config := benchConfig(b)
				config.Durability = c.durability
				o := open(b, config, c.nc)
				var syncs atomic.Int64
				o.fsync = func(f *os.File) error {
					syncs.Add(1)
					return f.Sync()
				}
				o.run()
				b.ReportAllocs()
				left := int64(b.N)
				var workers sync.WaitGroup
				for range callers {
					workers.Go(func() {
						for atomic.AddInt64(&left, -1) >= 0 {
							if err := o.Record(context.Background(), reserved(0)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				workers.Wait()
				b.ReportMetric(float64(syncs.Load())/float64(b.N), "syncs/op")
			})
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for name, nc := range places(b) {
		b.Run(name, func(b *testing.B) {
			o := start(b, benchConfig(b), nc)
			b.ReportAllocs()
			e := reserved(0)
			for b.Loop() {
				require.NoError(b, o.Append(e))
			}
		})
	}
}

// How fast a backlog leaves, and how much memory the outbox takes for it at most.
func BenchmarkDrain(b *testing.B) {
	const backlog = 50_000
	nc := streamed(b).nc
	taken := uint64(0)
	for b.Loop() {
		b.StopTimer()
		config := benchConfig(b)
		before := open(b, config, away(b))
		mustAppend(b, before, backlog, 500)
		before.end()
		o := open(b, config, nc)
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		runtime.GC()
		least, most := heap(), uint64(0)
		b.StartTimer()
		o.run()
		for o.Pending() > 0 {
			most = max(most, heap())
			time.Sleep(10 * time.Millisecond)
		}
		taken = max(taken, most-min(least, most))
	}
	b.ReportMetric(float64(backlog*b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(taken)/(1<<20), "MiB")
}
