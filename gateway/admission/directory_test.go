package admission

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/keys"
)

func exists(keys.Record) bool { return true }

func TestDirectoryFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "")
	w.putKey("a", keys.Record{KeyID: "k_a", App: app})
	w.follow()
	select {
	case <-w.keys.Ready():
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	_, ok := w.keys.Find("a")
	require.True(t, ok, "what was there is known when it is ready")
	w.putKey("a", keys.Record{KeyID: "k_a", App: app, Revoked: true})
	w.awaitKey("a", func(r keys.Record) bool { return r.Revoked })

	// An entry that cannot be read, and one that is deleted, leave what is known.
	bucket, err := w.js.KeyValue(t.Context(), keys.Bucket)
	require.NoError(t, err)
	_, err = bucket.PutString(t.Context(), keys.Hash("a"), "{")
	require.NoError(t, err)
	require.NoError(t, bucket.Delete(t.Context(), keys.Hash("a")))
	require.NoError(t, bucket.Purge(t.Context(), keys.Hash("a")))
	w.putKey("b", keys.Record{KeyID: "k_b", App: app})
	w.awaitKey("b", exists)
	record, ok := w.keys.Find("a")
	require.True(t, ok)
	require.True(t, record.Revoked)
}

func TestDirectoryWaitsForItsBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "")
	w.follow()
	w.putKey("a", keys.Record{KeyID: "k_a", App: app})
	w.awaitKey("a", exists)
}

func TestDirectoryOutlivesItsBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "")
	w.putKey("a", keys.Record{KeyID: "k_a", App: app})
	w.follow()
	w.awaitKey("a", exists)
	require.NoError(t, w.js.DeleteKeyValue(t.Context(), keys.Bucket))
	_, ok := w.keys.Find("a")
	require.True(t, ok, "known keys are served")
	w.putKey("b", keys.Record{KeyID: "k_b", App: app})
	w.awaitKey("b", exists)
	w.putKey("a", keys.Record{KeyID: "k_a", App: app, Revoked: true})
	w.awaitKey("a", func(r keys.Record) bool { return r.Revoked })
}

func TestDirectoryOutlivesNATS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings{}, "")
	w.putKey("a", keys.Record{KeyID: "k_a", App: app})
	w.follow()
	w.awaitKey("a", exists)
	require.NoError(t, w.nats.Shutdown(t.Context()))
	_, ok := w.keys.Find("a")
	require.True(t, ok)
	require.NoError(t, w.nats.Restart(t.Context()))
	stack.Eventually(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if !w.nc.IsConnected() {
			return errors.New("not connected")
		}
		_, err := w.js.KeyValue(ctx, keys.Bucket)
		return err
	})
	w.putKey("a", keys.Record{KeyID: "k_a", App: app, AppDisabled: true})
	w.awaitKey("a", func(r keys.Record) bool { return r.AppDisabled })
}
