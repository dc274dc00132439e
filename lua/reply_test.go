package lua

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDecisionIsReadStrictly(t *testing.T) {
	t.Parallel()
	now := int64(1_700_000_000_000_000)
	d, err := decodeDecision([]any{int64(0), now, "9223372036854775807", "-3", int64(7), int64(8), int64(4), int64(5), int64(6), int64(1), int64(3)},
		[]int{1, 0}, 1)
	require.NoError(t, err)
	require.Equal(t, Decision{
		Status: StatusRefused, Now: time.UnixMicro(now).UTC(),
		Budgets: []BudgetState{{true, 7, 8}, {false, 1<<63 - 1, -3}},
		Rates:   []RateState{{false, 4, 5 * time.Microsecond, 6 * time.Microsecond}},
	}, d)
	for name, reply := range map[string][]any{
		"empty":               {},
		"no clock":            {int64(4)},
		"unknown status":      {int64(6), now},
		"negative status":     {int64(-1), now},
		"status is a text":    {"one", now},
		"figures too few":     {int64(1), now, "1", "1", int64(1), int64(1)},
		"figures not for it":  {int64(5), now, int64(1)},
		"nil in it":           {int64(1), now, nil, "1", int64(1), int64(1), int64(1)},
		"a float":             {int64(1), now, "1.5", "1", int64(1), int64(1), int64(1)},
		"a time beyond range": {int64(1), now, "1", "1", int64(1), int64(1 << 62), int64(1)},
		"refused by none":     {int64(0), now, "1", "1", int64(1), int64(1), int64(1)},
		"no such limit":       {int64(0), now, "1", "1", int64(1), int64(1), int64(1), int64(3)},
		"limit 0":             {int64(0), now, "1", "1", int64(1), int64(1), int64(1), int64(0)},
		"a limit twice":       {int64(0), now, "1", "1", int64(1), int64(1), int64(1), int64(2), int64(2)},
	} {
		_, err := decodeDecision(reply, []int{0}, 1)
		require.ErrorIs(t, err, ErrReply, name)
	}
}

func TestSettledIsReadStrictly(t *testing.T) {
	t.Parallel()
	r, err := decodeSettled([]any{int64(1), int64(2), int64(3), int64(4)})
	require.NoError(t, err)
	require.Equal(t, SettleResult{true, 2, 3, 4}, r)
	r, err = decodeSettled([]any{int64(0)})
	require.NoError(t, err)
	require.Equal(t, SettleResult{}, r)
	for _, reply := range [][]any{
		{},
		{"x"},
		{nil},
		{int64(1)},
		{int64(1), int64(2), int64(3)},
		{int64(2), int64(2), int64(3), int64(4)},
		{int64(0), int64(2), int64(3), int64(4)},
		{int64(1), int64(2), int64(3), int64(4), int64(5)},
	} {
		_, err := decodeSettled(reply)
		require.ErrorIs(t, err, ErrReply, "%v", reply)
	}
}

// FuzzReply reads arbitrary arrays, written as JSON: no panic, and never a decision out of an error.
func FuzzReply(f *testing.F) {
	f.Add(`[0, 1700000000000000, "10", "0", 5, 100, 200, 1, 2]`, uint8(1), uint8(1))
	f.Add(`[5, 1700000000000000]`, uint8(3), uint8(2))
	f.Add(`[0]`, uint8(0), uint8(0))
	f.Add(`[1, 2, 3, 4]`, uint8(0), uint8(0))
	f.Add(`["1", null, {"a": []}, 9223372036854775807]`, uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, text string, budgets, rates uint8) {
		var reply []any
		if json.Unmarshal([]byte(text), &reply) != nil {
			return
		}
		for i, v := range reply {
			if n, ok := v.(float64); ok {
				reply[i] = int64(n)
			}
		}
		order := make([]int, budgets)
		for i := range order {
			order[i] = len(order) - 1 - i
		}
		d, err := decodeDecision(reply, order, int(rates))
		if err != nil {
			require.True(t, errors.Is(err, ErrReply))
			require.Equal(t, Decision{}, d)
		} else if d.Status == StatusAllowed || d.Status == StatusRefused {
			require.Len(t, d.Budgets, int(budgets))
			require.Len(t, d.Rates, int(rates))
		} else {
			require.Empty(t, d.Budgets)
			require.Empty(t, d.Rates)
		}
		if r, err := decodeSettled(reply); err != nil {
			require.True(t, errors.Is(err, ErrReply))
			require.Equal(t, SettleResult{}, r)
		}
	})
}
