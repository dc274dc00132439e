package lua

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
)

var userTotal = ledger.Counter{Tier: ledger.TierUser, Family: "user", Subject: "user:a/u", Period: ledger.PeriodTotal}

func held(id string, amounts ledger.Amounts, counters ...ledger.Counter) Open {
	return Open{ReservationID: id, App: "a", Held: amounts, Counters: counters, Deadline: time.Now().Add(time.Minute)}
}

func ended(opens ...Open) []Ending {
	var endings []Ending
	for _, o := range opens {
		endings = append(endings, Ending{ReservationID: o.ReservationID, Counters: o.Counters, Held: o.Held})
	}
	return endings
}

// requireHeld compares what all counters hold with what these reservations do.
func (s *store) requireHeld(open ...Open) {
	s.t.Helper()
	want := map[string]ledger.Amounts{}
	for _, o := range open {
		for _, c := range o.Counters {
			key := counterKey("a", &c)
			want[key] = want[key].Add(o.Held)
		}
	}
	for _, c := range []ledger.Counter{appTotal, planTotal, userTotal} {
		fields, err := s.redis.HMGet(s.t.Context(), counterKey("a", &c), "held_requests", "held_tokens", "held_nanousd").Result()
		require.NoError(s.t, err)
		sum := want[counterKey("a", &c)]
		for i, amount := range []int64{sum.Requests, int64(sum.Tokens), int64(sum.NanoUSD)} {
			if fields[i] == nil {
				fields[i] = "0"
			}
			require.Equal(s.t, fmt.Sprint(amount), fields[i], "%s, figure %d", c.Subject, i)
		}
	}
}

// One call opens and ends reservations on several lists of counters that overlap, one of them empty; amounts that a double
// blurs stand beside small ones.
func TestSettleOfListsThatShareCounters(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	before := []Open{
		held("1", ledger.Amounts{Requests: 1, Tokens: 10, NanoUSD: 1<<53 + 1}, appTotal, planTotal),
		held("2", ledger.Amounts{Requests: 1, Tokens: 20, NanoUSD: 7}, appTotal, planTotal),
		held("3", ledger.Amounts{Requests: 1, Tokens: 99_999_999_999_999, NanoUSD: 5}, userTotal, appTotal),
		held("4", ledger.Amounts{Requests: 1, Tokens: 30, NanoUSD: 3}),
	}
	require.EqualValues(t, 4, s.settle(before).Registered)
	s.requireHeld(before...)

	opens := []Open{
		held("5", ledger.Amounts{Requests: 1, Tokens: 40, NanoUSD: 1<<60 + 1}, userTotal),
		held("6", ledger.Amounts{Requests: 1, Tokens: 50, NanoUSD: 9_999_999_999_999}, planTotal, userTotal),
		held("7", ledger.Amounts{Requests: 1, Tokens: 60, NanoUSD: 10_000_000_000_000}, planTotal, userTotal),
		held("8", ledger.Amounts{Requests: 1, Tokens: 70, NanoUSD: 1}),
		held("9", ledger.Amounts{Requests: 1, Tokens: 80, NanoUSD: 1}, appTotal, planTotal),
	}
	endings := ended(before[0], before[2], before[3], opens[4], opens[4])
	require.Equal(t, SettleResult{Applied: true, Registered: 5, Ended: 4}, s.settle(opens, endings...))
	s.requireHeld(before[1], opens[0], opens[1], opens[2])
	s.requireTTLs()
	require.Len(t, s.openReservations("a"), 5)

	once := s.dump()
	require.Equal(t, SettleResult{Applied: true}, s.settle(opens, endings...))
	require.Equal(t, once, s.dump())

	require.EqualValues(t, 5, s.settle(nil, ended(append(opens[:4:4], before[1])...)...).Ended)
	s.requireHeld()
	require.Empty(t, s.openReservations("a"))
}

// However lists and sizes are mixed in full calls, no unit is lost.
func TestSettleSumsExactly(t *testing.T) {
	t.Parallel()
	s := newStore(t).open("a")
	lists := [][]ledger.Counter{{appTotal, planTotal, userTotal}, {userTotal}, {planTotal, appTotal}, {appTotal, planTotal}, nil}
	sizes := []int64{0, 1, 9_999_999_999_999, 10_000_000_000_000, 999_999_999_999_999, 1<<53 - 1, 1<<53 + 1, 1 << 55}
	random := rand.New(rand.NewPCG(1, 2))
	amount := func() int64 { return sizes[random.IntN(len(sizes))] }
	var open []Open
	for round := range 40 {
		var opens []Open
		for i := range random.IntN(settleChunk) {
			o := held(fmt.Sprint(round, "/", i), ledger.Amounts{Requests: 1, Tokens: ledger.Tokens(amount()), NanoUSD: ledger.NanoUSD(amount())},
				lists[random.IntN(len(lists))]...)
			if round%2 == 0 {
				o.Held.Tokens, o.Held.NanoUSD = 9_999_999_999_999, 9_999_999_999_999
			}
			opens = append(opens, o)
		}
		random.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		n := random.IntN(len(open) + 1)
		r := s.settle(opens, ended(open[:n]...)...)
		require.Equal(t, SettleResult{Applied: true, Registered: int64(len(opens)), Ended: int64(n)}, r)
		open = append(open[n:], opens...)
		s.requireHeld(open...)
	}
}

// A figure that is short of what two lists give back is one bug to tell, not two.
func TestSettleCountsAFigureBelowZeroOnce(t *testing.T) {
	t.Parallel()
	for _, amount := range []ledger.NanoUSD{3, 1 << 60} {
		s := newStore(t).open("a")
		opens := []Open{held("1", ledger.Amounts{NanoUSD: amount}, appTotal, planTotal), held("2", ledger.Amounts{NanoUSD: 4}, appTotal)}
		s.settle(opens)
		require.NoError(t, s.redis.HSet(t.Context(), counterKey("a", &appTotal), "held_nanousd", 1).Err())
		require.EqualValues(t, 1, s.settle(nil, ended(opens...)...).Negative)
		s.requireHeld()
	}
}

// A window's counter lives as long as when it was made, whoever writes it; one without end begins anew.
func TestSettleLengthensWhatHasNoEnd(t *testing.T) {
	t.Parallel()
	stack.AwayFromMidnight(t, time.UTC)
	s := newStore(t).open("a")
	day := appTotal
	day.Period, day.Window = ledger.PeriodDay, ledger.Calendar{}.Window(ledger.PeriodDay, time.Now())
	open := held("1", ledger.Amounts{Requests: 1}, day, appTotal)
	s.settle([]Open{open})
	life := func(c ledger.Counter) time.Duration {
		ttl, err := s.redis.PTTL(t.Context(), counterKey("a", &c)).Result()
		require.NoError(t, err)
		return ttl
	}
	require.InDelta(t, time.Until(day.End)+windowGrace, life(day), float64(time.Minute))
	require.InDelta(t, totalTTL, life(appTotal), float64(time.Minute))
	for _, c := range open.Counters {
		require.NoError(t, s.redis.PExpire(t.Context(), counterKey("a", &c), time.Hour).Err())
	}
	require.EqualValues(t, 1, s.settle(nil, ended(open)...).Ended)
	require.InDelta(t, time.Hour, life(day), float64(time.Minute))
	require.InDelta(t, totalTTL, life(appTotal), float64(time.Minute))
}
