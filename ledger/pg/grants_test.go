package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

func granted(id string, amount int64, at time.Time, revokes *event.Event) *event.Event {
	e := &event.Event{
		V: event.Version, ID: event.ID(event.NewReservationID(at), event.KindGranted), Kind: event.KindGranted, App: "shop", OccurredAt: at,
		Producer: "grant", Grant: &event.Grant{
			ID: id, Limit: "prepaid", Tier: ledger.TierApp, Family: "app", Subject: "app:shop", Unit: ledger.UnitUSD,
			Period: ledger.PeriodTotal, Amount: amount, Reason: "a test",
		},
	}
	if revokes != nil {
		e.Grant.ID, e.Grant.Revokes, e.Grant.RevokesEvent = event.RevocationID(id), id, revokes.ID
	}
	return e
}

// A grant is posted once however often it comes, moves money between two accounts, shows in the limit, and is gone, in the
// books too, when it is taken back. An id that comes with another event is a conflict.
func TestGrants(t *testing.T) {
	t.Parallel()
	stack.AwayFromMidnight(t, time.UTC) // a statement is of the month
	url := stack.Postgres(t)
	store := openAt(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	post := func(events ...*event.Event) error {
		session, err := store.Settling(t.Context())
		require.NoError(t, err)
		defer session.Close(t.Context())
		var batch []pg.Received
		for i, e := range events {
			body, err := e.Encode()
			require.NoError(t, err)
			decoded, err := event.Decode(body)
			require.NoError(t, err)
			batch = append(batch, pg.Received{Event: decoded, Body: body, Subject: e.Subject(), StreamSeq: uint64(i + 1)})
		}
		_, err = session.Post(t.Context(), batch)
		return err
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	limits := &event.Event{
		V: event.Version, ID: event.ID(event.NewReservationID(now), event.KindPolicy), Kind: event.KindPolicy, App: "platform", OccurredAt: now,
		Policy: &event.Policy{Revision: "r", Limits: []event.PolicyLimit{
			{Name: "prepaid", Tier: ledger.TierApp, Family: "app", Unit: ledger.UnitUSD, Period: ledger.PeriodTotal},
		}},
	}
	first, second := granted("g-1", 5_000_000_001, now, nil), granted("g-2", 7, now, nil)

	require.NoError(t, post(limits, first, second))
	require.NoError(t, post(first, second))
	require.True(t, pg.Permanent(post(granted("g-1", 5_000_000_001, now, nil))))
	figures := func() (limit, statement, account string) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT limit_value::text FROM finance.budget_status`).Scan(&limit))
		require.NoError(t, conn.QueryRow(t.Context(),
			`SELECT grants_usd::text FROM finance.statement('shop', now()::date)`).Scan(&statement))
		require.NoError(t, conn.QueryRow(t.Context(),
			`SELECT balance_usd::text FROM finance.accounts WHERE account = 'app:shop:grants'`).Scan(&account))
		return limit, statement, account
	}
	check := func(want string) {
		limit, statement, account := figures()
		require.Equal(t, [...]string{want, want, want}, [...]string{limit, statement, account})
	}
	check("5.000000008")
	revocation := granted("g-1", -5_000_000_001, now, first)
	require.NoError(t, post(revocation))
	require.True(t, pg.Permanent(post(granted("g-1", -5_000_000_001, now, first))), "a second revocation")
	check("0.000000007")
	inForce, err := store.GrantsInForce(t.Context())
	require.NoError(t, err)
	require.Len(t, inForce, 1)
	require.Equal(t, "g-2", inForce[0].ID)
	checks, err := store.Verify(t.Context())
	require.NoError(t, err)
	for _, c := range checks {
		require.True(t, c.OK, "%s: %d", c.Name, c.Figure)
	}
	differences, _, err := store.Rebuild(t.Context(), pg.RebuildOptions{Schema: "again", Examples: 3})
	require.NoError(t, err)
	for _, d := range differences {
		require.Zero(t, d.Differ, "%s: %v", d.Table, d.Examples)
	}
}

// An order stands under its id, the same asked for again is the same order, and anything else is refused, as is a grant to who
// is not there.
func TestOrderGrant(t *testing.T) {
	t.Parallel()
	store := openAt(t, stack.Postgres(t))
	now := time.Now().UTC().Truncate(time.Microsecond)
	first := granted("g-1", 5, now, nil)
	_, _, err := store.OrderGrant(t.Context(), first)
	require.ErrorIs(t, err, pg.ErrAppUnknown)
	require.NoError(t, store.CreateApp(t.Context(), "shop", ""))
	for range 2 {
		noted, _, err := store.OrderGrant(t.Context(), first)
		require.NoError(t, err)
		require.Equal(t, first.ID, noted.ID)
	}
	noted, _, err := store.OrderGrant(t.Context(), granted("g-1", first.Grant.Amount, now.Add(time.Hour), nil))
	require.NoError(t, err)
	require.Equal(t, first.ID, noted.ID, "the first order stands")
	_, _, err = store.OrderGrant(t.Context(), granted("g-1", 6, now, nil))
	require.ErrorIs(t, err, pg.ErrGrantExists)
	ofKey := granted("g-3", 1, now, nil)
	ofKey.Grant.Tier, ofKey.Grant.Subject = ledger.TierKey, "key:k_1[model=m]"
	_, _, err = store.OrderGrant(t.Context(), ofKey)
	require.ErrorIs(t, err, pg.ErrKeyUnknown)
}
