package lua

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/ledgertest"
)

func TestMain(m *testing.M) { stack.Main(m, stack.Options{}) }

const generation = "g1"

// patience bounds every call of a test, and every wait.
const patience = stack.Patience

// store is one Redis with the scripts bound to it, and the calls that tests repeat. It is a ledgertest.System.
type store struct {
	t testing.TB
	*Scripts
	redis *redis.Client
	last  Decision  // of Reserve, with Redis's clock
	ended time.Time // Redis's clock in the last settlement that corrected a bucket
}

// newStore is an empty database of the shared server, without marks.
func newStore(t testing.TB) *store {
	t.Helper()
	return connectStore(t, stack.Redis(t))
}

func connectStore(t testing.TB, url string) *store {
	t.Helper()
	client, err := Connect(url, Options{Timeout: patience, PoolSize: 64})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	s := &store{t: t, Scripts: New(client), redis: client}
	s.leaseTTL = ledgertest.LeaseTTL // no lease lapses because a test stood still
	return s
}

// open sets the marks of the apps and of the shared slot.
func (s *store) open(apps ...string) *store {
	s.t.Helper()
	for _, slot := range append(apps, SharedSlot) {
		require.NoError(s.t, s.Scripts.Rebuild(s.t.Context(), RebuildCall{Slot: slot, Generation: generation}))
	}
	return s
}

func (s *store) reserve(c *ReserveCall) Decision {
	s.t.Helper()
	d, err := s.Scripts.Reserve(s.t.Context(), c)
	require.NoError(s.t, err)
	return d
}

// dump is every key with its serialised value, times to live left out.
func (s *store) dump() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	each(s, s.keys("*"), func(p redis.Pipeliner, key string) *redis.StringCmd { return p.Dump(s.t.Context(), key) },
		func(key, value string) { all[key] = value })
	return all
}

// each asks about all keys at once, and hands on the answers for those that have not expired since.
func each[T any, C interface{ Result() (T, error) }](s *store, keys []string, ask func(redis.Pipeliner, string) C, answer func(string, T)) {
	s.t.Helper()
	commands := make([]C, len(keys))
	_, err := s.redis.Pipelined(s.t.Context(), func(p redis.Pipeliner) error {
		for i, key := range keys {
			commands[i] = ask(p, key)
		}
		return nil
	})
	if err != nil {
		require.ErrorIs(s.t, err, redis.Nil)
	}
	for i, key := range keys {
		value, err := commands[i].Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		require.NoError(s.t, err)
		answer(key, value)
	}
}

func (s *store) keys(pattern string) []string {
	s.t.Helper()
	keys, err := s.redis.Keys(s.t.Context(), pattern).Result()
	require.NoError(s.t, err)
	return keys
}

// requireTTLs fails where a key would live for ever.
func (s *store) requireTTLs() {
	s.t.Helper()
	each(s, s.keys("*"), func(p redis.Pipeliner, key string) *redis.DurationCmd { return p.PTTL(s.t.Context(), key) },
		func(key string, ttl time.Duration) {
			require.NotEqual(s.t, time.Duration(-1), ttl, "%s has no time to live", key)
		})
}

func (s *store) Reserve(c ledgertest.Reserve) ledgertest.Decision {
	s.t.Helper()
	call := ReserveCall{ID: c.ID, App: c.App, Generation: c.Generation, TTL: c.TTL, Need: c.Need, Counters: c.Counters}
	for _, b := range c.Budgets {
		call.Budgets = append(call.Budgets, Budget(b))
	}
	for _, r := range c.Rates {
		call.Rates = append(call.Rates, Rate(r))
	}
	s.last = s.reserve(&call)
	d := ledgertest.Decision{Outcome: map[Status]ledgertest.Outcome{
		StatusAllowed: ledgertest.Allowed, StatusRefused: ledgertest.Refused, StatusRebuild: ledgertest.Lost,
		StatusStaleWindow: ledgertest.Stale, StatusEnded: ledgertest.Ended, StatusHeld: ledgertest.Held,
		StatusForced: ledgertest.Held, // how it came to be held is not modelled
	}[s.last.Status]}
	for _, b := range s.last.Budgets {
		d.Budgets = append(d.Budgets, ledgertest.BudgetFigures(b))
	}
	for _, r := range s.last.Rates {
		d.Rates = append(d.Rates, ledgertest.RateFigures{Fits: r.Fits, Used: r.Used, Wait: r.Wait})
	}
	return d
}

func (s *store) Settle(c ledgertest.Settlement) ledgertest.Settled {
	s.t.Helper()
	var opens []Open
	for _, o := range c.Opens {
		opens = append(opens, Open{o.ID, o.App, o.Held, o.Counters, o.Deadline, o.ReservedAt})
	}
	var endings []Ending
	for _, e := range c.Endings {
		endings = append(endings, Ending{e.ID, e.Counters, e.Rates, e.Held, e.Spent})
	}
	before := s.bucketTimes()
	r, err := s.Scripts.Settle(s.t.Context(), c.App, states(c.Rows), opens, endings)
	require.NoError(s.t, err)
	for key, at := range s.bucketTimes() {
		if at != before[key] {
			s.ended = time.UnixMicro(at).UTC()
		}
	}
	return ledgertest.Settled{Applied: r.Applied, Ended: r.Ended, Registered: r.Registered, Negative: r.Negative}
}

func states(rows []ledgertest.Row) []ledger.CounterState {
	var all []ledger.CounterState
	for _, r := range rows {
		all = append(all, ledger.CounterState{Counter: r.Counter, Used: r.Used, Version: r.Version})
	}
	return all
}

// bucketTimes is the instant each bucket was last written at, by Redis's clock.
func (s *store) bucketTimes() map[string]int64 {
	s.t.Helper()
	times := map[string]int64{}
	each(s, s.keys("*:bucket:*"), func(p redis.Pipeliner, key string) *redis.StringCmd { return p.Get(s.t.Context(), key) },
		func(key, state string) { times[key] = number(s.t, strings.Fields(state)[1]) })
	return times
}

func (s *store) Rebuild(c ledgertest.Rebuild) {
	s.t.Helper()
	var opens []Open
	for _, o := range c.Opens {
		opens = append(opens, Open{o.ID, o.App, o.Held, o.Counters, o.Deadline, o.ReservedAt})
	}
	require.NoError(s.t, s.Scripts.Rebuild(s.t.Context(), RebuildCall{
		Slot: c.Slot, Generation: c.Generation, Counters: states(c.Rows), Open: opens, Active: c.Active,
	}))
}

// lost is the instant that the slot's mark says its rates were lost at.
func (s *store) lost(slot string) time.Time {
	s.t.Helper()
	mark, err := s.redis.Get(s.t.Context(), markKey(slot)).Result()
	require.NoError(s.t, err)
	return time.UnixMicro(number(s.t, strings.Fields(mark)[1])).UTC()
}

func (s *store) Counters() map[ledgertest.CounterID]ledgertest.Figures {
	s.t.Helper()
	all := map[ledgertest.CounterID]ledgertest.Figures{}
	read := func(key string, fields map[string]string) {
		amounts := func(prefix string) ledger.Amounts {
			get := func(unit string) int64 {
				if text, ok := fields[prefix+unit]; ok {
					return number(s.t, text)
				}
				return 0
			}
			return ledger.Amounts{Requests: get("requests"), Tokens: ledger.Tokens(get("tokens")), NanoUSD: ledger.NanoUSD(get("nanousd"))}
		}
		if f := (ledgertest.Figures{Used: amounts("used_"), Held: amounts("held_")}); f != (ledgertest.Figures{}) {
			all[counterID(s.t, key)] = f
		}
	}
	each(s, s.keys("*:budget:*"), func(p redis.Pipeliner, key string) *redis.MapStringStringCmd { return p.HGetAll(s.t.Context(), key) }, read)
	return all
}

// counterID reads a counter's key.
func counterID(t testing.TB, key string) ledgertest.CounterID {
	t.Helper()
	slot, rest, ok := strings.Cut(strings.TrimPrefix(key, "{"), "}:"+version+":budget:")
	require.True(t, ok, key)
	parts := strings.SplitN(rest, ":", 3)
	require.Len(t, parts, 3, key)
	id := ledgertest.CounterID{Slot: strings.TrimPrefix(slot, "app:"), Period: ledger.Period(parts[0]), Subject: parts[2]}
	if parts[1] != "" {
		id.Start = number(t, parts[1])
	}
	return id
}

// openReservations reads the app's index of deadlines, and checks that each has its record and each record its place.
func (s *store) openReservations(app string) map[string]time.Time {
	s.t.Helper()
	open, records := map[string]time.Time{}, map[string]bool{}
	found, err := s.redis.ZRangeWithScores(s.t.Context(), deadlinesKey(app), 0, -1).Result()
	require.NoError(s.t, err)
	for _, z := range found {
		open[z.Member.(string)] = time.UnixMilli(int64(z.Score)).UTC()
	}
	each(s, s.keys(reservationKey(app, "*")), func(p redis.Pipeliner, key string) *redis.StringCmd { return p.Get(s.t.Context(), key) },
		func(key, record string) {
			if record != "ended" {
				records[strings.TrimPrefix(key, reservationKey(app, ""))] = true
			}
		})
	require.ElementsMatch(s.t, slices.Collect(maps.Keys(open)), slices.Collect(maps.Keys(records)))
	return open
}

func number(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// now is Redis's clock.
func (s *store) now() time.Time {
	s.t.Helper()
	now, err := s.redis.Time(s.t.Context()).Result()
	require.NoError(s.t, err)
	return now
}

// waitUntil returns when Redis's clock has reached the instant.
func (s *store) waitUntil(at time.Time) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for {
		now, err := s.redis.Time(ctx).Result()
		require.NoError(s.t, err)
		left := at.Sub(now)
		if left <= 0 {
			return
		}
		// Asking all the time would take the processors from other tests; a timer alone is late.
		if left > 2*time.Millisecond {
			time.Sleep(left - time.Millisecond)
		}
	}
}

func TestScriptsConform(t *testing.T) {
	t.Parallel()
	ledgertest.Conformance(t, func(t *testing.T) ledgertest.System { return newStore(t) })
}

// rateNames are the keys of a rate, by what they are.
func rateNames(r *Rate) map[string]string {
	names := map[string]string{}
	text, set := rateKeys("a", &r.Rate)
	if text != "" {
		names["string"] = text
	}
	if set != "" {
		names["zset"] = set
	}
	return names
}
