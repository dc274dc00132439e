package event

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// tenCounters are those of one request of a key with day and month budgets on every tier.
func tenCounters(at time.Time) Counters {
	var all Counters
	add := func(tier ledger.Tier, family, subject string, periods ...ledger.Period) {
		for _, period := range periods {
			all = append(all, ledger.Counter{
				Tier: tier, Family: family, Subject: subject, Period: period, Window: ledger.Calendar{}.Window(period, at),
			})
		}
	}
	add(ledger.TierPlatform, "platform", "platform", ledger.PeriodDay, ledger.PeriodMonth)
	add(ledger.TierApp, "app", "app:checkout", ledger.PeriodDay, ledger.PeriodMonth, ledger.PeriodTotal)
	add(ledger.TierKey, "key", "key:k_1", ledger.PeriodDay, ledger.PeriodMonth)
	add(ledger.TierKey, "key[model]", "key:k_1[model=gpt-4o]", ledger.PeriodDay)
	add(ledger.TierUser, "user", "user:checkout/u1", ledger.PeriodDay, ledger.PeriodMonth)
	return all
}

func TestCountersSayEachWindowOnce(t *testing.T) {
	t.Parallel()
	counters := Counters{
		{Tier: ledger.TierApp, Family: "app", Subject: "app:shop", Period: ledger.PeriodTotal},
		{Tier: ledger.TierKey, Family: "key[model]", Subject: "key:k[model=m]", Period: ledger.PeriodDay, Window: ledger.Window{
			Start: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC),
		}},
		{Tier: ledger.TierKey, Family: "key[model]", Subject: "key:k[model=m]", Period: ledger.PeriodTotal},
	}
	data, err := json.Marshal(counters)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"windows": [{"period": "total"}, {"period": "day", "start": "2026-11-30T00:00:00Z", "end": "2026-12-01T00:00:00Z"}],
		"subjects": [
			{"tier": "app", "subject": "app:shop", "windows": [0]},
			{"tier": "key", "family": "key[model]", "subject": "key:k[model=m]", "windows": [1, 0]}
		]
	}`, string(data))
}

// The periods of one subject may lie apart, two subjects may share a name, and tenants may cut the same day otherwise.
func TestCountersReadWhatTheyWrote(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)
	lagos := ledger.Calendar{Location: time.FixedZone("", 3600)}
	ten := tenCounters(at)
	for name, counters := range map[string]Counters{
		"none":          nil,
		"ten":           ten,
		"lying apart":   {ten[0], ten[2], ten[1]},
		"the same name": {ten[2], {Tier: ledger.TierKey, Family: "key", Subject: ten[2].Subject, Period: ten[2].Period, Window: ten[2].Window}},
		"other midnight": {ten[0], {
			Tier: ledger.TierApp, Family: "app", Subject: "app:checkout", Period: ledger.PeriodDay, Window: lagos.Window(ledger.PeriodDay, at),
		}},
	} {
		data, err := json.Marshal(counters)
		require.NoError(t, err)
		var read Counters
		require.NoError(t, json.Unmarshal(data, &read), name)
		require.Equal(t, counters, read, name)
	}
}

// What is in ledgers and on streams since before counters were written like this.
func TestCountersReadWholeOnes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)
	e := used(at)
	e.Reservation.Held.NanoUSD = 1 // a map of the standard library holds numbers as doubles
	now, err := e.Encode()
	require.NoError(t, err)
	var body map[string]any
	require.NoError(t, json.Unmarshal(now, &body))
	body["reservation"].(map[string]any)["counters"] = []ledger.Counter(e.Reservation.Counters)
	former, err := json.MarshalIndent(body, "", "  ")
	require.NoError(t, err)
	require.Contains(t, string(former), `"period": "month"`)
	read, err := Decode(former)
	require.NoError(t, err)
	require.Equal(t, e, read)
}

func TestCountersRefuseAWindowThatIsNotThere(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"1", "-1", "99999999999999999999", "0.5", `"0"`} {
		var c Counters
		err := json.Unmarshal([]byte(`{"windows": [{"period": "total"}], "subjects": [{"tier": "app", "subject": "app:a", "windows": [`+place+`]}]}`), &c)
		require.Error(t, err, place)
	}
}
