package admission

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tollgate/ledger"
	"tollgate/ledger/keys"
)

func TestSecret(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header http.Header
		want   string
	}{
		"none":             {http.Header{}, ""},
		"bearer":           {http.Header{"Authorization": {"Bearer tg-1"}}, "tg-1"},
		"lower case":       {http.Header{"Authorization": {"bearer tg-1"}}, "tg-1"},
		"blanks":           {http.Header{"Authorization": {"Bearer   tg-1 "}}, "tg-1"},
		"api key":          {http.Header{"X-Api-Key": {"tg-1"}}, "tg-1"},
		"bearer first":     {http.Header{"Authorization": {"Bearer tg-1"}, "X-Api-Key": {"tg-2"}}, "tg-1"},
		"basic is another": {http.Header{"Authorization": {"Basic tg-1"}, "X-Api-Key": {"tg-2"}}, "tg-2"},
		"no scheme":        {http.Header{"Authorization": {"tg-1"}}, ""},
		"empty bearer":     {http.Header{"Authorization": {"Bearer "}}, ""},
	} {
		require.Equal(t, c.want, Secret(c.header), name)
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	w := newWorld(t, settings{now: func() time.Time { return start }}, "")
	// Redis is an hour ahead of this machine: keys expire by its clock.
	w.clock.Observe(start.Add(time.Hour), 0)
	w.follow()
	for name, c := range map[string]struct {
		record keys.Record
		plan   string
		reason ledger.Reason
	}{
		"plain":              {keys.Record{App: app}, "default", ""},
		"key's plan":         {keys.Record{App: "planned", Plan: "free", AppPlan: "paid"}, "free", ""},
		"policy's plan":      {keys.Record{App: "planned", AppPlan: "free"}, "paid", ""},
		"app's plan":         {keys.Record{App: app, AppPlan: "paid"}, "paid", ""},
		"unknown plan":       {keys.Record{App: app, Plan: "gone"}, "gone", ledger.ReasonUnknownPlan},
		"unknown app's plan": {keys.Record{App: app, AppPlan: "gone"}, "gone", ledger.ReasonUnknownPlan},
		"revoked":            {keys.Record{App: app, Revoked: true}, "", ledger.ReasonDisabledKey},
		"app disabled":       {keys.Record{App: app, AppDisabled: true}, "", ledger.ReasonDisabledKey},
		"revoked first":      {keys.Record{App: app, Revoked: true, ExpiresAt: start}, "", ledger.ReasonDisabledKey},
		"expires now":        {keys.Record{App: app, ExpiresAt: start.Add(time.Hour)}, "", ledger.ReasonExpiredKey},
		"expired by redis":   {keys.Record{App: app, ExpiresAt: start.Add(59 * time.Minute)}, "", ledger.ReasonExpiredKey},
		"expires soon":       {keys.Record{App: app, ExpiresAt: start.Add(time.Hour + 1)}, "default", ""},
		"key of one user":    {keys.Record{App: app, User: "eve"}, "default", ""},
	} {
		c.record.KeyID = "k_" + name
		w.putKey(name, c.record)
		w.awaitKey(name, func(keys.Record) bool { return true })
		caller, refusal := w.Identify(name)
		if c.reason == "" {
			require.Nil(t, refusal, name)
		} else {
			require.Equal(t, c.reason, refusal.Reason, name)
			require.NotContains(t, refusal.Message, "tg-", name)
		}
		require.Equal(t, Caller{App: c.record.App, Key: c.record.KeyID, User: c.record.User, Plan: c.plan}, caller, name)
	}
	w.putKey("", keys.Record{KeyID: "k_empty", App: app})
	w.putKey("last", keys.Record{KeyID: "k_last", App: app})
	w.awaitKey("last", func(keys.Record) bool { return true })
	for _, secret := range []string{"", "nobody", keys.Hash("plain")} {
		_, refusal := w.Identify(secret)
		require.Equal(t, ledger.ReasonUnknownKey, refusal.Reason)
	}
}
