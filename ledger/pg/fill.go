package pg

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// wantedFamilies reads the families of a request, each once. It errors when one of them cannot be filled.
func wantedFamilies(fill *event.Fill) ([]knownFamily, error) {
	var wanted []knownFamily
	for _, x := range fill.Families {
		f, err := newFamily(x.Family, x.Period, fill.Timezone, fill.WeekStart)
		if err != nil {
			return nil, fmt.Errorf("fill: %w", err)
		}
		if !slices.ContainsFunc(wanted, func(other knownFamily) bool { return f.same(&other) }) {
			wanted = append(wanted, f)
		}
	}
	return wanted, nil
}

// lastOf is the latest row of the family, nil without one.
func lastOf(rows []knownFamily, f *knownFamily) *knownFamily {
	for i := len(rows) - 1; i >= 0; i-- {
		if rows[i].same(f) {
			return &rows[i]
		}
	}
	return nil
}

// goesOn reports whether the family is known for long enough that nobody needs to ask again soon.
func (f *knownFamily) goesOn(now time.Time) bool { return f.until.After(now.Add(event.FillFor / 2)) }

// Filled reports whether settlements count all of the families, and Redis has what they have counted so far.
func (s *Session) Filled(ctx context.Context, fill *event.Fill, now time.Time) (bool, error) {
	wanted, err := wantedFamilies(fill)
	if err != nil {
		return false, err
	}
	rows, err := readFamilies(ctx, s.conn)
	if err != nil {
		return false, err
	}
	for i := range wanted {
		if last := lastOf(rows, &wanted[i]); last == nil || !last.written || !last.goesOn(now) {
			return false, nil
		}
	}
	return true, nil
}

// Fill makes settlements count the families from now on, and adds to their budgets what requests of the running windows have
// used before. It must be called on the session that excludes settlements. What Redis must learn then is in FilledBudgets,
// and FillWritten says that it has. All three are idempotent, and may be called by several settlers, one after the other.
func (s *Session) Fill(ctx context.Context, fill *event.Fill, now time.Time) error {
	wanted, err := wantedFamilies(fill)
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, s.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return fillFamilies(ctx, tx, wanted, now)
	})
	if err != nil {
		return fmt.Errorf("fill %d families: %w", len(wanted), err)
	}
	return nil
}

// filling is one family whose requests reserved at or after since are to be added. goesOn tells that its row is there and is
// continued.
type filling struct {
	knownFamily
	goesOn bool
	row    time.Time // the row's since
}

func fillFamilies(ctx context.Context, tx pgx.Tx, wanted []knownFamily, now time.Time) error {
	rows, err := readFamilies(ctx, tx)
	if err != nil {
		return err
	}
	var work []filling
	for _, f := range wanted {
		start := orEpoch(f.calendar.Window(f.period, now.Add(-clockSkew)).Start)
		last := lastOf(rows, &f)
		f.since, f.until = start, now.Add(event.FillFor).Truncate(time.Microsecond)
		switch {
		case last != nil && last.goesOn(now):
		case last != nil && !last.until.Before(start):
			f.since = last.until
			work = append(work, filling{f, true, last.since})
		default:
			work = append(work, filling{f, false, start})
		}
	}
	if len(work) == 0 {
		return nil
	}
	p := &posting{budgets: map[budgetKey]*budgetDelta{}}
	if err := p.fill(ctx, tx, work, now); err != nil {
		return err
	}
	out := &pgx.Batch{}
	p.queueBudgets(out)
	queueFamilies(out, work)
	if err := tx.SendBatch(ctx, out).Close(); err != nil {
		return fmt.Errorf("write filled budgets: %w", err)
	}
	return nil
}

// fill collects what the families' budgets lack. Where some request may name a counter, every event must be looked at;
// elsewhere requests that are alike are summed by the database.
func (p *posting) fill(ctx context.Context, tx pgx.Tx, work []filling, now time.Time) error {
	named, err := namedFamilies(ctx, tx)
	if err != nil {
		return err
	}
	var each []knownFamily
	alike := map[time.Time][]knownFamily{}
	for _, f := range work {
		if f.goesOn || named[event.FillFamily{Family: f.family.String(), Period: f.period}] {
			each = append(each, f.knownFamily)
		} else {
			alike[f.since] = append(alike[f.since], f.knownFamily)
		}
	}
	for _, list := range alike {
		for _, list := range byPeriod(list) {
			if err := p.addAlike(ctx, tx, list, now); err != nil {
				return err
			}
		}
	}
	if len(each) == 0 {
		return nil
	}
	return eachMissing(ctx, tx, each, p.add)
}

// byPeriod splits families that begin at the same instant, so that those of one list have the same windows.
func byPeriod(list []knownFamily) map[ledger.Period][]knownFamily {
	split := map[ledger.Period][]knownFamily{}
	for _, f := range list {
		split[f.period] = append(split[f.period], f)
	}
	return split
}

// namedFamilies are those that some settled request may have named.
func namedFamilies(ctx context.Context, q querier) (map[event.FillFamily]bool, error) {
	const query = `SELECT DISTINCT family, period FROM budgets`
	rows, err := q.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read families of budgets: %w", err)
	}
	named := map[event.FillFamily]bool{}
	var x event.FillFamily
	if _, err := pgx.ForEachRow(rows, []any{&x.Family, &x.Period}, func() error {
		named[x] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read families of budgets: %w", err)
	}
	return named, nil
}

// fillColumns are what a family may look at, in the order of addAlike's query.
var fillColumns = []policy.Dimension{
	policy.DimensionApp, policy.DimensionKey, policy.DimensionUser, policy.DimensionPlan, policy.DimensionProvider,
	policy.DimensionModel, policy.DimensionEndpoint, policy.DimensionProviderKey,
}

// addAlike sums what requests have used since the instant at which the families begin, all of them of one period and calendar.
// Requests that differ in nothing that any of the families looks at are summed before they are told apart by subject.
func (p *posting) addAlike(ctx context.Context, q querier, list []knownFamily, now time.Time) error {
	const query = `
SELECT CASE WHEN $3 THEN app ELSE '' END, CASE WHEN $4 THEN api_key ELSE '' END, CASE WHEN $5 THEN end_user ELSE '' END,
    CASE WHEN $6 THEN plan ELSE '' END, CASE WHEN $7 THEN provider ELSE '' END,
    CASE WHEN $8 THEN CASE model_judged WHEN '' THEN model_requested ELSE model_judged END ELSE '' END,
    CASE WHEN $8 THEN model ELSE '' END, CASE WHEN $9 THEN endpoint ELSE '' END, CASE WHEN $10 THEN provider_key ELSE '' END,
    width_bucket(reserved_at, $2::timestamptz[]), sum(charged_requests)::bigint, sum(charged_tokens)::bigint, sum(charged_nanousd)::bigint
FROM reservations
WHERE state IN ('settled', 'expired') AND reserved_at >= $1 AND day >= ($1 AT TIME ZONE 'UTC')::date - 1
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10`
	windows := windowsUntil(&list[0], now.AddDate(0, 0, 1))
	starts := make([]time.Time, len(windows))
	for i, w := range windows {
		starts[i] = orEpoch(w.Start)
	}
	args := []any{list[0].since, starts}
	for _, column := range fillColumns {
		args = append(args, slices.ContainsFunc(list, func(f knownFamily) bool { return slices.Contains(f.family.Dimensions(), column) }))
	}
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("sum requests since %s: %w", list[0].since, err)
	}
	var r policy.Request
	var upstream string
	var bucket int
	var amounts ledger.Amounts
	_, err = pgx.ForEachRow(rows, []any{
		&r.App, &r.Key, &r.User, &r.Plan, &r.Provider, &r.Model, &upstream, &r.Endpoint, &r.ProviderKey, &bucket, &amounts.Requests, &amounts.Tokens,
		&amounts.NanoUSD,
	}, func() error {
		r.EndpointKind = policy.EndpointKind(r.Endpoint)
		for _, f := range list {
			if subject, ok := f.family.Subject(r, upstream); ok {
				p.add(r.App, ledger.Counter{
					Tier: f.family.Tier(), Family: f.family.String(), Subject: subject, Period: f.period, Window: windows[bucket-1],
				}, amounts)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sum requests since %s: %w", list[0].since, err)
	}
	return nil
}

// windowsUntil lists the family's windows from the one that it begins with to the one that contains the instant.
func windowsUntil(f *knownFamily, end time.Time) []ledger.Window {
	windows := []ledger.Window{f.calendar.Window(f.period, f.since)}
	for last := windows[0]; !last.End.IsZero() && !last.End.After(end); {
		last = f.calendar.Window(f.period, last.End)
		windows = append(windows, last)
	}
	return windows
}

// eachMissing looks at every charged request and hands on what it counts in without naming it.
func eachMissing(ctx context.Context, q querier, known []knownFamily, add func(app string, c ledger.Counter, charged ledger.Amounts)) error {
	const query = `
SELECT r.charged_requests, r.charged_tokens, r.charged_nanousd, e.body
FROM reservations r
JOIN events e ON e.event_id = r.reservation_id || CASE r.state WHEN 'settled' THEN ':used' ELSE ':expired' END AND e.day = r.day
WHERE r.state IN ('settled', 'expired') AND r.reserved_at >= $1 AND r.day >= ($1 AT TIME ZONE 'UTC')::date - 1`
	since := slices.MinFunc(known, func(a, b knownFamily) int { return a.since.Compare(b.since) }).since
	rows, err := q.Query(ctx, query, since)
	if err != nil {
		return fmt.Errorf("read requests since %s: %w", since, err)
	}
	counting := newCounting(known)
	var charged ledger.Amounts
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&charged.Requests, &charged.Tokens, &charged.NanoUSD, &body}, func() error {
		if charged == (ledger.Amounts{}) {
			return nil
		}
		e, err := event.Decode(body)
		if err != nil {
			return err
		}
		for _, c := range counting.missing(e) {
			add(e.App, c, charged)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read requests since %s: %w", since, err)
	}
	return nil
}

func queueFamilies(out *pgx.Batch, work []filling) {
	const upsert = `
INSERT INTO budget_families (family, period, timezone, week_start, since, until, tier, written, version)
SELECT n.*, false, (SELECT coalesce(max(version), 0) + 1 FROM budget_families)
FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::timestamptz[], $6::timestamptz[], $7::text[]) AS n
ON CONFLICT (family, period, timezone, week_start, since) DO UPDATE SET
    until = EXCLUDED.until, written = false, version = EXCLUDED.version, filled_at = now()`
	n := len(work)
	list, since, until, tiers := make([]knownFamily, n), make([]time.Time, n), make([]time.Time, n), make([]string, n)
	for i, f := range work {
		list[i], since[i], until[i], tiers[i] = f.knownFamily, f.row, f.until, string(f.family.Tier())
	}
	out.Queue(upsert, append(familyArgs(list), since, until, tiers)...)
}

// familyArgs are what tells families apart, a column each: family, period, time zone, start of the week.
func familyArgs(list []knownFamily) []any {
	n := len(list)
	texts, periods, zones, weeks := make([]string, n), make([]string, n), make([]string, n), make([]int16, n)
	for i, f := range list {
		texts[i], periods[i], zones[i], weeks[i] = f.family.String(), string(f.period), f.zone, int16(f.week)
	}
	return []any{texts, periods, zones, weeks}
}

// FilledBudgets are the budgets of the request's families of which Redis has not been told, as far as their windows are not
// over at now.
func (s *Session) FilledBudgets(ctx context.Context, fill *event.Fill, now time.Time) ([]ledger.CounterState, error) {
	wanted, err := wantedFamilies(fill)
	if err != nil {
		return nil, err
	}
	rows, err := readFamilies(ctx, s.conn)
	if err != nil {
		return nil, err
	}
	var texts, periods []string
	for i := range wanted {
		if last := lastOf(rows, &wanted[i]); last != nil && !last.written {
			texts, periods = append(texts, last.family.String()), append(periods, string(last.period))
		}
	}
	if len(texts) == 0 {
		return nil, nil
	}
	const query = `
SELECT ` + counterColumns + `
FROM budgets
WHERE (family, period) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND (window_end IS NULL OR window_end > $3)
ORDER BY app, subject, period, window_start`
	states, err := s.counterStates(ctx, query, texts, periods, now.Add(-clockSkew))
	if err != nil {
		return nil, fmt.Errorf("read filled budgets: %w", err)
	}
	return states, nil
}

// FillWritten says that Redis has what FilledBudgets told.
func (s *Session) FillWritten(ctx context.Context, fill *event.Fill) error {
	const query = `
UPDATE budget_families b SET written = true
FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[]) AS n (family, period, timezone, week_start)
WHERE b.family = n.family AND b.period = n.period AND b.timezone = n.timezone AND b.week_start = n.week_start AND NOT b.written`
	wanted, err := wantedFamilies(fill)
	if err != nil {
		return err
	}
	slices.SortFunc(wanted, func(a, b knownFamily) int { return cmp.Compare(a.family.String(), b.family.String()) })
	if _, err := s.conn.Exec(ctx, query, familyArgs(wanted)...); err != nil {
		return fmt.Errorf("mark %d families as written: %w", len(wanted), err)
	}
	return nil
}
