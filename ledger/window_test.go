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
