package rerate

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

// A settler says nothing while it cannot ask Postgres, and the answer to one question may be lost: it is asked again, until time is up.
func TestSettlersAreAskedAgain(t *testing.T) {
	t.Parallel()
	nc, err := nats.Connect(stack.NATS(t).ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	require.ErrorContains(t, Settled(nc, time.Minute)(t.Context()), "no settler is running")

	var asked atomic.Int64
	_, err = nc.Subscribe(event.ConfirmSubject, func(question *nats.Msg) {
		switch n := asked.Add(1); {
		case n == 1: // silence
		default:
			answer, err := event.Confirmation{Settled: n > 3}.Encode()
			if err == nil {
				err = question.Respond(answer)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	require.NoError(t, Settled(nc, time.Hour)(t.Context()))
	require.EqualValues(t, 4, asked.Load())

	asked.Store(0)
	require.ErrorContains(t, Settled(nc, 100*time.Millisecond)(t.Context()), "the settlers are behind")
}
