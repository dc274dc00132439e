package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
)

// A parked event has arrived: were its sequence missing for ever, its gateway could never remove a segment again.
func TestParkConfirmsTheSequence(t *testing.T) {
	t.Parallel()
	store, ctx := open(t), context.Background()
	e := newEvent(event.KindReserved, "checkout", reservation("checkout", 1, time.Now().UTC()), 1)
	body, err := e.Encode()
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, store.Park(ctx, 5, e.Subject(), "it cannot be posted", body, e))
	}
	confirmed, err := store.Held(ctx, e.Producer)
	require.NoError(t, err)
	require.Equal(t, uint64(1), confirmed.Through)
	require.Empty(t, confirmed.Missing)
	require.NoError(t, store.Park(ctx, 6, "ledger.?", "it cannot be read", []byte("?"), nil))
}
