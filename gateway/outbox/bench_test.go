package outbox

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func benchConfig(b *testing.B) Config {
	b.Helper()
	config := testConfig(b.TempDir())
	config.SegmentBytes, config.SyncEvery = 1<<24, 50*1e6
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
