package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Windows of every period meet without gap or overlap, and contain the instant they were asked for, also where clocks change at
// midnight, by half an hour, or leave a whole day out.
func TestCalendarWindowsMeet(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/Havana", "Asia/Beirut", "Africa/Cairo", "America/Asuncion",
		"America/Nuuk", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kiritimati",
	} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			location, err := time.LoadLocation(zone)
			require.NoError(t, err)
			calendar := Calendar{Location: location, WeekStart: time.Sunday}
			for _, period := range []Period{PeriodDay, PeriodWeek, PeriodMonth} {
				at := time.Date(2011, 6, 1, 0, 0, 0, 0, time.UTC)
				w := calendar.Window(period, at)
				for w.End.Year() < 2031 {
					require.Less(t, w.Start, w.End, "%s", w.Start)
					for _, inside := range []time.Time{w.Start, w.Start.Add(w.End.Sub(w.Start) / 2), w.End.Add(-time.Nanosecond)} {
						require.Equal(t, w, calendar.Window(period, inside), "%s of %s", period, inside)
					}
					next := calendar.Window(period, w.End)
					require.Equal(t, w.End, next.Start)
					w = next
				}
			}
			require.Equal(t, Window{}, calendar.Window(PeriodTotal, time.Now()))
		})
	}
}

func TestCalendarLeavesOutASkippedDay(t *testing.T) {
	t.Parallel()
	apia, err := time.LoadLocation("Pacific/Apia")
	require.NoError(t, err)
	w := Calendar{Location: apia}.Window(PeriodDay, time.Date(2011, 12, 29, 12, 0, 0, 0, apia))
	require.Equal(t, time.Date(2011, 12, 31, 0, 0, 0, 0, apia).UTC(), w.End)
	require.Equal(t, 24*time.Hour, w.End.Sub(w.Start))
}

// Windows of the days and months that are not like the others, by their local bounds and their length.
func TestCalendarOfUncommonDays(t *testing.T) {
	t.Parallel()
	const at, hour = "2006-01-02T15:04", time.Hour
	tests := []struct {
		name, zone string
		period     Period
		at         string // local
		start, end string // local
		length     time.Duration
	}{
		{"clocks go forward", "Europe/Berlin", PeriodDay, "2026-03-29T12:00", "2026-03-29T00:00", "2026-03-30T00:00", 23 * hour},
		{"clocks go back", "Europe/Berlin", PeriodDay, "2026-10-25T12:00", "2026-10-25T00:00", "2026-10-26T00:00", 25 * hour},
		{"week with 23 hours", "Europe/Berlin", PeriodWeek, "2026-03-29T23:59", "2026-03-23T00:00", "2026-03-30T00:00", 167 * hour},
		{"week with 25 hours", "America/New_York", PeriodWeek, "2026-11-01T00:00", "2026-10-26T00:00", "2026-11-02T00:00", 169 * hour},
		{"March", "Europe/Berlin", PeriodMonth, "2026-03-31T23:59", "2026-03-01T00:00", "2026-04-01T00:00", 743 * hour},
		{"October", "Europe/Berlin", PeriodMonth, "2026-10-01T00:00", "2026-10-01T00:00", "2026-11-01T00:00", 745 * hour},
		{"forward at midnight", "America/Havana", PeriodDay, "2026-03-08T12:00", "2026-03-08T01:00", "2026-03-09T00:00", 23 * hour},
		{"half an hour", "Australia/Lord_Howe", PeriodDay, "2026-10-04T12:00", "2026-10-04T00:00", "2026-10-05T00:00", 23*hour + hour/2},
		{"leap day", "UTC", PeriodDay, "2028-02-29T23:59", "2028-02-29T00:00", "2028-03-01T00:00", 24 * hour},
		{"leap February", "Asia/Kathmandu", PeriodMonth, "2028-02-29T00:00", "2028-02-01T00:00", "2028-03-01T00:00", 29 * 24 * hour},
		{"February", "UTC", PeriodMonth, "2026-02-28T23:59", "2026-02-01T00:00", "2026-03-01T00:00", 28 * 24 * hour},
		{"no leap year", "UTC", PeriodMonth, "2100-02-28T12:00", "2100-02-01T00:00", "2100-03-01T00:00", 28 * 24 * hour},
		{"last day of a year", "Pacific/Kiritimati", PeriodDay, "2026-12-31T23:59", "2026-12-31T00:00", "2027-01-01T00:00", 24 * hour},
		{"week over the year's end", "Europe/Berlin", PeriodWeek, "2027-01-01T00:00", "2026-12-28T00:00", "2027-01-04T00:00", 168 * hour},
		{"December", "America/New_York", PeriodMonth, "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00", 31 * 24 * hour},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(test.zone)
			require.NoError(t, err)
			local := func(text string) time.Time {
				instant, err := time.ParseInLocation(at, text, zone)
				require.NoError(t, err)
				return instant.UTC()
			}
			w := Calendar{Location: zone, WeekStart: time.Monday}.Window(test.period, local(test.at))
			require.Equal(t, Window{local(test.start), local(test.end)}, w)
			require.Equal(t, test.length, w.End.Sub(w.Start))
		})
	}
}
