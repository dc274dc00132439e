package pg

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/policy"
)

// knownFamily is a row of budget_families: requests reserved within [since, until) count in its counters, whether their events
// name them or not.
type knownFamily struct {
	family   *policy.Family
	period   ledger.Period
	zone     string // "" where the time zone makes no difference
	week     time.Weekday
	calendar ledger.Calendar

	since, until time.Time
	written      bool
}

// families is every known family as of a version. It never changes.
type families struct {
	version int64
	list    []knownFamily
}

// same reports whether both count in the same counters, whenever.
func (f *knownFamily) same(other *knownFamily) bool {
	return f.family.String() == other.family.String() && f.period == other.period && f.zone == other.zone && f.week == other.week
}

// newFamily reads a family with its period; zone and week are kept as far as they matter to it.
func newFamily(text string, period ledger.Period, zone string, week time.Weekday) (knownFamily, error) {
	f := knownFamily{period: period}
	var err error
	if f.family, err = policy.ParseFamily(text); err != nil {
		return f, err
	}
	if !f.family.Fillable() {
		return f, fmt.Errorf("family %q: the ledger knows no IP addresses", text)
	}
	if period != ledger.PeriodTotal {
		f.zone = zone
	}
	if period == ledger.PeriodWeek {
		f.week = week
	}
	location, err := time.LoadLocation(f.zone)
	if err != nil {
		return f, fmt.Errorf("family %q: %w", text, err)
	}
	f.calendar = ledger.Calendar{Location: location, WeekStart: f.week}
	return f, nil
}

// readFamilies reads every row, the latest of one family last.
func readFamilies(ctx context.Context, q querier) ([]knownFamily, error) {
	const query = `
SELECT family, period, timezone, week_start, since, until, written FROM budget_families
ORDER BY family, period, timezone, week_start, since`
	rows, err := q.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("read families: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (knownFamily, error) {
		var text, zone string
		var period ledger.Period
		var week int
		var since, until time.Time
		var written bool
		if err := row.Scan(&text, &period, &zone, &week, &since, &until, &written); err != nil {
			return knownFamily{}, err
		}
		f, err := newFamily(text, period, zone, time.Weekday(week))
		f.since, f.until, f.written = since.UTC(), until.UTC(), written
		return f, err
	})
	if err != nil {
		return nil, fmt.Errorf("read families: %w", err)
	}
	return list, nil
}

// knownFamilies is what settlements must count, read anew only when it has changed. It is called under the rebuild lock, so
// that nothing changes until the session ends.
func (s *Store) knownFamilies(ctx context.Context, q *pgxpool.Conn) (*families, error) {
	const latest = `SELECT coalesce(max(version), 0) FROM budget_families`
	var version int64
	if err := q.QueryRow(ctx, latest).Scan(&version); err != nil {
		return nil, fmt.Errorf("read version of families: %w", err)
	}
	s.mu.Lock()
	known := s.families
	s.mu.Unlock()
	if known != nil && known.version == version {
		return known, nil
	}
	list, err := readFamilies(ctx, q)
	if err != nil {
		return nil, err
	}
	known = &families{version, list}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.staleLocked(serverOf(q.Conn())) {
		return nil, ErrNotAccepted
	}
	s.families = known
	return known, nil
}

// counting says which counters a request counts in. Not safe for concurrent use.
type counting struct {
	known   []knownFamily
	windows map[windowKey]ledger.Window // the last one asked for
}

type windowKey struct {
	calendar ledger.Calendar
	period   ledger.Period
}

func newCounting(known []knownFamily) *counting {
	return &counting{known: known, windows: map[windowKey]ledger.Window{}}
}

// missing lists the counters that the event's reservation counts in and does not name: the policy that admitted it had no
// budget on them, or cut its windows otherwise.
func (c *counting) missing(e *event.Event) []ledger.Counter {
	r := e.Reservation
	var found []ledger.Counter
	var request *policy.Request
	for i := range c.known {
		f := &c.known[i]
		if r.ReservedAt.Before(f.since) || !r.ReservedAt.Before(f.until) || c.names(r, f) {
			continue
		}
		if request == nil {
			request = requestOf(e)
		}
		subject, ok := f.family.Subject(*request, clean(r.Model))
		if !ok {
			continue
		}
		found = append(found, ledger.Counter{
			Tier: f.family.Tier(), Family: f.family.String(), Subject: subject, Period: f.period, Window: c.window(f, r.ReservedAt),
		})
	}
	return found
}

// requestOf is what limits looked at, with texts as the tables have them.
func requestOf(e *event.Event) *policy.Request {
	r := e.Reservation
	return &policy.Request{
		App: clean(e.App), Key: clean(r.Key), User: clean(r.User), Plan: clean(r.Plan), Provider: clean(r.Provider),
		ProviderKey: clean(r.ProviderKey), Model: clean(cmp.Or(r.ModelJudged, r.ModelRequested)), Endpoint: clean(r.Endpoint),
		EndpointKind: policy.EndpointKind(r.Endpoint),
	}
}

// names reports whether the reservation names its counter of the family. The window that it was judged in is the one, also
// where its time lies a moment after it.
func (c *counting) names(r *event.Reservation, f *knownFamily) bool {
	for i := range r.Counters {
		x := &r.Counters[i]
		if x.Period != f.period || x.Family != f.family.String() {
			continue
		}
		if f.period == ledger.PeriodTotal || equal(x.Window, c.window(f, r.ReservedAt)) ||
			equal(x.Window, f.calendar.Window(f.period, x.Start)) {
			return true
		}
	}
	return false
}

func equal(a, b ledger.Window) bool { return a.Start.Equal(b.Start) && a.End.Equal(b.End) }

// window is the family's window that contains the instant.
func (c *counting) window(f *knownFamily, at time.Time) ledger.Window {
	if f.period == ledger.PeriodTotal {
		return ledger.Window{}
	}
	key := windowKey{f.calendar, f.period}
	w, ok := c.windows[key]
	if !ok || at.Before(w.Start) || !at.Before(w.End) {
		w = f.calendar.Window(f.period, at)
		c.windows[key] = w
	}
	return w
}
