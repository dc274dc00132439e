package admission

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger/event"
	"tollgate/lua"
)

// answers stands between client and Redis: for each command it decides what the client is told of its outcome.
type answers []func(run func() error) error

func (a *answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if len(*a) == 0 {
			return next(ctx, cmd)
		}
		answer := (*a)[0]
		*a = (*a)[1:]
		err := answer(func() error { return next(ctx, cmd) })
		cmd.SetErr(err)
		return err
	}
}

// redisError is an answer of the server: the command did not run.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

func TestCallTellsWhetherSomethingMayBeHeld(t *testing.T) {
	t.Parallel()
	lost := func(run func() error) error { return errors.Join(run(), os.ErrDeadlineExceeded) }
	refused := func(func() error) error { return redisError("LOADING Redis is loading the dataset in memory") }
	for name, row := range map[string]struct {
		answers answers
		held    bool // as the error says
	}{
		"refused":            {answers{refused}, false},
		"lost, then lost":    {answers{lost, lost}, true},
		"lost, then refused": {answers{lost, refused}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, err := lua.Connect(stack.Redis(t), lua.Options{Timeout: 10 * time.Second})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			scripts := lua.New(client)
			for _, slot := range []string{lua.SharedSlot, app} {
				require.NoError(t, scripts.Rebuild(t.Context(), lua.RebuildCall{Slot: slot, Generation: "1"}))
			}
			res := event.Reservation{ID: event.NewReservationID(time.Now())}
			c := &lua.ReserveCall{ID: res.ID, App: app, Generation: "1", TTL: time.Minute}
			_, err = scripts.Reserve(t.Context(), &lua.ReserveCall{ID: "warm", App: app, Generation: "1", TTL: time.Minute})
			require.NoError(t, err, "so that Redis knows the script")

			client.AddHook(&row.answers)
			a := &Admission{scripts: scripts, clock: NewClock(time.Now), timeout: 10 * time.Second, metrics: NewMetrics(prometheus.NewRegistry())}
			_, err = a.call(t.Context(), c, &res)
			require.ErrorIs(t, err, ErrUndecided)
			var undecided *UndecidedError
			require.Equal(t, row.held, errors.As(err, &undecided), "%v", err)
			if row.held {
				require.Equal(t, res.ID, undecided.Reservation.ID)
			}
			d, err := scripts.Reserve(t.Context(), c)
			require.NoError(t, err)
			require.Equal(t, row.held, d.Status == lua.StatusHeld, "the error says what Redis has")
		})
	}
}
