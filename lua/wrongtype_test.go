package lua

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// stateKeys are all keys that fullCall reads or writes, marks left out, with the type each has.
func stateKeys() map[string]string {
	c := fullCall("r")
	keys := map[string]string{
		counterKey("a", &appTotal): "hash", counterKey("a", &planTotal): "hash", reservationKey("a", "r"): "string", deadlinesKey("a"): "zset",
	}
	for i := range c.Rates {
		for kind, name := range rateNames(&c.Rates[i]) {
			keys[name] = kind
		}
	}
	return keys
}

// spoil puts something of another type in the key's place.
func (s *store) spoil(key, other string) {
	s.t.Helper()
	ctx := s.t.Context()
	require.NoError(s.t, s.redis.Del(ctx, key).Err())
	switch other {
	case "string":
		require.NoError(s.t, s.redis.Set(ctx, key, "x", time.Hour).Err())
	case "list":
		require.NoError(s.t, s.redis.RPush(ctx, key, "x").Err())
	default:
		require.NoError(s.t, s.redis.HSet(ctx, key, "x", 1).Err())
	}
}

// A key of a wrong type, before anything else is there and among the state of other requests: the answer says so, and nothing
// is written on any key, neither by a reserve nor by a settlement.
func TestKeysOfAWrongTypeAreErrorsAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	keys := stateKeys()
	require.Len(t, keys, 2+2+8)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		for _, other := range []string{"string", "list", "hash"} {
			if other == keys[key] {
				continue
			}
			t.Run(key+" is a "+other, func(t *testing.T) {
				t.Parallel()
				s := newStore(t).open("a")
				for _, warm := range []bool{false, true} {
					if warm {
						require.NoError(t, s.redis.FlushDB(t.Context()).Err())
						s.open("a")
						require.Equal(t, StatusAllowed, s.reserve(fullCall("first")).Status)
					}
					s.spoil(key, other)
					before := s.dump()
					_, err := s.Scripts.Reserve(t.Context(), fullCall("r"))
					require.ErrorContains(t, err, "WRONGTYPE")
					require.False(t, Unknown(err))
					require.Equal(t, before, s.dump())

					_, err = s.Scripts.Settle(t.Context(), "a", []ledger.CounterState{{Counter: appTotal, Version: 9}},
						[]Open{opened(fullCall("open"))}, []Ending{ending(fullCall("first"), 3), ending(fullCall("r"), 3)})
					if strings.Contains(key, ":log:requests:") {
						require.NoError(t, err, "a settlement has nothing to do with it")
						continue
					}
					require.ErrorContains(t, err, "WRONGTYPE")
					require.Equal(t, before, s.dump())
				}
			})
		}
	}
}

// What another layout left in a key of the right type is not understood, and said to be so.
func TestStateThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	for key, kind := range stateKeys() {
		if kind != "string" || strings.Contains(key, ":reservation:") {
			continue
		}
		for _, text := range []string{"", "x", "1 2 x", "1,2,3,4", "-1 2 3 4", "1.5 2 3 4"} {
			s := newStore(t).open("a")
			require.Equal(t, StatusAllowed, s.reserve(fullCall("first")).Status)
			require.NoError(t, s.redis.Set(t.Context(), key, text, time.Hour).Err())
			before := s.dump()
			_, err := s.Scripts.Reserve(t.Context(), fullCall("r"))
			require.ErrorContains(t, err, "the state of "+key+" cannot be read")
			require.False(t, Unknown(err))
			_, err = s.Scripts.Settle(t.Context(), "a", nil, nil, []Ending{ending(fullCall("first"), 3)})
			require.ErrorContains(t, err, "the state of "+key+" cannot be read")
			require.Equal(t, before, s.dump())
		}
	}
}

// Rebuild replaces what a slot has, so nothing of it is believed when it fails half way; but it does not write over a key that
// is something else.
func TestRebuildOverAKeyOfAWrongType(t *testing.T) {
	t.Parallel()
	for _, key := range []string{counterKey("a", &appTotal), deadlinesKey("a")} {
		s := newStore(t).open("a")
		s.spoil(key, "list")
		err := s.Scripts.Rebuild(t.Context(), RebuildCall{
			Slot: "a", Generation: generation, Counters: []ledger.CounterState{{Counter: appTotal, Version: 3}}, Open: []Open{opened(fullCall("r"))},
		})
		require.ErrorContains(t, err, "WRONGTYPE")
		require.Equal(t, StatusRebuild, s.reserve(fullCall("r")).Status)
		kind, err := s.redis.Type(t.Context(), key).Result()
		require.NoError(t, err)
		require.Equal(t, "list", kind)
	}
}
