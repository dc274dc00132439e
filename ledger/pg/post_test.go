package pg_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
)

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func dayWindow() ledger.Window {
	return ledger.Calendar{}.Window(ledger.PeriodDay, start)
}

// reservation makes one of app, counted by the app's day and total and by the platform's day.
func reservation(app string, n int64, at time.Time) event.Reservation {
	return event.Reservation{
		ID: event.NewReservationID(at), Key: "k_" + app, User: "alice", Plan: "paid", Provider: "openai",
		ModelRequested: "fast", Model: "gpt-4o-mini", Endpoint: "/v1/chat/completions", Attempt: 1,
		Held: ledger.Amounts{Requests: 1, Tokens: ledger.Tokens(100 + n), NanoUSD: ledger.NanoUSD(1000 + n)},
		Counters: []ledger.Counter{
			{Tier: ledger.TierPlatform, Family: "platform", Subject: "platform", Period: ledger.PeriodDay, Window: dayWindow()},
			{Tier: ledger.TierApp, Family: "app", Subject: "app:" + app, Period: ledger.PeriodDay, Window: dayWindow()},
			{Tier: ledger.TierApp, Family: "app", Subject: "app:" + app, Period: ledger.PeriodTotal},
		},
		PriceRow: "openai/gpt-4o-mini@2024-07-18", ReservedAt: at, Deadline: at.Add(time.Minute), OnExpiry: event.ExpiryCharge,
		PolicyRevision: "1", Flags: []string{"unpriced"},
	}
}

func newEvent(kind event.Kind, app string, r event.Reservation, sequence uint64) *event.Event {
	e := &event.Event{
		V: event.Version, ID: event.ID(r.ID, kind), Kind: kind, App: app, OccurredAt: r.ReservedAt.Add(time.Second),
		Producer: "gw-1", Sequence: sequence, Reservation: &r,
	}
	switch kind {
	case event.KindUsed:
		tokens := ledger.Tokens(r.Held.Tokens / 2)
		cost := ledger.NanoUSD(r.Held.NanoUSD / 2)
		e.Outcome = &event.Outcome{
			ModelServed: "gpt-4o-mini-2024-07-18", Usage: ledger.Usage{Input: tokens, Output: 7, Reasoning: 3},
			UsageState: ledger.UsageReported, Cost: cost, Status: 200, Finish: ledger.ReasonOK, PriceRow: r.PriceRow,
			Components: []event.Component{{Class: ledger.ClassInput, Tokens: tokens, Price: 150_000_000, Cost: cost}},
		}
	case event.KindReleased:
		e.Release = &event.Release{Reason: ledger.ReasonUpstreamFailed}
	}
	return e
}

// adjust is the n-th correction of what the used event's request was charged.
func adjust(used *event.Event, number int, before, cost ledger.NanoUSD) *event.Event {
	o := *used.Outcome
	o.Cost, o.PriceRow = cost, fmt.Sprintf("openai/gpt-4o-mini@2024-07-18#%d", number)
	o.Components = []event.Component{{Class: ledger.ClassInput, Tokens: o.Usage.Input, Cost: cost}}
	return &event.Event{
		V: event.Version, ID: event.AdjustedID(used.Reservation.ID, number), Kind: event.KindAdjusted, App: used.App, OccurredAt: used.OccurredAt,
		Producer: "rerate", Reservation: used.Reservation, Outcome: &o,
		Adjustment: &event.Adjustment{Number: number, Reason: event.AdjustmentPrice, Before: before, Gateway: used.Producer},
	}
}

func received(t require.TestingT, e *event.Event, seq uint64) pg.Received {
	body, err := e.Encode()
	require.NoError(t, err)
	decoded, err := event.Decode(body)
	require.NoError(t, err)
	return pg.Received{Event: decoded, Body: body, Subject: e.Subject(), StreamSeq: seq}
}

func post(ctx context.Context, store *pg.Store, batch []pg.Received) (pg.Result, error) {
	session, err := store.Settling(ctx)
	if err != nil {
		return pg.Result{}, err
	}
	defer session.Close(ctx)
	return session.Post(ctx, batch)
}

func mustPost(t require.TestingT, store *pg.Store, events ...*event.Event) pg.Result {
	var batch []pg.Received
	for i, e := range events {
		batch = append(batch, received(t, e, uint64(i+1)))
	}
	result, err := post(context.Background(), store, batch)
	require.NoError(t, err)
	return result
}

func requireVerified(t require.TestingT, store *pg.Store, except ...string) {
	checks, err := store.Verify(context.Background())
	require.NoError(t, err)
	for _, c := range checks {
		if !slices.Contains(except, c.Name) {
			require.True(t, c.OK, "%s: %d %s", c.Name, c.Figure, c.Meaning)
		}
	}
}

func lines(t require.TestingT, url, query string) []string {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(ctx)) }()
	rows, err := conn.Query(ctx, query)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return found
}

func TestPostSettlesInOneBatch(t *testing.T) {
	t.Parallel()
	store := open(t)
	r := reservation("checkout", 0, start)
	result := mustPost(t, store, newEvent(event.KindReserved, "checkout", r, 1), newEvent(event.KindUsed, "checkout", r, 2))

	require.Equal(t, []pg.Fate{pg.FatePosted, pg.FatePosted}, result.Fates)
	require.Len(t, result.WriteBacks, 1)
	w := result.WriteBacks[0]
	require.Equal(t, "checkout", w.App)
	require.Empty(t, w.Opens)
	require.Len(t, w.Endings, 1)
	spent := ledger.Amounts{Requests: 1, Tokens: 60, NanoUSD: 500}
	require.Equal(t, spent, w.Endings[0].Spent)
	require.Len(t, w.Counters, 3)
	for _, c := range w.Counters {
		require.Equal(t, spent, c.Used)
		require.Equal(t, int64(1), c.Version)
	}
	requireVerified(t, store)
}

func TestPostAnswersOpenReservations(t *testing.T) {
	t.Parallel()
	store := open(t)
	r := reservation("checkout", 0, start)
	for range 2 { // a redelivery answers the same
		result := mustPost(t, store, newEvent(event.KindReserved, "checkout", r, 1))
		require.Len(t, result.WriteBacks, 1)
		require.Len(t, result.WriteBacks[0].Opens, 1)
		require.Equal(t, r.ID, result.WriteBacks[0].Opens[0].Reservation.ID)
		require.Empty(t, result.WriteBacks[0].Endings)
	}
	require.NotNil(t, store)
	overdue, err := store.Overdue(t.Context(), start.Add(2*time.Minute), 10)
	require.NoError(t, err)
	require.Len(t, overdue, 1)
	require.Equal(t, r.Counters, overdue[0].Reservation.Counters)

	mustPost(t, store, newEvent(event.KindUsed, "checkout", r, 2))
	result := mustPost(t, store, newEvent(event.KindReserved, "checkout", r, 1))
	require.Empty(t, result.WriteBacks[0].Opens, "a reservation that has ended must not be opened again")
	require.Equal(t, ledger.Amounts{Requests: 1, Tokens: 60, NanoUSD: 500}, result.WriteBacks[0].Endings[0].Spent)
	require.Len(t, result.WriteBacks[0].Counters, 3)
}

func TestPostParksConflicts(t *testing.T) {
	t.Parallel()
	store := open(t)
	r := reservation("checkout", 0, start)
	used := newEvent(event.KindUsed, "checkout", r, 1)
	mustPost(t, store, used)
	other := newEvent(event.KindUsed, "checkout", r, 1)
	other.Outcome.Status = 500
	result := mustPost(t, store, used, other)
	require.Equal(t, []pg.Fate{pg.FateDuplicate, pg.FateConflict}, result.Fates)

	fresh := reservation("checkout", 1, start)
	first, second := newEvent(event.KindUsed, "checkout", fresh, 2), newEvent(event.KindUsed, "checkout", fresh, 2)
	second.Outcome.Status = 500
	result = mustPost(t, store, first, second)
	require.Equal(t, []pg.Fate{pg.FatePosted, pg.FateConflict}, result.Fates)
	requireVerified(t, store, "I8 nothing-parked")
}

func TestPostStoresAnyText(t *testing.T) {
	t.Parallel()
	store := open(t)
	r := reservation("checkout", 0, start)
	r.User, r.ModelRequested = "nul\x00", "half\xff"
	mustPost(t, store, newEvent(event.KindReserved, "checkout", r, 1), newEvent(event.KindUsed, "checkout", r, 2))
	requireVerified(t, store)
}

func TestPostTellsDataErrors(t *testing.T) {
	t.Parallel()
	store := open(t)
	e := newEvent(event.KindReserved, "checkout", reservation("checkout", 0, start), 1<<63)
	_, err := post(t.Context(), store, []pg.Received{received(t, e, 1)})
	require.True(t, pg.Permanent(err), "%v", err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = post(ctx, store, []pg.Received{received(t, e, 1)})
	require.Error(t, err)
	require.False(t, pg.Permanent(err), "%v", err)
}

// TestOrderDoesNotMatter posts the events of several reservations, duplicated, permuted, cut into batches and spread over
// concurrent settlers, and compares every table with what the events say.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		app := fmt.Sprintf("app%d", run)
		model := newModel()
		var events []*event.Event
		var sequence uint64
		for i := range rapid.IntRange(1, 5).Draw(t, "reservations") {
			r := reservation(app, int64(i), start.Add(time.Duration(i)*time.Second))
			r.Counters[0].Subject = "platform-" + app // shared, but of this run alone
			if rapid.Bool().Draw(t, "release on expiry") {
				r.OnExpiry = event.ExpiryRelease
			}
			kinds := rapid.SliceOfNDistinct(rapid.SampledFrom([]event.Kind{
				event.KindReserved, event.KindUsed, event.KindReleased, event.KindExpired,
			}), 1, 4, rapid.ID).Draw(t, "kinds")
			for _, kind := range kinds {
				sequence++
				e := newEvent(kind, app, r, sequence)
				e.Producer = "gw-" + app
				events = append(events, e)
				if kind != event.KindUsed {
					continue
				}
				cost := e.Outcome.Cost
				for n := range rapid.IntRange(0, 3).Draw(t, "adjustments") {
					before := cost
					for cost == before {
						cost = ledger.NanoUSD(rapid.IntRange(0, 3000).Draw(t, "cost"))
					}
					events = append(events, adjust(e, n+1, before, cost))
				}
				model.adjusted[r.ID] = cost
			}
			model.add(r, kinds)
		}
		copies := slices.Clone(events)
		for _, e := range events {
			for range rapid.IntRange(0, 2).Draw(t, "copies") {
				copies = append(copies, e)
			}
		}
		copies = rapid.Permutation(copies).Draw(t, "order")
		posters := rapid.IntRange(1, 4).Draw(t, "posters")
		size := rapid.IntRange(1, 6).Draw(t, "batch")
		spread(t, store, copies, posters, size)

		require.Equal(t, model.reservations(), lines(t, url, fmt.Sprintf(`
			SELECT reservation_id || ' ' || state || ' ' || charged_requests || '/' || charged_tokens || '/' || charged_nanousd || ' ' || array_to_string(flags, ',')
			FROM reservations WHERE app = '%s' ORDER BY 1`, app)))
		require.Equal(t, model.finals(), lines(t, url, fmt.Sprintf(`
			SELECT t.reservation_id || ' ' || t.kind || ' ' || t.amount_nanousd FROM transfers t JOIN reservations r USING (reservation_id, day)
			WHERE r.app = '%s' AND t.kind IN ('settle', 'expire') AND NOT EXISTS (
				SELECT FROM transfers c WHERE c.kind = 'correct' AND c.linked_transfer = t.event_id || '/' || t.kind) ORDER BY 1`, app)))
		require.Equal(t, model.budgets(), lines(t, url, fmt.Sprintf(`
			SELECT DISTINCT requests || '/' || tokens || '/' || nanousd FROM budgets
			WHERE (app = '%[1]s' OR subject = 'platform-%[1]s') AND (requests, tokens, nanousd) <> (0, 0, 0)`, app)))
		require.Equal(t, []string{fmt.Sprint(sequence)}, lines(t, url, fmt.Sprintf(`SELECT confirmed::text FROM producers WHERE producer = 'gw-%s'`, app)))
	})
	requireVerified(t, store, "I3 reservations-end")
	requireRebuilt(t, store)
}

// spread deals batches of at most size events to concurrent posters.
func spread(t require.TestingT, store *pg.Store, events []*event.Event, posters, size int) {
	batches := make(chan []pg.Received, len(events))
	for chunk := range slices.Chunk(events, size) {
		var batch []pg.Received
		for i, e := range chunk {
			batch = append(batch, received(t, e, uint64(i)))
		}
		batches <- batch
	}
	close(batches)
	group, ctx := errgroup.WithContext(context.Background())
	for range posters {
		group.Go(func() error {
			for batch := range batches {
				if _, err := post(ctx, store, batch); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}

// model says what a set of events must come to, from the rules and from nothing in the code under test.
type model struct {
	rows, final []string
	total       ledger.Amounts
	adjusted    map[string]ledger.NanoUSD // what the last adjustment of a used reservation charges
}

func newModel() *model { return &model{adjusted: map[string]ledger.NanoUSD{}} }

func (m *model) add(r event.Reservation, kinds []event.Kind) {
	has := map[event.Kind]bool{}
	for _, k := range kinds {
		has[k] = true
	}
	state, flags, transfer := "pending", "unpriced", ""
	var charge ledger.Amounts
	switch {
	case has[event.KindUsed]:
		state, transfer = "settled", "settle"
		charge = ledger.Amounts{Requests: 1, Tokens: r.Held.Tokens/2 + 10, NanoUSD: r.Held.NanoUSD / 2}
		if has[event.KindReleased] {
			flags += ",used_after_release"
		}
	case has[event.KindReleased]:
		state = "released"
	case has[event.KindExpired]:
		state = "expired"
		if r.OnExpiry == event.ExpiryCharge {
			charge, transfer = r.Held, "expire"
		}
	}
	if transfer != "" {
		m.final = append(m.final, fmt.Sprintf("%s %s %d", r.ID, transfer, charge.NanoUSD))
	}
	if has[event.KindUsed] {
		charge.NanoUSD = m.adjusted[r.ID]
	}
	m.rows = append(m.rows, fmt.Sprintf("%s %s %d/%d/%d %s", r.ID, state, charge.Requests, charge.Tokens, charge.NanoUSD, flags))
	m.total = m.total.Add(charge)
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	if s == nil {
		s = []string{}
	}
	return s
}

func (m *model) reservations() []string { return sorted(m.rows) }
func (m *model) finals() []string       { return sorted(m.final) }

// budgets is what each of the run's budgets holds: the same, because every request counts in all of them.
func (m *model) budgets() []string {
	if m.total == (ledger.Amounts{}) {
		return []string{}
	}
	return []string{fmt.Sprintf("%d/%d/%d", m.total.Requests, m.total.Tokens, m.total.NanoUSD)}
}

func BenchmarkPost(b *testing.B) {
	store := open(b)
	for _, size := range []int{2, 20, 100, 500, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			seq := uint64(0)
			for b.Loop() {
				b.StopTimer()
				var batch []pg.Received
				for i := range size / 2 {
					app := fmt.Sprintf("app%d", rand.IntN(20))
					r := reservation(app, int64(i), time.Now())
					batch = append(batch, received(b, newEvent(event.KindReserved, app, r, seq+1), 1), received(b, newEvent(event.KindUsed, app, r, seq+2), 2))
					seq += 2
				}
				b.StartTimer()
				_, err := post(b.Context(), store, batch)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(b.N*size/2)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
