package pg_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/sjson"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// TestVerifyNamesWhatIsBroken changes one row by hand at a time, with the triggers off, and expects the invariants to say so.
func TestVerifyNamesWhatIsBroken(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, sql, check string }{
		{"budget", `UPDATE budgets SET nanousd = nanousd + 1 WHERE app = 'checkout' AND period = 'day'`, "I5 budgets-equal-charges"},
		{"budget lost", `DELETE FROM budgets WHERE period = 'total'`, "I5 budgets-equal-charges"},
		{"over limit", `UPDATE policy_limits SET limit_value = 499`, "I1 within-limits"},
		{"transfer lost", `DELETE FROM transfers`, "I4 one-final-transfer"},
		{"transfer changed", `UPDATE transfers SET amount_nanousd = amount_nanousd + 1 WHERE kind = 'settle'`, "I5 transfers-equal-charges"},
		{"transfer invented", `INSERT INTO transfers SELECT (jsonb_populate_record(t, '{"kind": "grant", "debit_account_id": 999}')).* FROM transfers t`, "I6 double-entry"},
		{"charge changed", `UPDATE reservations SET charged_tokens = 1`, "I5 charges-equal-events"},
		{"classes changed", `UPDATE reservations SET input_tokens = input_tokens + 1`, "I7 classes-sum"},
		{"event lost", `UPDATE producers SET seen = seen - '{[1,2)}'`, "I8 no-gaps"},
		{"adjustment lost", `DELETE FROM transfers WHERE kind = 'adjust'`, "I4 one-final-transfer"},
		{"adjustment changed", `UPDATE transfers SET amount_nanousd = 1 WHERE kind = 'adjust'`, "I5 transfers-equal-charges"},
		{"adjustment of nothing", `UPDATE transfers SET linked_transfer = 'mine/settle' WHERE kind = 'adjust'`, "I6 double-entry"},
		{"adjustment undone", `UPDATE reservations SET adjustments = 0, charged_nanousd = 500`, "I5 charges-equal-events"},
		{"adjusted cost changed", `UPDATE transfers SET components = '[]' WHERE kind = 'adjust'`, "I7 classes-sum"},
		{"pending for ever", `UPDATE reservations SET state = 'pending', ended_at = NULL, adjustments = 0, charged_requests = 0, charged_tokens = 0, charged_nanousd = 0`, "I3 reservations-end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url := stack.Postgres(t)
			store := openAt(t, url)
			r := reservation("checkout", 0, start)
			policy := &event.Event{
				V: event.Version, ID: event.ID(event.NewReservationID(start), event.KindPolicy), Kind: event.KindPolicy, App: "none",
				OccurredAt: start, Producer: "gw-1", Sequence: 3,
				Policy: &event.Policy{Revision: "1", Limits: []event.PolicyLimit{{
					Name: "app-day", Tier: ledger.TierApp, Family: "app", Unit: ledger.UnitUSD, Period: ledger.PeriodDay, Limit: 500, Hard: true,
				}}},
			}
			used := newEvent(event.KindUsed, "checkout", r, 2)
			mustPost(t, store, newEvent(event.KindReserved, "checkout", r, 1), used, policy)
			mustPost(t, store, adjust(used, 1, 500, 600))
			requireVerified(t, store)

			ctx := context.Background()
			conn, err := pgx.Connect(ctx, url)
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close(ctx)) }()
			_, err = conn.Exec(ctx, "SET session_replication_role = replica; "+test.sql)
			require.NoError(t, err)
			checks, err := store.Verify(ctx)
			require.NoError(t, err)
			var broken []string
			for _, c := range checks {
				if !c.OK {
					broken = append(broken, c.Name)
				}
			}
			require.Contains(t, broken, test.check)
		})
	}
}

// Ledgers hold events from before their counters were written by subject and window: they verify, are replayed, and what is
// wrong with their budgets is found.
func TestVerifyReadsWholeCounters(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	var batch []pg.Received
	for i := range 2 {
		r := reservation("checkout", int64(i), start)
		for _, e := range []*event.Event{newEvent(event.KindReserved, "checkout", r, uint64(2*i+1)), newEvent(event.KindUsed, "checkout", r, uint64(2*i+2))} {
			x := received(t, e, e.Sequence)
			if i == 0 {
				counters, err := json.Marshal([]ledger.Counter(r.Counters))
				require.NoError(t, err)
				x.Body, err = sjson.SetRawBytes(x.Body, "reservation.counters", counters)
				require.NoError(t, err)
				x.Event, err = event.Decode(x.Body)
				require.NoError(t, err)
				require.Equal(t, r.Counters, x.Event.Reservation.Counters)
			}
			batch = append(batch, x)
		}
	}
	_, err := post(t.Context(), store, batch)
	require.NoError(t, err)
	requireVerified(t, store)

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	_, err = conn.Exec(t.Context(), "UPDATE budgets SET tokens = tokens + 1 WHERE app = 'checkout' AND period = 'day'")
	require.NoError(t, err)
	checks, err := store.Verify(t.Context())
	require.NoError(t, err)
	for _, c := range checks {
		require.Equal(t, c.Name != "I5 budgets-equal-charges", c.OK, c.Name)
	}
}

// A user may be called anything, also what looks like a NUL character of JSON and is none.
func TestVerifyReadsAnySubject(t *testing.T) {
	t.Parallel()
	store := open(t)
	for i, user := range []string{`a\u0000b`, `a\\u0000b`, "a\x00b", "a\\\x00b", `\ud800`, "a\x01b\xff\u2028", `\u0000\u0000\`} {
		r := reservation("checkout", int64(i), start)
		r.User = user
		r.Counters = append(r.Counters, ledger.Counter{Tier: ledger.TierUser, Family: "user", Subject: "user:checkout/" + user, Period: ledger.PeriodTotal})
		mustPost(t, store, newEvent(event.KindReserved, "checkout", r, uint64(2*i+1)), newEvent(event.KindUsed, "checkout", r, uint64(2*i+2)))
	}
	requireVerified(t, store)
}
