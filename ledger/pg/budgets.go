package pg

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// budgetKey is the primary key of one budget.
type budgetKey struct {
	app     string // "" when all apps share it
	subject string
	period  ledger.Period
	start   int64 // microseconds since the epoch, which is all that Postgres keeps
}

func keyOf(app string, c ledger.Counter) budgetKey {
	if c.Tier.Shared() {
		app = ""
	}
	return budgetKey{app: clean(app), subject: clean(c.Subject), period: c.Period, start: orEpoch(c.Start).UnixMicro()}
}

// budgetDelta is one budget that a batch changes, or whose present values Redis must learn.
type budgetDelta struct {
	key     budgetKey
	counter ledger.Counter
	change  ledger.Amounts
	used    ledger.Amounts // after the batch
	version int64          // after the batch; 0 when there is no such budget yet
}

// compare is by key.
func (b *budgetDelta) compare(other *budgetDelta) int {
	k, o := &b.key, &other.key
	return cmp.Or(cmp.Compare(k.app, o.app), cmp.Compare(k.subject, o.subject), cmp.Compare(k.period, o.period), cmp.Compare(k.start, o.start))
}

// collectBudgets sums, per budget and transfer, what the batch changes.
func (p *posting) collectBudgets() {
	p.budgets, p.counted = map[budgetKey]*budgetDelta{}, map[*event.Event][]*budgetDelta{}
	for _, t := range p.touched {
		if t.row.state == statePending {
			continue
		}
		p.budgetsOf(t.top) // which Redis must learn of, also where they do not change
		if t.undone != nil {
			p.charge(t.undone, ledger.Amounts{}.Sub(t.undone.Reservation.HeldInAll()))
			p.transfer = append(p.transfer, correction(t.row.event, t.undone))
		}
		if t.row.event != nil { // else decided by an earlier batch
			p.charge(t.row.event, t.row.charged.Sub(t.before))
		}
		p.transfer = append(p.transfer, t.transfers()...)
	}
}

func (p *posting) charge(e *event.Event, amounts ledger.Amounts) {
	for _, b := range p.budgetsOf(e) {
		b.change = b.change.Add(amounts)
	}
}

func (p *posting) add(app string, c ledger.Counter, amounts ledger.Amounts) {
	b := p.budget(app, c)
	b.change = b.change.Add(amounts)
}

// budget is the one that the app's counter counts in.
func (p *posting) budget(app string, c ledger.Counter) *budgetDelta {
	key := keyOf(app, c)
	b := p.budgets[key]
	if b == nil {
		b = &budgetDelta{key: key, counter: c}
		p.budgets[key] = b
	}
	return b
}

// budgetsOf are the budgets that the event's reservation counts in: those it names, and those of known families besides.
func (p *posting) budgetsOf(e *event.Event) []*budgetDelta {
	if budgets, ok := p.counted[e]; ok {
		return budgets
	}
	budgets := make([]*budgetDelta, 0, len(e.Reservation.Counters))
	for _, c := range e.Reservation.Counters {
		budgets = append(budgets, p.budget(e.App, c))
	}
	for _, c := range p.counting.missing(e) {
		budgets = append(budgets, p.budget(e.App, c))
	}
	p.counted[e] = budgets
	return budgets
}

// queueBudgets adds the differences, in the order of the keys, and reads the budgets that only Redis needs.
func (p *posting) queueBudgets(out *pgx.Batch) {
	const upsert = `
INSERT INTO budgets (app, subject, period, window_start, window_end, tier, family, name, requests, tokens, nanousd, version)
SELECT n.*, 1
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::text[], $7::text[], $8::text[],
    $9::bigint[], $10::bigint[], $11::bigint[]) AS n
ON CONFLICT (app, subject, period, window_start) DO UPDATE SET
    requests = budgets.requests + EXCLUDED.requests,
    tokens = budgets.tokens + EXCLUDED.tokens,
    nanousd = budgets.nanousd + EXCLUDED.nanousd,
    version = budgets.version + 1,
    updated_at = now()
RETURNING app, subject, period, window_start, requests, tokens, nanousd, version`
	const read = `
SELECT b.app, b.subject, b.period, b.window_start, b.requests, b.tokens, b.nanousd, b.version
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS k (app, subject, period, window_start)
JOIN budgets b ON b.app = k.app AND b.subject = k.subject AND b.period = k.period AND b.window_start = k.window_start`

	var changed, unchanged []*budgetDelta
	for _, b := range p.budgets {
		if b.change == (ledger.Amounts{}) {
			unchanged = append(unchanged, b)
		} else {
			changed = append(changed, b)
		}
	}
	slices.SortFunc(changed, (*budgetDelta).compare)
	if len(changed) > 0 {
		out.Queue(upsert, slices.Concat(keyArgs(changed), counterArgs(changed), changeArgs(changed))...).Query(p.readBudgets)
	}
	if len(unchanged) > 0 {
		out.Queue(read, keyArgs(unchanged)...).Query(p.readBudgets)
	}
}

func keyArgs(budgets []*budgetDelta) []any {
	n := len(budgets)
	apps, subjects, periods, starts := make([]string, n), make([]string, n), make([]string, n), make([]time.Time, n)
	for i, b := range budgets {
		k := &b.key
		apps[i], subjects[i], periods[i], starts[i] = k.app, k.subject, clean(string(k.period)), time.UnixMicro(k.start).UTC()
	}
	return []any{apps, subjects, periods, starts}
}

func counterArgs(budgets []*budgetDelta) []any {
	n := len(budgets)
	ends, tiers, families, names := make([]*time.Time, n), make([]string, n), make([]string, n), make([]string, n)
	for i, b := range budgets {
		c := &b.counter
		ends[i], tiers[i], families[i], names[i] = orNull(c.End), clean(string(c.Tier)), clean(c.Family), clean(c.Name())
	}
	return []any{ends, tiers, families, names}
}

func changeArgs(budgets []*budgetDelta) []any {
	n := len(budgets)
	requests, tokens, money := make([]int64, n), make([]int64, n), make([]int64, n)
	for i, b := range budgets {
		requests[i], tokens[i], money[i] = b.change.Requests, int64(b.change.Tokens), int64(b.change.NanoUSD)
	}
	return []any{requests, tokens, money}
}

func (p *posting) readBudgets(rows pgx.Rows) error {
	var key budgetKey
	var start time.Time
	var used ledger.Amounts
	var version int64
	_, err := pgx.ForEachRow(rows, []any{&key.app, &key.subject, &key.period, &start, &used.Requests, &used.Tokens, &used.NanoUSD, &version}, func() error {
		key.start = start.UnixMicro()
		b := p.budgets[key]
		if b == nil {
			return fmt.Errorf("budget %s %s came back under another key", key.app, key.subject)
		}
		b.used, b.version = used, version
		return nil
	})
	if err != nil {
		return fmt.Errorf("budgets: %w", err)
	}
	return nil
}
