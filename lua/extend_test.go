package lua

import (
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// extendCall asks for tokens and money in all, on the counters of fullCall.
func extendCall(id string, tokens ledger.Tokens, money ledger.NanoUSD) *ExtendCall {
	return &ExtendCall{
		ID: id, App: "a", Generation: generation, Held: ledger.Amounts{Requests: 1, Tokens: tokens, NanoUSD: money},
		Counters: []ledger.Counter{appTotal, planTotal},
		Budgets: []Budget{
			{Counter: 0, Unit: ledger.UnitRequests, Limit: 1},
			{Counter: 1, Unit: ledger.UnitUSD, Limit: 1000},
			{Counter: 0, Unit: ledger.UnitTokens, Limit: 100},
		},
	}
}

func (s *store) extend(c *ExtendCall) Extension {
	s.t.Helper()
	e, err := s.Extend(s.t.Context(), c)
	require.NoError(s.t, err)
	return e
}

func (s *store) heldOn(c ledger.Counter) ledger.Amounts {
	s.t.Helper()
	var held ledger.Amounts
	fields, err := s.redis.HMGet(s.t.Context(), counterKey("a", &c), "held_requests", "held_tokens", "held_nanousd").Result()
	require.NoError(s.t, err)
	r := replyReader{reply: fields}
	held.Requests, held.Tokens, held.NanoUSD = r.integer(), ledger.Tokens(r.integer()), ledger.NanoUSD(r.integer())
	require.NoError(s.t, r.err)
	return held
}

// What is held grows on every counter, asked twice as if once, and ends whole with its reservation.
func TestExtend(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("first")).Status)
	e := s.extend(extendCall("first", 60, 500))
	require.Equal(t, Extension{StatusAllowed, []BudgetState{{Fits: true}, {true, 0, 100}, {true, 0, 10}}}, e)
	once := s.dump()
	require.Equal(t, StatusHeld, s.extend(extendCall("first", 60, 500)).Status)
	require.Equal(t, StatusHeld, s.extend(extendCall("first", 20, 500)).Status)
	require.Equal(t, once, s.dump())
	for _, c := range []ledger.Counter{appTotal, planTotal} {
		require.Equal(t, ledger.Amounts{Requests: 1, Tokens: 60, NanoUSD: 500}, s.heldOn(c))
	}
	s.requireTTLs()
	// The ending knows what was held at first; the record, what is.
	_, err := s.Scripts.Settle(t.Context(), "a", nil, nil, []Ending{{ReservationID: "first", Counters: []ledger.Counter{appTotal, planTotal}, Held: fullCall("").Need}})
	require.NoError(t, err)
	for _, c := range []ledger.Counter{appTotal, planTotal} {
		require.Zero(t, s.heldOn(c))
	}
	require.Equal(t, StatusEnded, s.extend(extendCall("first", 70, 500)).Status)
}

// A refusal changes nothing, and names the budgets; a soft one only says that it is full.
func TestExtendRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	require.Equal(t, StatusAllowed, s.reserve(fullCall("first")).Status)
	before := s.dump()
	e := s.extend(extendCall("first", 101, 1001))
	require.Equal(t, Extension{StatusRefused, []BudgetState{{Fits: true}, {false, 0, 100}, {false, 0, 10}}}, e)
	require.Equal(t, StatusRefused, s.extend(extendCall("first", 101, 100)).Status)
	require.Equal(t, before, s.dump())
	soft := extendCall("first", 101, 100)
	soft.Budgets[2].Soft = true
	require.Equal(t, Extension{StatusAllowed, []BudgetState{{Fits: true}, {true, 0, 100}, {false, 0, 10}}}, s.extend(soft))
}

// What Redis does not know is not held.
func TestExtendOfTheUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose func(keys []string) []string
		want Status
	}{
		"the reservation":  {func(k []string) []string { return matching(k, "reservation:") }, StatusUnknown},
		"a counter":        {func(k []string) []string { return matching(k, "budget:")[:1] }, StatusUnknown},
		"the app's mark":   {func(k []string) []string { return matching(k, "{app:a}:tg1:mark") }, StatusRebuild},
		"the shared mark":  {func(k []string) []string { return matching(k, "{shared}:tg1:mark") }, StatusRebuild},
		"nothing, renamed": {func([]string) []string { return nil }, StatusRebuild},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t).open("a")
			require.Equal(t, StatusAllowed, s.reserve(fullCall("first")).Status)
			for _, key := range c.lose(s.keys("*")) {
				require.NoError(t, s.redis.Del(t.Context(), key).Err())
			}
			call := extendCall("first", 60, 500)
			if name == "nothing, renamed" {
				call.Generation = "g2"
			}
			before := s.dump()
			require.Equal(t, c.want, s.extend(call).Status)
			require.Equal(t, before, s.dump())
		})
	}
}

func matching(keys []string, part string) []string {
	var found []string
	for _, key := range keys {
		if strings.Contains(key, part) {
			found = append(found, key)
		}
	}
	return found
}

// What cannot be judged exactly is an error and writes nothing.
func TestExtendAtTheEdges(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	wide := fullCall("wide")
	wide.Need.NanoUSD, wide.Budgets[1].Limit, wide.Rates = math.MaxInt64-100, math.MaxInt64, nil
	require.Equal(t, StatusAllowed, s.reserve(wide).Status)
	small := fullCall("small")
	small.Need.NanoUSD, small.Budgets[1].Limit, small.Rates = 50, math.MaxInt64, nil
	require.Equal(t, StatusAllowed, s.reserve(small).Status)
	before := s.dump()
	for _, call := range []*ExtendCall{extendCall("wide", 20, 100), extendCall("small", 20, 101), extendCall("small", 1e15, 50), extendCall("small", 20, -1)} {
		call.Budgets[1].Limit = math.MaxInt64
		_, err := s.Extend(t.Context(), call)
		require.Error(t, err)
	}
	require.True(t, maps.Equal(before, s.dump()))
	exact := extendCall("small", 20, 100)
	exact.Budgets[1].Limit = math.MaxInt64
	require.Equal(t, StatusAllowed, s.extend(exact).Status, "the last nano-dollar")
	require.Equal(t, ledger.NanoUSD(math.MaxInt64), s.heldOn(planTotal).NanoUSD)
}

// However many streams grow at once, what they hold stays within the budget, and nearly all of it is given out.
func TestExtendManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	const streams, limit = 16, 1000
	var granted atomic.Int64
	var all sync.WaitGroup
	calls := make([]*ReserveCall, streams)
	for i := range calls { // all before the first grows: this limit is not theirs
		calls[i] = fullCall(strings.Repeat("s", i+1))
		calls[i].Rates = nil
		require.Equal(t, StatusAllowed, s.reserve(calls[i]).Status)
	}
	for _, call := range calls {
		all.Go(func() {
			held := ledger.Tokens(10)
			for {
				c := extendCall(call.ID, held+7, 0)
				c.Budgets = []Budget{{Counter: 0, Unit: ledger.UnitTokens, Limit: limit}}
				e, err := s.Extend(t.Context(), c)
				if err != nil || e.Status != StatusAllowed {
					break
				}
				held += 7
			}
			granted.Add(int64(held))
		})
	}
	all.Wait()
	held := int64(s.heldOn(appTotal).Tokens)
	require.Equal(t, granted.Load(), held)
	require.LessOrEqual(t, held, int64(limit))
	require.Greater(t, held, int64(limit-7))
}

func BenchmarkExtend(b *testing.B) {
	s := newStore(b).open("a")
	call := fullCall("first")
	call.TTL = time.Hour
	s.reserve(call)
	held := ledger.Tokens(10)
	b.ReportAllocs()
	for b.Loop() {
		held++
		c := extendCall("first", held, 0)
		c.Budgets[2].Limit = math.MaxInt64
		s.extend(c)
	}
}
