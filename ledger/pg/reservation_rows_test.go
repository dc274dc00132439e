package pg_test

import (
	"encoding/json"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/migrations"
)

// TestEveryColumnOfAReservation posts requests whose values all differ, as a new row and as a changed one: each is in the column of
// its name, with the texts that Postgres cannot hold made storable.
func TestEveryColumnOfAReservation(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	full := func() (r event.Reservation, used *event.Event) {
		r = event.Reservation{
			ID: event.NewReservationID(start), Key: "key", User: "user\x00", Plan: "plan\xff", Provider: "provider", ProviderKey: "provider key",
			ModelRequested: "requested", ModelJudged: "judged", Model: "model é", Endpoint: "/endpoint", Attempt: 2, FirstAttempt: "first",
			Streamed: true, Held: ledger.Amounts{Requests: 1, Tokens: 200, NanoUSD: 3000}, Extended: ledger.Amounts{Tokens: 7, NanoUSD: 9}, Extensions: 1,
			PriceRow: "estimated by", ReservedAt: start.Add(1500 * time.Microsecond), Deadline: start.Add(time.Minute), OnExpiry: event.ExpiryRelease,
			PolicyRevision: "revision", Flags: []string{`a "quoted", {flag}`, "", "b\x1f\x00"},
		}
		used = newEvent(event.KindUsed, "app", r, 2)
		used.Producer, used.TraceID = "producer", "trace"
		used.Outcome = &event.Outcome{
			ModelServed: "served", Usage: ledger.Usage{
				Input: 1, CachedInput: 2, CacheWrite5m: 3, CacheWrite1h: 4, InputAudio: 5, InputImage: 6, InputVideo: 7, CachedInputAudio: 8,
				CachedInputImage: 9, Output: 10, Reasoning: 11, OutputAudio: 12, OutputImage: 13, OutputVideo: 14,
				Calls: ledger.Calls{WebSearch: 15, FileSearch: 16, CodeInterpreter: 17},
			}, UsageState: ledger.UsageReported, ServiceTier: ledger.ServiceFlex, Cost: 1234, PriceRow: "priced by", Status: 201,
			Components: []event.Component{{Class: ledger.ClassInput, Tokens: 1, Cost: 1234}},
			UpstreamID: "upstream", Finish: ledger.ReasonOK, FirstByteMS: 18, DurationMS: 19,
		}
		return r, used
	}
	inserted, used := full()
	mustPost(t, store, used)
	changed, used := full()
	mustPost(t, store, newEvent(event.KindReserved, "app", changed, 1))
	pending := row(t, url, changed.ID)
	require.Equal(t, "pending", pending["state"])
	require.Nil(t, pending["ended_at"])
	mustPost(t, store, used)

	for _, id := range []string{inserted.ID, changed.ID} {
		require.Equal(t, map[string]any{
			"reservation_id": id, "state": "settled", "app": "app", "api_key": "key", "end_user": "user\uFFFD", "plan": "plan\uFFFD",
			"provider": "provider", "model_requested": "requested", "model_judged": "judged", "model": "model é", "model_served": "served",
			"endpoint": "/endpoint", "producer": "producer", "trace_id": "trace", "policy_revision": "revision", "price_row": "priced by",
			"on_expiry": "release", "usage_state": "reported", "service_tier": "flex", "finish": "OK", "provider_key": "provider key",
			"first_attempt": "first", "attempt": 2.0, "held_requests": 1.0, "held_tokens": 207.0, "held_nanousd": 3009.0,
			"charged_requests": 1.0, "charged_tokens": 105.0, "charged_nanousd": 1234.0, "input_tokens": 1.0, "cached_input_tokens": 2.0,
			"cache_write_5m_tokens": 3.0, "cache_write_1h_tokens": 4.0, "input_audio_tokens": 5.0, "input_image_tokens": 6.0,
			"input_video_tokens": 7.0, "cached_input_audio_tokens": 8.0, "cached_input_image_tokens": 9.0, "output_tokens": 10.0,
			"reasoning_tokens": 11.0, "output_audio_tokens": 12.0, "output_image_tokens": 13.0, "output_video_tokens": 14.0,
			"web_search_calls": 15.0, "file_search_calls": 16.0, "code_interpreter_calls": 17.0, "status": 201.0, "first_byte_ms": 18.0,
			"duration_ms": 19.0, "adjustments": 0.0, "day": "2026-11-29", "reserved_at": "2026-11-29T12:00:00.0015+00:00",
			"deadline": "2026-11-29T12:01:00+00:00", "ended_at": "2026-11-29T12:00:01.0015+00:00", "streamed": true, "upstream_id": "upstream",
			"flags": []any{`a "quoted", {flag}`, "", "b\x1f\uFFFD"},
		}, row(t, url, id))
	}
}

// row is a reservation as the table has it, by column.
func row(t *testing.T, url, id string) map[string]any {
	t.Helper()
	found := lines(t, setting(t, url, "timezone", "UTC"), `SELECT to_json(r)::text FROM reservations r WHERE reservation_id = '`+id+`'`)
	require.Len(t, found, 1)
	var columns map[string]any
	require.NoError(t, json.Unmarshal([]byte(found[0]), &columns))
	return columns
}

// setting is the database's address for connections that have one of the server's parameters set.
func setting(t *testing.T, address, name, value string) string {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// TestBatchesOfOneConnection: what a batch wrote, or failed to, changes nothing for the next one of the same connection.
func TestBatchesOfOneConnection(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), stack.Postgres(t)
	store := openAt(t, url)
	session, err := store.Settling(ctx)
	require.NoError(t, err)
	defer session.Close(ctx)
	batch := func(kind event.Kind, reservations ...event.Reservation) (batch []pg.Received) {
		for _, r := range reservations {
			batch = append(batch, received(t, newEvent(kind, "checkout", r, 0), 1))
		}
		return batch
	}
	months := []event.Reservation{ // those without a partition of their month among them
		reservation("checkout", 1, time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)), reservation("checkout", 2, time.Date(1999, 12, 31, 23, 59, 59, 0, time.UTC)),
		reservation("checkout", 3, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), reservation("checkout", 4, start),
		reservation("checkout", 5, start.AddDate(0, 0, 2)), reservation("checkout", 6, start.AddDate(40, 0, 0)),
	}
	bad := reservation("checkout", 7, start)
	bad.Attempt = 1 << 40
	good := reservation("checkout", 8, start)

	_, err = session.Post(ctx, batch(event.KindReserved, months...))
	require.NoError(t, err)
	_, err = session.Post(ctx, batch(event.KindReserved, good, bad))
	require.True(t, pg.Permanent(err), "%v", err)
	result, err := session.Post(ctx, append(batch(event.KindUsed, months[1:]...), batch(event.KindReserved, good)...))
	require.NoError(t, err)
	require.Len(t, result.WriteBacks[0].Endings, 5)
	require.Len(t, result.WriteBacks[0].Opens, 1)
	_, err = session.Post(ctx, batch(event.KindReserved))
	require.NoError(t, err)

	want := []string{"1970-01-01 101 pending", "1999-12-31 102 settled", "2000-01-01 103 settled", "2026-11-29 104 settled", "2026-12-01 105 settled", "2066-11-29 106 settled"}
	require.Equal(t, append(want, "2026-11-29 108 pending"), lines(t, url, `SELECT concat_ws(' ', day, held_tokens, state) FROM reservations ORDER BY held_tokens`))
}

// TestLargeBatch is one of more events than a settler takes at once.
func TestLargeBatch(t *testing.T) {
	t.Parallel()
	store := open(t)
	var events []*event.Event
	for i := range 2500 {
		events = append(events, newEvent(event.KindReserved, "checkout", reservation("checkout", int64(i), start), uint64(i+1)))
	}
	require.Len(t, mustPost(t, store, events...).WriteBacks[0].Opens, len(events))
}

// TestPostWithTheRightsOfTheService needs no more than the role that services have.
func TestPostWithTheRightsOfTheService(t *testing.T) {
	t.Parallel()
	url := setting(t, stack.Postgres(t), "role", "tollgate_app")
	require.Equal(t, []string{"tollgate_app"}, lines(t, url, `SELECT current_user::text`))
	store := openAt(t, url)
	r := reservation("checkout", 0, start)
	mustPost(t, store, newEvent(event.KindReserved, "checkout", r, 1))
	mustPost(t, store, newEvent(event.KindUsed, "checkout", r, 2))
	requireVerified(t, store)
}

// TestPostInEveryMode settles however the database URL has statements sent, also when the type of its rows was made anew.
func TestPostInEveryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			ctx, url := t.Context(), stack.Postgres(t)
			store := openAt(t, setting(t, url, "default_query_exec_mode", mode))
			session, err := store.Settling(ctx)
			require.NoError(t, err)
			defer session.Close(ctx)
			settle := func(r event.Reservation, sequence uint64) error {
				for i, kind := range []event.Kind{event.KindReserved, event.KindUsed} {
					e := newEvent(kind, "checkout", r, sequence+uint64(i))
					if _, err := session.Post(ctx, []pg.Received{received(t, e, e.Sequence)}); err != nil {
						return err
					}
				}
				return nil
			}
			require.NoError(t, settle(reservation("checkout", 0, start), 1))
			require.NoError(t, migrations.DownTo(ctx, url, 14))
			require.NoError(t, migrations.Up(ctx, url))
			r := reservation("checkout", 1, start)
			for range 2 { // a statement that was prepared before fails once
				err := settle(r, 3)
				require.False(t, pg.Permanent(err), "%v", err)
			}
			require.NoError(t, settle(r, 3))
			requireVerified(t, store)
		})
	}
}

// TestPostBeforeItsMigration waits for it, and goes on when it was taken back and made anew: the batch is not to blame.
func TestPostBeforeItsMigration(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), stack.Postgres(t)
	require.NoError(t, migrations.DownTo(ctx, url, 14))
	store := openAt(t, url)
	batch := []pg.Received{received(t, newEvent(event.KindReserved, "checkout", reservation("checkout", 0, start), 1), 1)}
	session, err := store.Settling(ctx)
	require.NoError(t, err)
	defer session.Close(ctx)
	_, err = session.Post(ctx, batch)
	require.ErrorContains(t, err, `type "public.incoming_reservation" does not exist`)
	require.False(t, pg.Permanent(err))

	require.NoError(t, migrations.Up(ctx, url))
	_, err = session.Post(ctx, batch)
	require.NoError(t, err)

	require.NoError(t, migrations.DownTo(ctx, url, 14))
	require.NoError(t, migrations.Up(ctx, url))
	batch = []pg.Received{received(t, newEvent(event.KindReserved, "checkout", reservation("checkout", 1, start), 2), 2)}
	_, err = session.Post(ctx, batch)
	require.ErrorContains(t, err, "insert reservations")
	require.False(t, pg.Permanent(err))
	_, err = session.Post(ctx, batch)
	require.NoError(t, err)
}
