package gateway

import (
	"log/slog"

	"tollgate/gateway/admission"
	"tollgate/ledger"
)

// appendTightest adds to a log line the limit that an admitted request left the smallest share of, as it was decided on: what
// was used and held before, and what remains now. A shadow limit is none that the request had to pass.
func appendTightest(attributes []slog.Attr, states []admission.LimitState, held ledger.Amounts) []slog.Attr {
	var tightest *admission.LimitState
	for i := range states {
		s := &states[i]
		if !s.Applied.Limit.Shadow && (tightest == nil || tighter(s, tightest, held)) {
			tightest = s
		}
	}
	if tightest == nil {
		return attributes
	}
	limit := tightest.Applied.Limit
	return append(attributes, slog.String("limit_name", limit.Name), slog.String("subject", tightest.Applied.Subject),
		slog.String("unit", string(limit.Unit())), slog.Int64("limit", tightest.Applied.Value), slog.Int64("current", tightest.Used),
		slog.Int64("held", tightest.Held), slog.Int64("needed", held.In(limit.Unit())), slog.Int64("remaining", tightest.Remaining(held)))
}
