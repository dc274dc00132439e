package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/e2e/stack"
	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

func refusedEvent(app string, sequence uint64, from time.Time, counts ...event.RefusalCount) *event.Event {
	return &event.Event{
		V: event.Version, ID: event.ID(event.NewReservationID(from), event.KindRefused), Kind: event.KindRefused, App: app,
		OccurredAt: from.Add(time.Minute), Producer: "gw-1", Sequence: sequence,
		Refusals: &event.Refusals{From: from, Until: from.Add(time.Minute), Counts: counts},
	}
}

// Refusals are summed by the hour, whichever gateways and events tell of them, and each event counts once.
func TestRefusalsHourly(t *testing.T) {
	t.Parallel()
	url := stack.Postgres(t)
	store := openAt(t, url)
	count := func(subject string, n int64) event.RefusalCount {
		return event.RefusalCount{
			Layer: ledger.TierUser, Reason: ledger.ReasonUserQuota, Limit: "user-day", Subject: subject, App: "shop", Endpoint: "/v1/embeddings", Count: n,
		}
	}
	unknown := event.RefusalCount{Reason: ledger.ReasonUnknownModel, App: "shop", Endpoint: "/v1/embeddings", Count: 7}
	events := []*event.Event{
		refusedEvent("shop", 1, start.Add(59*time.Minute), count("user:shop/ada", 3), count("user:shop/\x00eve", 1), unknown),
		refusedEvent("shop", 2, start.Add(10*time.Minute), count("user:shop/ada", 4)),
		refusedEvent("shop", 3, start.Add(time.Hour), count("user:shop/ada", 5)),
	}
	for i := range 2 {
		for _, fate := range mustPost(t, store, events...).Fates {
			require.Equal(t, []pg.Fate{pg.FatePosted, pg.FateDuplicate}[i], fate)
		}
	}
	require.Equal(t, []string{
		"12 user|USER_QUOTA|user-day|user:shop/ada|shop|/v1/embeddings|7",
		"12 user|USER_QUOTA|user-day|user:shop/\uFFFDeve|shop|/v1/embeddings|1",
		"12 |UNKNOWN_MODEL|||shop|/v1/embeddings|7",
		"13 user|USER_QUOTA|user-day|user:shop/ada|shop|/v1/embeddings|5",
	}, sorted(lines(t, url, `
SELECT to_char(hour AT TIME ZONE 'UTC', 'HH24') || ' ' || concat_ws('|', layer, reason, limit_name, subject, app, endpoint, refusals)
FROM finance.refusals_hourly`)))
	requireVerified(t, store)
}
