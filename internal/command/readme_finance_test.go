package command

import (
	"context"
	"database/sql/driver"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// post puts the events into the ledger.
func post(t *testing.T, url string, events ...*event.Event) {
	t.Helper()
	store, err := pg.Open(t.Context(), url, 2)
	require.NoError(t, err)
	defer store.Close()
	session, err := store.Settling(t.Context())
	require.NoError(t, err)
	defer session.Close(t.Context())
	var batch []pg.Received
	for i, e := range events {
		body, err := e.Encode()
		require.NoError(t, err)
		batch = append(batch, pg.Received{Event: e, Body: body, Subject: e.Subject(), StreamSeq: uint64(i + 1)})
	}
	result, err := session.Post(t.Context(), batch)
	require.NoError(t, err)
	for _, fate := range result.Fates {
		require.Equal(t, pg.FatePosted, fate)
	}
}

// spent is a request that has cost so many nano-dollars.
func spent(app, user, endpoint string, cost ledger.NanoUSD, at time.Time) *event.Event {
	res := event.Reservation{
		ID: event.NewReservationID(at), Key: "k_" + app, User: user, Plan: "default", Provider: "openai", ModelRequested: "m", Model: "m",
		Endpoint: endpoint, Attempt: 1, Held: ledger.Amounts{Requests: 1, Tokens: 10, NanoUSD: cost}, ReservedAt: at, Deadline: at.Add(time.Minute),
		OnExpiry: event.ExpiryCharge,
	}
	return &event.Event{
		V: event.Version, ID: event.ID(res.ID, event.KindUsed), Kind: event.KindUsed, App: app, OccurredAt: at, Producer: "gw-1", Reservation: &res,
		Outcome: &event.Outcome{
			ModelServed: "m", Usage: ledger.Usage{Input: 10}, UsageState: ledger.UsageReported, Cost: cost, Finish: ledger.ReasonOK,
			Components: []event.Component{{Class: ledger.ClassInput, Tokens: 10, Cost: cost}},
		},
	}
}

func refused(app string, at time.Time, counts ...event.RefusalCount) *event.Event {
	for i := range counts {
		counts[i].App = app
	}
	return &event.Event{
		V: event.Version, ID: event.ID(event.NewReservationID(at), event.KindRefused), Kind: event.KindRefused, App: app, OccurredAt: at, Producer: "gw-1",
		Refusals: &event.Refusals{From: at, Until: at, Counts: counts},
	}
}

// Every query of the README runs with finance's rights, and those about the top of spend and refusals find it.
func TestReadmeQueries(t *testing.T) {
	t.Parallel()
	stack.AwayFromMidnight(t, time.UTC)
	url := stack.Postgres(t)
	now := time.Now().UTC()
	user := func(subject string, n int64) event.RefusalCount {
		return event.RefusalCount{Layer: ledger.TierUser, Reason: ledger.ReasonUserQuota, Limit: "user-day", Subject: subject, Endpoint: "/v1/embeddings", Count: n}
	}
	post(t, url,
		spent("checkout", "ada", "/v1/chat/completions", 1_000_000_000, now), spent("checkout", "eve", "/v1/embeddings", 2_500_000_000, now),
		spent("batch", "", "/v1/embeddings", 3_000_000_000, now), spent("old", "", "/v1/embeddings", 9_000_000_000, now.AddDate(0, -2, 0)),
		refused("checkout", now, user("user:checkout/ada", 3), user("user:checkout/ada[model=m]", 4), user("user:checkout/eve?plan=free", 5)),
		refused("batch", now,
			event.RefusalCount{Layer: ledger.TierApp, Reason: ledger.ReasonAppQuota, Limit: "app-day", Subject: "app:batch", Endpoint: "/v1/embeddings", Count: 20},
			event.RefusalCount{Reason: ledger.ReasonUnknownModel, Endpoint: "/v1/embeddings", Count: 1}),
		refused("old", now.AddDate(0, 0, -2), user("user:old/joe", 100)),
	)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	_, err = conn.Exec(t.Context(), "SET ROLE finance")
	require.NoError(t, err)
	run := func(query string) (found []string) {
		rows, err := conn.Query(t.Context(), query)
		require.NoError(t, err, query)
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			values, err := row.Values()
			text := make([]string, len(values))
			for i, value := range values {
				if n, ok := value.(driver.Valuer); ok { // a numeric
					if value, err = n.Value(); err != nil {
						return "", err
					}
				}
				text[i] = fmt.Sprint(value)
			}
			return strings.Join(text, "|"), err
		})
		require.NoError(t, err, query)
		return found
	}
	queries := regexp.MustCompile("(?s)```sql\n(.+?)```").FindAllStringSubmatch(readme(t), -1)
	require.Greater(t, len(queries), 5)
	want := map[string][]string{
		"ORDER BY cost_usd":           {"checkout|2|3.500000000", "batch|1|3.000000000"},
		"SELECT app, layer, limit_na": {"batch|app|app-day|APP_QUOTA|20", "checkout|user|user-day|USER_QUOTA|12", "batch|||UNKNOWN_MODEL|1"},
		"AS app_and_user":             {"checkout/ada|7", "checkout/eve|5"},
	}
	for _, q := range queries {
		found := run(q[1])
		for part, rows := range want {
			if strings.Contains(q[1], part) {
				require.Equal(t, rows, found, q[1])
				delete(want, part)
			}
		}
		// The other columns that the README names for the same question.
		for _, by := range []string{"endpoint", "app, end_user"} {
			if strings.Contains(q[1], "ORDER BY cost_usd") {
				run(strings.NewReplacer("SELECT app,", "SELECT "+by+",", "GROUP BY app ", "GROUP BY "+by+" ").Replace(q[1]))
			}
		}
	}
	require.Empty(t, want, "the README asks no such thing any more")
}
