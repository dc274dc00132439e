package lua

import (
	"context"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// interruption lets something happen before the n-th command that a client sends.
type interruption struct {
	left int
	do   func()
}

func (i *interruption) next() {
	i.left--
	if i.left == 0 {
		i.do()
	}
}

func (i *interruption) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (i *interruption) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { i.next(); return next(ctx, cmd) }
}

func (i *interruption) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { i.next(); return next(ctx, cmds) }
}

// Whenever a rebuild meets an emptied Redis, or is paused until another has rebuilt the slot and requests were admitted: where a
// mark stands, all that it vouches for stands, too.
func TestRebuildIsInterrupted(t *testing.T) {
	t.Parallel()
	for what, interrupt := range map[string]func(s *store){
		"emptied": func(s *store) { require.NoError(t, s.redis.FlushDB(t.Context()).Err()) },
		"overtaken": func(s *store) {
			newer := RebuildCall{Slot: "a", Generation: generation, Counters: []ledger.CounterState{{Counter: appTotal, Version: 9, Used: ledger.Amounts{Requests: 8}}}}
			require.NoError(t, s.Scripts.Rebuild(t.Context(), newer))
			require.Equal(t, StatusAllowed, s.reserve(fullCall("later")).Status)
		},
	} {
		s := newStore(t)
		for n := 1; ; n++ {
			require.NoError(t, s.redis.FlushDB(t.Context()).Err())
			s.open("a")
			require.Equal(t, StatusAllowed, s.reserve(fullCall("before")).Status)
			i := &interruption{left: n, do: func() { interrupt(s) }}
			client := redis.NewClient(s.redis.Options())
			client.AddHook(i)
			err := New(client).Rebuild(t.Context(), RebuildCall{
				Slot: "a", Generation: generation, Open: []Open{opened(fullCall("r"))},
				Counters: []ledger.CounterState{{Counter: appTotal, Version: 3, Used: ledger.Amounts{Requests: 7}}},
			})
			require.NoError(t, client.Close())
			if i.left > 0 {
				require.NoError(t, err)
				require.Greater(t, n, 5, "it was interrupted between all its commands")
				break
			}
			if err != nil {
				require.ErrorIs(t, err, ErrOvertaken)
			}
			_, marked, markErr := s.Mark(t.Context(), "a")
			require.NoError(t, markErr)
			used, _ := s.redis.HGet(t.Context(), counterKey("a", &appTotal), "used_requests").Int64()
			held, _ := s.redis.HGet(t.Context(), counterKey("a", &appTotal), "held_requests").Int64()
			switch {
			case what == "overtaken" && err != nil:
				require.Equal(t, []int64{8, 1}, []int64{used, held}, "%s before command %d", what, n)
			case marked:
				require.Equal(t, []int64{7, 1}, []int64{used, held}, "%s before command %d", what, n)
			default:
				require.ErrorIs(t, err, ErrOvertaken, "%s before command %d", what, n)
			}
		}
	}
}
