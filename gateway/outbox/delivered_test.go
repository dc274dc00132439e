package outbox

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
)

// A rebuild rests on what is delivered: what only a stream had that is gone is not.
func TestWhatAGoneStreamHadIsNotDelivered(t *testing.T) {
	t.Parallel()
	messages := func(w *world) string {
		return filepath.Join(w.storeDir, "jetstream", "$G", "streams", event.Stream, "msgs")
	}
	for name, lose := range map[string]func(w *world){
		"made anew": func(w *world) {
			require.NoError(t, w.js.DeleteStream(t.Context(), event.Stream))
			w.createStream()
		},
		"made anew, and longer by now": func(w *world) {
			require.NoError(t, w.js.DeleteStream(t.Context(), event.Stream))
			w.createStream()
			for range 50 {
				e := reserved(0)
				body, err := e.Encode()
				require.NoError(t, err)
				_, err = w.js.Publish(t.Context(), e.Subject(), body)
				require.NoError(t, err)
			}
		},
		"emptied": func(w *world) {
			require.NoError(t, w.nats.Shutdown(t.Context()))
			require.NoError(t, os.RemoveAll(messages(w)))
			require.NoError(t, w.nats.Restart(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := streamed(t)
			o := start(t, testConfig(t.TempDir()), w.nc)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			require.NoError(t, o.Delivered(ctx), "as at a gateway's start")
			ids := mustRecord(t, o, 10)
			maps.Copy(ids, mustAppend(t, o, 10, 0))
			o.flush()
			lose(w)
			stack.Eventually(t, func() error { return w.nc.FlushTimeout(patience) })
			require.NoError(t, o.Delivered(ctx))
			there := w.there()
			for sequence, id := range ids {
				require.Contains(t, there, id, "sequence %d", sequence)
			}
		})
	}
}

// there are the ids of all events on the stream, of whichever gateway.
func (w *world) there() (ids []string) {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), event.Stream)
	require.NoError(w.t, err)
	for i := uint64(1); i <= stream.CachedInfo().State.LastSeq; i++ {
		msg, err := stream.GetMsg(w.t.Context(), i)
		require.NoError(w.t, err)
		ids = append(ids, labelOf(msg.Data).id)
	}
	return ids
}
