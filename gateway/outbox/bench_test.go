package outbox

import (
	"context"
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

func BenchmarkRecord(b *testing.B) {
	for name, nc := range places(b) {
		b.Run(name, func(b *testing.B) {
			o := start(b, benchConfig(b), nc)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				e := reserved(0)
				for pb.Next() {
					own := *e
					if err := o.Record(context.Background(), &own); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
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
