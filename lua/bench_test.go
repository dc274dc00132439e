package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
)

// benchCall is four tiers with a day and a month each, a log of requests and a log of tokens.
func benchCall() *ReserveCall {
	c := &ReserveCall{
		App: "a", Generation: generation, TTL: time.Minute, Need: ledger.Amounts{Requests: 1, Tokens: 900, NanoUSD: 150_000},
		Rates: []Rate{{Rate: requestLog, Amount: 100, Window: time.Minute}, {Rate: tokenLog, Amount: 100_000, Window: time.Minute}},
	}
	now := time.Now()
	for _, tier := range []ledger.Tier{ledger.TierPlatform, ledger.TierApp, ledger.TierKey, ledger.TierUser} {
		for _, period := range []ledger.Period{ledger.PeriodDay, ledger.PeriodMonth} {
			c.Counters = append(c.Counters, ledger.Counter{
				Tier: tier, Subject: string(tier) + ":bench", Period: period, Window: ledger.Calendar{}.Window(period, now),
			})
			c.Budgets = append(c.Budgets, Budget{Counter: len(c.Counters) - 1, Unit: ledger.UnitUSD, Limit: 1 << 60})
		}
	}
	return c
}

// BenchmarkReserve shows one decision from the caller's side, and the CPU that Redis spends on it, beside a script that does
// nothing.
func BenchmarkReserve(b *testing.B) {
	stack.AwayFromMidnight(b, time.UTC)
	for name, change := range map[string]func(*ReserveCall){
		"allowed": func(c *ReserveCall) {
			// Entries leave the logs as fast as new ones come, so they stay as long as with their limit.
			for i := range c.Rates {
				c.Rates[i].Amount, c.Rates[i].Window = 1<<40, 20*time.Millisecond
			}
		},
		"allowed/budgets": func(c *ReserveCall) { c.Rates = nil },
		"refused/budget":  func(c *ReserveCall) { c.Budgets[7].Limit = 0 },
		"refused/log":     func(c *ReserveCall) { c.Rates[1].Amount = 90_899 },
	} {
		b.Run(name, func(b *testing.B) {
			s := connectStore(b, stack.NewRedis(b).URL(0)).open("a")
			require.NoError(b, s.redis.ConfigSet(b.Context(), "appendonly", "no").Err())
			// A log of a hundred entries, as one near its limit has.
			for i := range 100 {
				c := benchCall()
				c.ID = fmt.Sprint("warm", i)
				require.Equal(b, StatusAllowed, s.reserve(c).Status)
			}
			c := benchCall()
			change(c)
			want := StatusAllowed
			if strings.HasPrefix(name, "refused") {
				want = StatusRefused
			}
			i := 0
			s.measure(b, func() error {
				i++
				c.ID = fmt.Sprint(i)
				d, err := s.Scripts.Reserve(b.Context(), c)
				if err == nil && d.Status != want {
					err = fmt.Errorf("status %d", d.Status)
				}
				return err
			})
		})
	}
	b.Run("no-op", func(b *testing.B) {
		s := connectStore(b, stack.NewRedis(b).URL(0))
		hash, err := s.redis.ScriptLoad(b.Context(), "return 1").Result()
		require.NoError(b, err)
		s.measure(b, func() error { return s.redis.EvalSha(b.Context(), hash, nil).Err() })
	})
}

// BenchmarkSettle ends what it reserves, 64 at a time, with rows and corrections; figures are per reservation and include its
// reserve.
func BenchmarkSettle(b *testing.B) {
	stack.AwayFromMidnight(b, time.UTC)
	s := connectStore(b, stack.NewRedis(b).URL(0)).open("a")
	require.NoError(b, s.redis.ConfigSet(b.Context(), "appendonly", "no").Err())
	var endings []Ending
	version := int64(0)
	i := 0
	s.measure(b, func() error {
		c := benchCall()
		c.Rates[0].Amount, c.Rates[1].Amount = 1<<40, 1<<40
		i++
		c.ID = fmt.Sprint(i)
		if _, err := s.Scripts.Reserve(b.Context(), c); err != nil {
			return err
		}
		if endings = append(endings, ending(c, 300)); len(endings) < settleChunk {
			return nil
		}
		version++
		var rows []ledger.CounterState
		for _, counter := range c.Counters {
			rows = append(rows, ledger.CounterState{Counter: counter, Used: ledger.Amounts{Requests: version}, Version: version})
		}
		r, err := s.Scripts.Settle(b.Context(), "a", rows, nil, endings)
		if err == nil && r.Ended != settleChunk {
			err = fmt.Errorf("%+v", r)
		}
		endings = endings[:0]
		return err
	})
}

// BenchmarkWriteBack tells a Redis that keeps its log of what a settler does: of reservations that Redis does not know, of some
// that it has, and of the ends of those, each with ten counters by four users of one app and a bucket to correct. Figures are
// Redis's CPU for one of each, by the round that was disturbed least; the time includes the reserves.
func BenchmarkWriteBack(b *testing.B) {
	stack.AwayFromMidnight(b, time.UTC)
	s := connectStore(b, stack.NewRedis(b).URL(0)).open("a")
	const n = 8 * settleChunk
	calls := make([]*ReserveCall, n)
	unknown, opens, endings := make([]Open, n), make([]Open, n), make([]Ending, n)
	var rows []ledger.CounterState
	for i := range n {
		c := writtenBackCall(i % 4)
		calls[i], unknown[i], opens[i], endings[i] = c, opened(c), opened(c), ending(c, 300)
		for _, counter := range c.Counters {
			if i < 4 {
				rows = append(rows, ledger.CounterState{Counter: counter, Used: c.Need})
			}
		}
	}
	least := map[string]time.Duration{}
	settle := func(what string, rows []ledger.CounterState, opens []Open, endings []Ending, want SettleResult) {
		before := s.cpu()
		got, err := s.Scripts.Settle(b.Context(), "a", rows, opens, endings)
		took := s.cpu() - before
		require.NoError(b, err)
		require.Equal(b, want, got)
		if known, ok := least[what]; !ok || took < known {
			least[what] = took
		}
	}
	round := 0
	for b.Loop() {
		round++
		for i, c := range calls {
			c.ID = fmt.Sprintf("%d/%d", round, i)
			require.Equal(b, StatusAllowed, s.reserve(c).Status)
			unknown[i].ReservationID, opens[i].ReservationID, endings[i].ReservationID = "unknown"+c.ID, c.ID, c.ID
		}
		for i := range rows {
			rows[i].Version = int64(round)
		}
		settle("unknown", nil, unknown, nil, SettleResult{Applied: true, Registered: n})
		settle("known", nil, opens, nil, SettleResult{Applied: true})
		settle("ending", rows, nil, endings, SettleResult{Applied: true, Ended: n})
	}
	for what, took := range least {
		b.ReportMetric(float64(took.Nanoseconds())/1000/n, "redis-µs/"+what)
	}
}

// writtenBackCall has a day, a month and for apps and users no end on each tier, and a bucket of tokens.
func writtenBackCall(user int) *ReserveCall {
	c := benchCall()
	c.Rates = []Rate{{Rate: tokenBucket, Amount: 1 << 30, Window: time.Minute, Burst: 1 << 30}}
	for _, tier := range []ledger.Tier{ledger.TierApp, ledger.TierUser} {
		c.Counters = append(c.Counters, ledger.Counter{Tier: tier, Subject: string(tier) + ":bench", Period: ledger.PeriodTotal})
	}
	for i := range c.Counters {
		if c.Counters[i].Tier == ledger.TierUser {
			c.Counters[i].Subject = fmt.Sprint("user:bench", user)
		}
	}
	return c
}

// BenchmarkSettleCall lays out one call of settle.lua, of 64 endings on four lists of ten counters.
func BenchmarkSettleCall(b *testing.B) {
	s := New(nil)
	endings := make([]Ending, settleChunk)
	for i := range endings {
		c := writtenBackCall(i % 4)
		c.ID = fmt.Sprint(i)
		endings[i] = ending(c, 300)
	}
	b.ReportAllocs()
	for b.Loop() {
		c := s.newSettleCall("a")
		for i := range endings {
			c.ending(i, &endings[i])
		}
		c.build()
	}
}

func (s *store) measure(b *testing.B, call func() error) {
	b.ReportAllocs()
	before := s.cpu()
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((s.cpu()-before).Nanoseconds())/1000/float64(b.N), "redis-cpu-µs/op")
	calls, usec := s.scriptTime()
	b.ReportMetric(usec/float64(max(calls, 1)), "script-µs/call")
}

// cpu is the processor time that Redis has spent, system calls included.
func (s *store) cpu() time.Duration {
	s.t.Helper()
	info, err := s.redis.Info(s.t.Context(), "cpu").Result()
	require.NoError(s.t, err)
	var total time.Duration
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			d, err := time.ParseDuration(value + "s")
			require.NoError(s.t, err)
			total += d
		}
	}
	return total
}

// scriptTime is what Redis itself clocked inside EVALSHA.
func (s *store) scriptTime() (calls int64, microseconds float64) {
	s.t.Helper()
	info, err := s.redis.Info(s.t.Context(), "commandstats").Result()
	require.NoError(s.t, err)
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			_, err := fmt.Sscanf(rest, "%d,usec=%f", &calls, &microseconds)
			require.NoError(s.t, err)
		}
	}
	return calls, microseconds
}
