package services_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/internal/dev/services"
)

func connectNATS(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(url, nats.Timeout(2*time.Minute))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(2*time.Minute))
	require.NoError(t, err)
	return js
}

func TestNATSKeepsStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, err := services.StartNATS(t.Context(), services.NATSConfig{StoreDir: dir, SyncInterval: 100 * time.Millisecond})
	require.NoError(t, err)
	url := n.ClientURL()
	js := connectNATS(t, url)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: jetstream.FileStorage})
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "s", []byte("kept"))
	require.NoError(t, err)

	require.NoError(t, n.Shutdown(t.Context()))
	_, err = nats.Connect(url)
	require.Error(t, err)
	require.NoError(t, n.Restart(t.Context()))
	require.Equal(t, url, n.ClientURL())
	require.Contains(t, n.LogTail(), "Server is ready")

	require.NoError(t, n.Stop(t.Context()))
	require.NoError(t, n.Stop(t.Context()), "idempotent")
	require.Error(t, n.Restart(t.Context()), "Stop is for good")

	n, err = services.StartNATS(t.Context(), services.NATSConfig{StoreDir: dir})
	require.NoError(t, err)
	stopAtEnd(t, func() int { return 0 }, n.Stop)
	stream, err := connectNATS(t, n.ClientURL()).Stream(t.Context(), "S")
	require.NoError(t, err)
	msg, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "kept", string(msg.Data))

	require.NoError(t, n.Empty(t.Context()))
	require.NoError(t, n.Restart(t.Context()))
	_, err = connectNATS(t, n.ClientURL()).Stream(t.Context(), "S")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}

func TestNATSStartIsCancelled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		n, err := services.StartNATS(ctx, services.NATSConfig{StoreDir: dir})
		if err == nil {
			require.NoError(t, n.Stop(t.Context()))
			continue
		}
		require.ErrorIs(t, err, context.Canceled)
	}
	n, err := services.StartNATS(t.Context(), services.NATSConfig{StoreDir: dir})
	require.NoError(t, err)
	require.NoError(t, n.Stop(t.Context()))
}

func TestServicesNeedADirectory(t *testing.T) {
	t.Parallel()
	_, err := services.StartNATS(t.Context(), services.NATSConfig{})
	require.ErrorContains(t, err, "no data directory")
	_, err = services.StartRedis(t.Context(), services.RedisConfig{})
	require.ErrorContains(t, err, "no data directory")
	_, err = services.StartPostgres(t.Context(), services.PostgresConfig{})
	require.ErrorContains(t, err, "no data directory")
}
