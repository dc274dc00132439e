package ledger

import (
	"strings"
	"time"
)

// Period is the length of a budget's window.
type Period string

// The periods of the policy file. PeriodTotal never resets.
const (
	PeriodDay   Period = "day"
	PeriodWeek  Period = "week"
	PeriodMonth Period = "month"
	PeriodTotal Period = "total"
)

// Window is a half-open span of time, [Start, End), both in UTC. The window of PeriodTotal has zero Start and End.
type Window struct {
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
}

// Calendar says how calendar periods are cut.
type Calendar struct {
	Location  *time.Location // nil means UTC
	WeekStart time.Weekday
}

// Window returns the window of period that contains at. A day begins at the first instant of its calendar date in the
// calendar's location, also on the days when clocks change, so windows meet without gap or overlap.
func (c Calendar) Window(period Period, at time.Time) Window {
	loc := c.Location
	if loc == nil {
		loc = time.UTC
	}
	y, m, d := at.In(loc).Date()
	switch period {
	case PeriodDay:
		return Window{startOfDay(y, m, d, loc), startOfDay(y, m, d+1, loc)}
	case PeriodWeek:
		d -= (int(at.In(loc).Weekday()) - int(c.WeekStart) + 7) % 7
		return Window{startOfDay(y, m, d, loc), startOfDay(y, m, d+7, loc)}
	case PeriodMonth:
		return Window{startOfDay(y, m, 1, loc), startOfDay(y, m+1, 1, loc)}
	default:
		return Window{}
	}
}

// startOfDay is the first instant of a calendar date, or of the next one where a place left the date out (Samoa skipped 30
// December 2011). Where clocks jump over midnight (Beirut, Havana) time.Date names an instant of the day before or an hour
// later; the search walks to the true first instant.
func startOfDay(y int, m time.Month, d int, loc *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, loc)
	// Dates as numbers that ascend. The one asked for is normalised (32 January is 1 February), whatever the location's clocks do.
	number := func(t time.Time) int {
		y, m, d := t.Date()
		return (y*12+int(m))*31 + d
	}
	want := number(time.Date(y, m, d, 12, 0, 0, 0, time.UTC))
	for number(t.In(loc)) < want {
		t = t.Add(15 * time.Minute)
	}
	for number(t.Add(-15*time.Minute).In(loc)) >= want {
		t = t.Add(-15 * time.Minute)
	}
	return t.UTC()
}

// Counter identifies one budget counter: what a subject has used and holds within one window. Limits on the same subject
// and window share the counter whatever they are called, so usage survives a change of the limit.
//
// Family is what its limits have in common: the tier, the dimensions they split by and the requests they match, e.g. "app",
// "key[endpoint,model]", "key?plan=free". Subject is one member of it: "app:checkout", "key:k_7f[endpoint=chat,model=gpt-4o]",
// "key:k_7f?plan=free". Names inside a subject are escaped, so "[", "?" and control characters only ever separate.
type Counter struct {
	Tier    Tier   `json:"tier"`
	Family  string `json:"family"`
	Subject string `json:"subject"`
	Period  Period `json:"period"`
	Window
}

// Name is the plain name within the subject: "checkout" of "app:checkout", "k_7f" of "key:k_7f?plan=free".
func (c Counter) Name() string {
	_, name, _ := strings.Cut(c.Subject, ":")
	if i := strings.IndexAny(name, "[?"); i >= 0 {
		name = name[:i]
	}
	return name
}

// CounterState is what a counter has used in the ledger, as of a version that every settlement of it raises. App is "" when all
// apps share it.
type CounterState struct {
	Counter Counter
	App     string
	Used    Amounts
	Version int64
}

// Rate identifies the state of one rate limit for one subject in Redis.
type Rate struct {
	Tier      Tier      `json:"tier"`
	Limit     string    `json:"limit"` // the limit's name in the policy
	Subject   string    `json:"subject"`
	Algorithm Algorithm `json:"algorithm"`
	Unit      Unit      `json:"unit"`
}

// Algorithm is how a rate is judged.
type Algorithm string

// The algorithms of the policy file.
const (
	AlgorithmTokenBucket    Algorithm = "token_bucket"
	AlgorithmSlidingLog     Algorithm = "sliding_log"
	AlgorithmSlidingCounter Algorithm = "sliding_counter"
	AlgorithmFixedWindow    Algorithm = "fixed_window"
)

// AlgorithmConcurrency names, in events and in Redis, the requests in flight under a concurrency limit. It is no algorithm of
// the policy file, where such a limit is a number of its own.
const AlgorithmConcurrency Algorithm = "concurrency"
