package settler

import (
	"fmt"
	"hash/maphash"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tollgate/ledger/event"
)

// One worker gets everything while it keeps up. Once it does not, all events of a reservation go to the same one, and every worker
// gets some.
func TestWorkerOf(t *testing.T) {
	t.Parallel()
	const workers, capacity = 3, 10
	s := &Settler{seed: maphash.MakeSeed(), now: time.Now}
	for range workers {
		s.messages = append(s.messages, make(chan jetstream.Msg, capacity))
	}
	kinds := []event.Kind{event.KindReserved, event.KindExtended, event.KindUsed, event.KindReleased, event.KindExpired}
	body := func(id string, kind event.Kind) []byte {
		e := event.Event{V: event.Version, ID: event.ID(id, kind), Kind: kind, App: "a", Reservation: &event.Reservation{ID: id}}
		encoded, err := e.Encode()
		require.NoError(t, err)
		return encoded
	}
	for i := range 20 {
		require.Zero(t, s.workerOf(body(event.NewReservationID(time.Now()), kinds[i%len(kinds)])))
	}
	for range capacity/2 + 1 {
		s.messages[0] <- nil
	}
	got := map[int]int{}
	for range 200 {
		id := event.NewReservationID(time.Now())
		worker := s.workerOf(body(id, event.KindReserved))
		got[worker]++
		for _, kind := range kinds {
			require.Equal(t, worker, s.workerOf(body(id, kind)), kind)
		}
		require.Equal(t, worker, s.workerOf(fmt.Appendf(nil, `{"v":1,"id":%q}`, event.AdjustedID(id, 1))))
	}
	require.Len(t, got, workers)
	for _, junk := range []string{"", "{", `{"id":"`, `{"id":7}`, `"id":"x`} {
		require.Less(t, s.workerOf([]byte(junk)), workers)
	}
}

// The server counts a message as waiting a moment after it has acknowledged its publication: until it is delivered, no figure of
// the consumer but where it stands tells that anything is on its way.
func TestWhatWasJustPublishedIsNotSettled(t *testing.T) {
	t.Parallel()
	at := func(delivered, acknowledged uint64, out int) *jetstream.ConsumerInfo {
		return &jetstream.ConsumerInfo{
			Delivered: jetstream.SequenceInfo{Stream: delivered}, AckFloor: jetstream.SequenceInfo{Stream: acknowledged}, NumAckPending: out,
		}
	}
	require.False(t, settledThrough(at(4, 4, 0), 5), "not yet counted")
	require.False(t, settledThrough(at(5, 4, 1), 5), "delivered")
	require.True(t, settledThrough(at(5, 5, 0), 5))
	require.True(t, settledThrough(at(9, 6, 2), 5), "what is out came later")
	require.True(t, settledThrough(at(5, 3, 0), 5), "the last of them were deleted")
}
