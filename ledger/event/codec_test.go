package event

import (
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
)

// used is a Used event with everything set.
func used(at time.Time) *Event {
	id := NewReservationID(at)
	window := ledger.Calendar{}.Window(ledger.PeriodMonth, at)
	return &Event{
		V: Version, ID: ID(id, KindUsed), Kind: KindUsed, App: "checkout", OccurredAt: at, Producer: "gw-1", Sequence: 7, TraceID: "4bf92f",
		Reservation: &Reservation{
			ID: id, Key: "k_1", User: `a "quoted" <user> & ☃`, Plan: "default", Provider: "openai", ModelRequested: "best", ModelJudged: "fast", Model: "gpt-4o-mini",
			Endpoint: "/v1/chat/completions", Attempt: 1, Streamed: true, Held: ledger.Amounts{Requests: 1, Tokens: 100, NanoUSD: 1 << 60},
			Counters: []ledger.Counter{
				{Tier: ledger.TierApp, Family: "app", Subject: "app:checkout", Period: ledger.PeriodMonth, Window: window},
				{Tier: ledger.TierKey, Family: "key", Subject: "key:k_1", Period: ledger.PeriodTotal},
			},
			Rates: []Rate{{
				Rate: ledger.Rate{
					Tier: ledger.TierKey, Limit: "rpm", Subject: "key:k_1", Algorithm: ledger.AlgorithmTokenBucket, Unit: ledger.UnitRequests,
				},
				WindowMS: 60_000, Amount: 100, Burst: 20,
			}},
			PriceRow: "openai/gpt-4o-mini@start#1", ReservedAt: at, Deadline: at.Add(time.Minute), OnExpiry: ExpiryCharge,
			PolicyRevision: "abc", Flags: []string{"unpriced"},
		},
		Outcome: &Outcome{
			ModelServed: "gpt-4o-mini-2024-07-18", Usage: ledger.Usage{Input: 50, CachedInput: 3, Output: 40}, UsageState: ledger.UsageReported,
			Others: []ledger.ModelUsage{{Model: "gpt-image-1", Usage: ledger.Usage{OutputImage: 10}, Estimated: true}},
			Cost:   40, Components: []Component{
				{Class: ledger.ClassInput, Tokens: 50, Price: 150_000_000, Cost: 7},
				{Class: ledger.ClassOutput, Tokens: 40, Price: 600_000_000, Cost: 24},
				{Class: ledger.ClassOutputImage, Tokens: 10, Price: 900_000, Cost: 9, Model: "gpt-image-1", PriceRow: "openai/gpt-image-1@start#1"},
			},
			ProviderCost: new(ledger.NanoUSD), PriceRow: "openai/gpt-4o-mini@start#1", Status: 200, UpstreamID: "chatcmpl-1", Finish: ledger.ReasonOK, DurationMS: 12,
		},
	}
}

// adjusted makes the used event the first adjustment of its reservation.
func adjusted(e *Event) *Adjustment {
	e.ID, e.Kind = AdjustedID(e.Reservation.ID, 1), KindAdjusted
	e.Adjustment = &Adjustment{Number: 1, Reason: AdjustmentPrice, Before: 30, Gateway: e.Producer}
	return e.Adjustment
}

func TestDecodeReadsWhatEncodeWrote(t *testing.T) {
	t.Parallel()
	e := used(time.Date(2026, 11, 29, 22, 0, 0, 123_456_000, time.UTC))
	data, err := e.Encode()
	require.NoError(t, err)
	read, err := Decode(data)
	require.NoError(t, err)
	require.Equal(t, e, read)

	var standard Event
	require.NoError(t, json.Unmarshal(data, &standard), "the standard library reads it too")
	require.Equal(t, e, &standard)
	require.NotContains(t, string(data), "0001-01-01", "a window without end has no times")

	adjusted(e)
	data, err = e.Encode()
	require.NoError(t, err)
	read, err = Decode(data)
	require.NoError(t, err)
	require.Equal(t, e, read)
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)
	for name, change := range map[string]func(*Event){
		"another schema":                  func(e *Event) { e.V = 2 },
		"no id":                           func(e *Event) { e.ID = "" },
		"an id of another reservation":    func(e *Event) { e.ID = ID(NewReservationID(at), KindUsed) },
		"an id of another kind":           func(e *Event) { e.ID = ID(e.Reservation.ID, KindReserved) },
		"an app that is no subject":       func(e *Event) { e.App = "a.b" },
		"no time":                         func(e *Event) { e.OccurredAt = time.Time{} },
		"no reservation":                  func(e *Event) { e.Reservation = nil },
		"no outcome":                      func(e *Event) { e.Outcome = nil },
		"a negative hold":                 func(e *Event) { e.Reservation.Held.Tokens = -1 },
		"a negative class":                func(e *Event) { e.Outcome.Usage.Input = -1 },
		"components that are not its sum": func(e *Event) { e.Outcome.Cost++ },
		"an unknown expiry rule":          func(e *Event) { e.Reservation.OnExpiry = "?" },
		"an unknown kind":                 func(e *Event) { e.Kind = "bought" },
		"an adjustment without number":    func(e *Event) { adjusted(e).Number = 0 },
		"an adjustment under another id":  func(e *Event) { adjusted(e).Number = 2 },
		"an adjustment of nothing":        func(e *Event) { adjusted(e).Before = e.Outcome.Cost },
		"an adjustment of less than 0":    func(e *Event) { adjusted(e).Before = -1 },
		"an adjustment for no reason":     func(e *Event) { adjusted(e).Reason = "whim" },
		"an adjustment to nothing":        func(e *Event) { adjusted(e); e.Outcome = nil },
		"adjusted without adjustment":     func(e *Event) { adjusted(e); e.Adjustment = nil },
		"a use under an adjustment's id":  func(e *Event) { adjusted(e); e.Kind = KindUsed },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := used(at)
			change(e)
			data, err := e.Encode()
			require.NoError(t, err)
			_, err = Decode(data)
			require.ErrorIs(t, err, ErrInvalid)
		})
	}
}

func TestDecodeRefusesRefusals(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)
	for name, change := range map[string]func(*Event){
		"":                     func(*Event) {},
		"no refusals":          func(e *Event) { e.Refusals = nil },
		"no span":              func(e *Event) { e.Refusals.From = time.Time{} },
		"a span that is ended": func(e *Event) { e.Refusals.Until = at.Add(-1) },
		"none counted":         func(e *Event) { e.Refusals.Counts[1].Count = 0 },
		"fewer than none":      func(e *Event) { e.Refusals.Counts[0].Count = -1 },
	} {
		e := &Event{
			V: Version, ID: ID(NewReservationID(at), KindRefused), Kind: KindRefused, App: "shop", OccurredAt: at,
			Refusals: &Refusals{From: at, Until: at, Counts: []RefusalCount{{App: "shop", Count: 1}, {App: "shop", Count: 2}}},
		}
		change(e)
		data, err := e.Encode()
		require.NoError(t, err)
		_, err = Decode(data)
		if name == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrInvalid, name)
	}
}

// FuzzDecode holds the fast reader equal to the standard one on everything that both take, and holds that what was read can
// be written and read again.
func FuzzDecode(f *testing.F) {
	data, err := used(time.Date(2026, 11, 29, 22, 0, 0, 0, time.UTC)).Encode()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"v":1,"kind":"released","release":{"reason":"OK"}}`))
	f.Add([]byte(`{"v":1,"reservation":{"counters":[{"tier":"app","family":"app","subject":"app:shop","period":"total"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Decode(data)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		if !utf8.Valid(data) {
			return // the settler parks it
		}
		var standard Event
		if err := json.Unmarshal(data, &standard); err == nil {
			require.Equal(t, &standard, e)
		}
		again, err := e.Encode()
		require.NoError(t, err)
		read, err := Decode(again)
		require.NoError(t, err)
		third, err := read.Encode()
		require.NoError(t, err)
		require.Equal(t, string(again), string(third))
	})
}

func BenchmarkEncode(b *testing.B) {
	e := used(time.Now().UTC())
	e.Reservation.Counters = tenCounters(e.OccurredAt)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Encode(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	e := used(time.Now().UTC())
	e.Reservation.Counters = tenCounters(e.OccurredAt)
	data, err := e.Encode()
	require.NoError(b, err)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
