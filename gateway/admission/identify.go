package admission

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"tollgate/ledger"
	"tollgate/ledger/keys"
	"tollgate/ledger/policy"
)

// Caller is who asks: known from the key alone, never from what the caller says.
type Caller struct {
	App  string
	Key  string // key id
	User string // the end user that the key acts for, "" when it acts for many
	Plan string
}

// Secret is the API key of a request: Authorization: Bearer, or the header that Anthropic, Google or Azure has for it.
func Secret(h http.Header) string {
	// The scheme's case does not count (RFC 9110, 11.1).
	if scheme, secret, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(secret)
	}
	return cmp.Or(h.Get("X-Api-Key"), h.Get("X-Goog-Api-Key"), h.Get("Api-Key"))
}

// Identify finds the caller of a secret. The plan is the key's, else what the policy says of the app, else the app's own,
// else the default plan.
func (a *Admission) Identify(secret string) (Caller, *Refusal) {
	record, ok := a.keys.Find(secret)
	if !ok || secret == "" {
		return Caller{}, &Refusal{Reason: ledger.ReasonUnknownKey, Message: "the API key is not known here"}
	}
	caller := Caller{App: record.App, Key: record.KeyID, User: record.User}
	switch {
	case record.Revoked:
		return caller, &Refusal{Reason: ledger.ReasonDisabledKey, Message: "the API key has been revoked"}
	case record.AppDisabled:
		return caller, &Refusal{Reason: ledger.ReasonDisabledKey, Message: "the app of this API key is disabled"}
	case !record.ExpiresAt.IsZero() && !a.clock.Now().Before(record.ExpiresAt):
		return caller, &Refusal{Reason: ledger.ReasonExpiredKey, Message: "the API key expired at " + record.ExpiresAt.Format(time.RFC3339)}
	}
	p := a.rules.Load().policy
	caller.Plan = planOf(record, p)
	if p.Plans[caller.Plan] == nil {
		return caller, &Refusal{
			Reason:  ledger.ReasonUnknownPlan,
			Message: "the plan " + caller.Plan + " of this API key is not in the policy",
		}
	}
	return caller, nil
}

func planOf(record keys.Record, p *policy.Policy) string {
	if record.Plan != "" {
		return record.Plan
	}
	if app := p.Apps[record.App]; app != nil && app.Plan != policy.DefaultPlan {
		return app.Plan
	}
	if record.AppPlan != "" {
		return record.AppPlan
	}
	return policy.DefaultPlan
}
