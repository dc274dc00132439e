package pg_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/ledger/policy"
)

// fillOf asks for families as "family per period".
func fillOf(zone string, families ...event.FillFamily) *event.Fill {
	return &event.Fill{Timezone: zone, WeekStart: time.Monday, Families: families}
}

// fill does what a settler does on a request: it looks first, then fills, and answers what Redis must learn.
func fill(ctx context.Context, store *pg.Store, f *event.Fill, now time.Time) ([]ledger.CounterState, error) {
	session, err := store.Settling(ctx)
	if err != nil {
		return nil, err
	}
	filled, err := session.Filled(ctx, f, now)
	session.Close(ctx)
	if err != nil || filled {
		return nil, err
	}
	if session, err = store.Rebuilding(ctx); err != nil {
		return nil, err
	}
	defer session.Close(ctx)
	if err := session.Fill(ctx, f, now); err != nil {
		return nil, err
	}
	states, err := session.FilledBudgets(ctx, f, now)
	if err != nil {
		return nil, err
	}
	return states, session.FillWritten(ctx, f)
}

func mustFill(t require.TestingT, store *pg.Store, f *event.Fill, now time.Time) []ledger.CounterState {
	states, err := fill(context.Background(), store, f, now)
	require.NoError(t, err)
	return states
}

var keyDay = event.FillFamily{Family: "key[model]", Period: ledger.PeriodDay}

// TestFillAddsWhatWasUsedBefore follows one family from unknown to filled: requests before it, in flight at the switch, and
// after it by who has not switched yet count once.
func TestFillAddsWhatWasUsedBefore(t *testing.T) {
	t.Parallel()
	store := open(t)
	settled, inFlight, late := reservation("checkout", 0, start), reservation("checkout", 2, start), reservation("checkout", 4, start.Add(time.Hour))
	yesterday := reservation("checkout", 0, start.AddDate(0, 0, -1))
	yesterday.Counters = yesterday.Counters[2:]
	mustPost(t, store, newEvent(event.KindReserved, "checkout", settled, 1), newEvent(event.KindUsed, "checkout", settled, 2),
		newEvent(event.KindReserved, "checkout", inFlight, 3), newEvent(event.KindUsed, "checkout", yesterday, 4))

	states := mustFill(t, store, fillOf("UTC", keyDay), start.Add(time.Minute))
	require.Len(t, states, 1)
	require.Equal(t, ledger.Counter{
		Tier: ledger.TierKey, Family: "key[model]", Subject: "key:k_checkout[model=fast]", Period: ledger.PeriodDay, Window: dayWindow(),
	}, states[0].Counter)
	require.Equal(t, "checkout", states[0].App)
	require.Equal(t, ledger.Amounts{Requests: 1, Tokens: 60, NanoUSD: 500}, states[0].Used)
	requireVerified(t, store, "I3 reservations-end")
	require.Empty(t, mustFill(t, store, fillOf("UTC", keyDay), start.Add(time.Minute)), "known by now")

	result := mustPost(t, store, newEvent(event.KindUsed, "checkout", inFlight, 5))
	used := ledger.Amounts{Requests: 2, Tokens: 60 + 61, NanoUSD: 500 + 501}
	require.Len(t, result.WriteBacks[0].Counters, 4, "Redis learns of the counter that the event does not name")
	require.Equal(t, used, stateOf(t, result, "key:k_checkout[model=fast]").Used)
	require.Equal(t, inFlight.Counters, result.WriteBacks[0].Endings[0].Reservation.Counters, "only what it named was held")
	result = mustPost(t, store, newEvent(event.KindUsed, "checkout", inFlight, 5))
	require.Equal(t, used, stateOf(t, result, "key:k_checkout[model=fast]").Used, "a redelivery adds nothing")

	mustPost(t, store, newEvent(event.KindReserved, "checkout", late, 6))
	result = mustPost(t, store, newEvent(event.KindExpired, "checkout", late, 7))
	require.Equal(t, used.Add(late.Held), stateOf(t, result, "key:k_checkout[model=fast]").Used)
	result = mustPost(t, store, newEvent(event.KindUsed, "checkout", late, 8))
	require.Equal(t, used.Add(ledger.Amounts{Requests: 1, Tokens: 62, NanoUSD: 502}), stateOf(t, result, "key:k_checkout[model=fast]").Used,
		"what the expiry charged is taken back there too")
	requireVerified(t, store, "I3 reservations-end")
}

func stateOf(t require.TestingT, result pg.Result, subject string) ledger.CounterState {
	for _, c := range result.WriteBacks[0].Counters {
		if c.Counter.Subject == subject {
			return c
		}
	}
	require.Fail(t, "no state of "+subject)
	return ledger.CounterState{}
}

// TestFillOfNamedCounters: a policy may be in force before its families are known, and what its requests have used stands in
// the budgets already.
func TestFillOfNamedCounters(t *testing.T) {
	t.Parallel()
	store := open(t)
	plain, named := reservation("checkout", 0, start), reservation("checkout", 2, start)
	named.Counters = append(named.Counters, ledger.Counter{
		Tier: ledger.TierKey, Family: "key[model]", Subject: "key:k_checkout[model=fast]", Period: ledger.PeriodDay, Window: dayWindow(),
	})
	mustPost(t, store, newEvent(event.KindUsed, "checkout", plain, 1), newEvent(event.KindUsed, "checkout", named, 2))
	states := mustFill(t, store, fillOf("UTC", keyDay), start)
	require.Len(t, states, 1)
	require.Equal(t, ledger.Amounts{Requests: 2, Tokens: 121, NanoUSD: 1001}, states[0].Used)
	require.Equal(t, int64(2), states[0].Version)
	requireVerified(t, store)
}

// TestFillUnwritten: what Redis was not told is told again, by whichever settler is asked next.
func TestFillUnwritten(t *testing.T) {
	t.Parallel()
	store, ctx := open(t), t.Context()
	mustPost(t, store, newEvent(event.KindUsed, "checkout", reservation("checkout", 0, start), 1))
	session, err := store.Rebuilding(ctx)
	require.NoError(t, err)
	require.NoError(t, session.Fill(ctx, fillOf("UTC", keyDay), start))
	session.Close(ctx) // and it died
	states := mustFill(t, store, fillOf("UTC", keyDay), start)
	require.Len(t, states, 1)
	require.Equal(t, int64(1), states[0].Version, "added once")
	require.Empty(t, mustFill(t, store, fillOf("UTC", keyDay), start))
}

func TestFillRefuses(t *testing.T) {
	t.Parallel()
	store := open(t)
	for name, f := range map[string]*event.Fill{
		"no family":    fillOf("UTC", event.FillFamily{Family: "apps", Period: ledger.PeriodDay}),
		"ip":           fillOf("UTC", event.FillFamily{Family: "app[ip]", Period: ledger.PeriodDay}),
		"no time zone": fillOf("Mars/Olympus", keyDay),
	} {
		_, err := fill(t.Context(), store, f, start)
		require.Error(t, err, name)
	}
	requireVerified(t, store)
}

// TestFillBySeveralSettlers fills while others settle: whoever comes first, everything counts once.
func TestFillBySeveralSettlers(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	families := []event.FillFamily{
		keyDay, {Family: "key[model]", Period: ledger.PeriodTotal}, {Family: "platform", Period: ledger.PeriodMonth}, {Family: "plan[endpoint]", Period: ledger.PeriodWeek},
	}
	const posters, batches = 3, 20
	group, ctx := errgroup.WithContext(t.Context())
	for i := range posters {
		store := openAt(t, url)
		group.Go(func() error {
			for j := range batches {
				var batch []pg.Received
				for k := range 5 {
					r := reservation("checkout", 0, start)
					r.Plan = fmt.Sprint("plan", k)
					batch = append(batch, received(t, newEvent(event.KindUsed, "checkout", r, uint64(1+i*batches*5+j*5+k)), 1))
				}
				if _, err := post(ctx, store, batch); err != nil {
					return err
				}
			}
			return nil
		})
		group.Go(func() error {
			for _, f := range families {
				if _, err := fill(ctx, store, fillOf("UTC", f), start); err != nil {
					return err
				}
			}
			_, err := fill(ctx, store, fillOf("UTC", families...), start)
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, []string{
		"key:k_checkout[model=fast] day 300", "key:k_checkout[model=fast] total 300", "plan:plan0[endpoint=chat] week 60",
		"plan:plan1[endpoint=chat] week 60", "plan:plan2[endpoint=chat] week 60", "plan:plan3[endpoint=chat] week 60",
		"plan:plan4[endpoint=chat] week 60", "platform:all month 300",
	}, lines(t, url, `SELECT subject || ' ' || period || ' ' || requests FROM budgets WHERE family IN ('key[model]', 'platform', 'plan[endpoint]')
		AND subject <> 'platform' ORDER BY 1`))
	requireVerified(t, openAt(t, url))
}

// TestFillAtAnyTime lets policies with and without a family come and go while requests are reserved and settled, and compares
// the budgets with what the rule in the package comment says.
func TestFillAtAnyTime(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		h := &history{store: store, app: fmt.Sprintf("app%d", run), now: start, known: map[fillKey][]span{}, sequence: new(uint64)}
		for range rapid.IntRange(3, 14).Draw(t, "steps") {
			h.now = h.now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, 7 * time.Hour, 25 * time.Hour, 60 * time.Hour}).Draw(t, "later"))
			switch rapid.SampledFrom([]string{"reserve", "reserve", "end", "end", "fill"}).Draw(t, "step") {
			case "reserve":
				h.reserve(t)
			case "end":
				h.end(t)
			case "fill":
				h.fill(t)
			}
		}
		for len(h.open) > 0 {
			h.end(t)
		}
		require.Equal(t, h.budgets(), sorted(lines(t, url, fmt.Sprintf(`
			SELECT subject || ' ' || period || ' ' || CASE period WHEN 'total' THEN '' ELSE to_char(window_start, 'MM-DD HH24') END || ' '
				|| requests || '/' || tokens || '/' || nanousd
			FROM budgets WHERE family LIKE '%%app=%s' AND requests <> 0 `, h.app))))
	})
	requireVerified(t, store, "I3 reservations-end", "I8 no-gaps")
}

// fillKey is a family with everything that makes it one.
type fillKey struct {
	family, zone string
	period       ledger.Period
}

func (k fillKey) window(at time.Time) ledger.Window {
	location, err := time.LoadLocation(k.zone)
	if err != nil {
		panic(err) // the test names only zones that exist
	}
	return ledger.Calendar{Location: location, WeekStart: time.Monday}.Window(k.period, at)
}

type span struct{ since, until time.Time }

// history is one app's requests and fills, with what they must come to.
type history struct {
	store    *pg.Store
	app      string
	now      time.Time
	open     []event.Reservation
	charged  []charge
	known    map[fillKey][]span
	sequence *uint64
}

type charge struct {
	event.Reservation
	amounts ledger.Amounts
}

// keys are the families of the app: several tiers, both zones.
func (h *history) keys() []fillKey {
	var keys []fillKey
	for _, zone := range []string{"UTC", "America/New_York"} {
		for _, family := range []string{"key[model]?app=" + h.app, "platform?app=" + h.app} {
			for _, period := range []ledger.Period{ledger.PeriodDay, ledger.PeriodMonth, ledger.PeriodTotal} {
				if key := (fillKey{family, zone, period}); period != ledger.PeriodTotal || zone == "UTC" {
					keys = append(keys, key)
				}
			}
		}
	}
	return keys
}

func (h *history) subject(key fillKey, r event.Reservation) string {
	f, err := policy.ParseFamily(key.family)
	if err != nil {
		panic(err)
	}
	subject, _ := f.Subject(policy.Request{App: h.app, Key: r.Key, Model: r.ModelRequested}, r.Model)
	return subject
}

// reserve makes a reservation under a policy of some of the families, all in one zone.
func (h *history) reserve(t *rapid.T) {
	r := reservation(h.app, int64(len(h.charged)), h.now)
	r.Key = rapid.SampledFrom([]string{"k_1", "k_2"}).Draw(t, "key")
	r.Counters = nil
	zone := rapid.SampledFrom([]string{"UTC", "America/New_York"}).Draw(t, "zone")
	for _, key := range h.keys() {
		if (key.zone == zone || key.period == ledger.PeriodTotal) && rapid.Bool().Draw(t, "has "+key.family) {
			r.Counters = append(r.Counters, ledger.Counter{
				Tier: ledger.Tier(map[bool]string{true: "key", false: "platform"}[key.family[0] == 'k']), Family: key.family,
				Subject: h.subject(key, r), Period: key.period, Window: key.window(h.now),
			})
		}
	}
	h.open = append(h.open, r)
	*h.sequence++
	e := newEvent(event.KindReserved, h.app, r, *h.sequence)
	e.Producer = "gw-" + h.app
	mustPost(t, h.store, e)
}

// end settles or expires one; an expired one may be settled after all.
func (h *history) end(t *rapid.T) {
	if len(h.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(h.open)-1).Draw(t, "which")
	r := h.open[i]
	kind := rapid.SampledFrom([]event.Kind{event.KindUsed, event.KindExpired}).Draw(t, "end")
	if slices.ContainsFunc(h.charged, func(c charge) bool { return c.ID == r.ID }) {
		kind = event.KindUsed // it has expired before
	}
	*h.sequence++
	e := newEvent(kind, h.app, r, *h.sequence)
	e.Producer = "gw-" + h.app
	mustPost(t, h.store, e)
	h.charged = slices.DeleteFunc(h.charged, func(c charge) bool { return c.ID == r.ID })
	amounts := r.Held
	if kind == event.KindUsed {
		amounts = e.Outcome.Spent()
		h.open = slices.Delete(h.open, i, i+1)
	} else if rapid.Bool().Draw(t, "for good") {
		h.open = slices.Delete(h.open, i, i+1)
	}
	h.charged = append(h.charged, charge{r, amounts})
}

func (h *history) fill(t *rapid.T) {
	zone := rapid.SampledFrom([]string{"UTC", "America/New_York"}).Draw(t, "fill's zone")
	f := fillOf(zone)
	for _, key := range h.keys() {
		if key.zone != zone && key.period != ledger.PeriodTotal || rapid.Bool().Draw(t, "leave out") {
			continue
		}
		f.Families = append(f.Families, event.FillFamily{Family: key.family, Period: key.period})
		spans := h.known[key]
		last := span{}
		if len(spans) > 0 {
			last = spans[len(spans)-1]
		}
		begins := key.window(h.now.Add(-time.Minute)).Start
		switch {
		case len(spans) == 0 || last.until.Before(begins):
			h.known[key] = append(spans, span{begins, h.now.Add(event.FillFor)})
		case !last.until.After(h.now.Add(event.FillFor / 2)):
			spans[len(spans)-1].until = h.now.Add(event.FillFor)
		}
	}
	mustFill(t, h.store, f, h.now)
}

// budgets is the rule: a request counts where it says, and in its window of a family that was known at its time, unless it
// names a window of that family.
func (h *history) budgets() []string {
	sums := map[string]ledger.Amounts{}
	add := func(c ledger.Counter, amounts ledger.Amounts) {
		at := c.Start.Format("01-02 15")
		if c.Period == ledger.PeriodTotal {
			at = ""
		}
		name := fmt.Sprintf("%s %s %s", c.Subject, c.Period, at)
		sums[name] = sums[name].Add(amounts)
	}
	for _, r := range h.charged {
		for _, c := range r.Counters {
			add(c, r.amounts)
		}
		for key, spans := range h.known {
			known := slices.ContainsFunc(spans, func(s span) bool { return !r.ReservedAt.Before(s.since) && r.ReservedAt.Before(s.until) })
			own := ledger.Counter{Subject: h.subject(key, r.Reservation), Period: key.period, Window: key.window(r.ReservedAt)}
			named := slices.ContainsFunc(r.Counters, func(c ledger.Counter) bool {
				return c.Subject == own.Subject && c.Period == own.Period && c.Window == own.Window
			})
			if known && !named {
				add(own, r.amounts)
			}
		}
	}
	found := []string{}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		found = append(found, fmt.Sprintf("%s %d/%d/%d", name, sums[name].Requests, sums[name].Tokens, sums[name].NanoUSD))
	}
	return sorted(found)
}

// BenchmarkFill adds up a day of 200,000 requests of 2,000 users for four families, under which nothing has been counted.
func BenchmarkFill(b *testing.B) {
	url := stack.Postgres(b)
	store := openAt(b, url)
	conn, err := pgx.Connect(b.Context(), url)
	require.NoError(b, err)
	const rows = `
INSERT INTO reservations
SELECT gen_random_uuid()::text, '2026-11-29', 'settled', 'app' || i % 20, 'k_' || i % 100, 'user' || i % 2000, 'paid', 'openai', 'fast', 'gpt-4o-mini', '',
    '/v1/chat/completions', 1, false, 'gw', '', 'abc', '', 'charge', 1, 100, 1000, 1, 60, 500, 50, 0, 0, 0, 0, 0, 10, 0, 0, 0, 'reported', 'OK', 200,
    '', '{}', 0, 0, timestamptz '2026-11-29 00:00Z' + i * interval '0.2 s', '2026-11-30', '2026-11-29 12:00Z'
FROM generate_series(1, 200000) AS i`
	_, err = conn.Exec(b.Context(), rows)
	require.NoError(b, err)
	families := []event.FillFamily{
		{Family: "platform", Period: ledger.PeriodDay},
		{Family: "app", Period: ledger.PeriodDay},
		{Family: "key[model]", Period: ledger.PeriodDay},
		{Family: "user", Period: ledger.PeriodDay},
	}
	for b.Loop() {
		states := mustFill(b, store, fillOf("UTC", families...), start)
		require.Len(b, states, 1+20+100+2000)
		_, err := conn.Exec(b.Context(), `DELETE FROM budgets; DELETE FROM budget_families`)
		require.NoError(b, err)
	}
	b.ReportMetric(200_000*float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	require.NoError(b, conn.Close(context.Background()))
}
