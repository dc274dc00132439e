package settler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// Requests that are admitted just before a window ends and settled after it count in the window that admitted them, whose bounds
// are the tenant's; the transfer carries the UTC day as well. The settler knows no calendar: the event names the windows.
func TestSettlesIntoTheWindowOfTheReservation(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, zone string
		at         time.Time // admitted; settled an hour later
		period     ledger.Period
		window     string // in UTC
		utcDay     string // of the settlement
	}{
		{"23 hours", "Europe/Berlin", time.Date(2026, 3, 29, 21, 59, 59, 0, time.UTC), ledger.PeriodDay, "2026-03-28 23:00 until 2026-03-29 22:00", "2026-03-29"},
		{"25 hours", "Europe/Berlin", time.Date(2026, 10, 25, 22, 59, 59, 0, time.UTC), ledger.PeriodDay, "2026-10-24 22:00 until 2026-10-25 23:00", "2026-10-25"},
		{"repeated hour", "Europe/Berlin", time.Date(2026, 10, 25, 1, 30, 0, 0, time.UTC), ledger.PeriodDay, "2026-10-24 22:00 until 2026-10-25 23:00", "2026-10-25"},
		{"leap day", "America/New_York", time.Date(2028, 3, 1, 4, 59, 59, 0, time.UTC), ledger.PeriodDay, "2028-02-29 05:00 until 2028-03-01 05:00", "2028-03-01"},
		{"year", "Asia/Kathmandu", time.Date(2026, 12, 31, 18, 14, 59, 0, time.UTC), ledger.PeriodMonth, "2026-11-30 18:15 until 2026-12-31 18:15", "2026-12-31"},
		{"year by UTC", "UTC", time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC), ledger.PeriodMonth, "2026-12-01 00:00 until 2027-01-01 00:00", "2027-01-01"},
		{"week", "Europe/Berlin", time.Date(2027, 1, 3, 22, 59, 59, 0, time.UTC), ledger.PeriodWeek, "2026-12-27 23:00 until 2027-01-03 23:00", "2027-01-03"},
		{"month", "Pacific/Kiritimati", time.Date(2027, 1, 31, 9, 59, 59, 0, time.UTC), ledger.PeriodMonth, "2026-12-31 10:00 until 2027-01-31 10:00", "2027-01-31"},
	}
	w := newWorld(t, parts{})
	w.settle()
	var ids []string
	for _, test := range tests {
		zone, err := time.LoadLocation(test.zone)
		require.NoError(t, err)
		window := ledger.Calendar{Location: zone, WeekStart: time.Monday}.Window(test.period, test.at)
		r := newReservation(time.Hour)
		r.ID, r.ReservedAt = event.NewReservationID(test.at), test.at
		r.Counters = []ledger.Counter{{Tier: ledger.TierUser, Family: "user", Subject: "user:" + test.name, Period: test.period, Window: window}}
		reserved, used := w.event(event.KindReserved, r), w.event(event.KindUsed, r)
		reserved.OccurredAt, used.OccurredAt = test.at, test.at.Add(time.Hour)
		w.publish(used, reserved) // in any order
		ids = append(ids, r.ID)
	}
	for i, test := range tests {
		w.awaitState(ids[i], "settled")
		const budget = `
SELECT string_agg(to_char(window_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' until ' || to_char(window_end AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')
    || ': ' || requests || ' ' || nanousd, '; ') FROM budgets WHERE subject = $1`
		got, err := w.scan(budget, "user:"+test.name)
		require.NoError(t, err)
		require.Equal(t, test.window+": 1 500", got, test.name)
		got, err = w.scan(`SELECT string_agg(kind || ' ' || utc_day, '; ') FROM transfers WHERE reservation_id = $1`, ids[i])
		require.NoError(t, err)
		require.Equal(t, "settle "+test.utcDay, got, test.name)
	}
	w.requireVerified("")
}
