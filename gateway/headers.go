package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"tollgate/gateway/admission"
	"tollgate/ledger"
)

// writeLimits tells the caller where it stands: in its dialect the tightest limit on requests and on tokens, and in the IETF
// fields each. Limits that callers of other apps share are nobody's business and are left out, as are those that refuse nobody.
func writeLimits(header http.Header, d *dialect, states []admission.LimitState, need ledger.Amounts, now time.Time) {
	units := [...]ledger.Unit{ledger.UnitRequests, ledger.UnitTokens}
	var tightest [len(units)]*admission.LimitState
	var policies, limits strings.Builder
	for i := range states {
		s := &states[i]
		limit := s.Applied.Limit
		if limit.Tier.Shared() || limit.Shadow {
			continue
		}
		for slot, unit := range units {
			if limit.Unit() == unit && limit.Concurrency == 0 && (tightest[slot] == nil || tighter(s, tightest[slot], need)) {
				tightest[slot] = s
			}
		}
		appendField(&policies, &limits, s, need, now)
	}
	for slot, s := range tightest {
		if s != nil {
			d.limit(header, units[slot], s.Applied.Value, s.Remaining(need), s.Reset, now)
		}
	}
	if policies.Len() > 0 {
		header["Ratelimit-Policy"] = []string{policies.String()}
		header["Ratelimit"] = []string{limits.String()}
	}
}

// writeQueued tells how the request waited for a limit.
func writeQueued(header http.Header, q *admission.Queued) {
	if q == nil {
		return
	}
	header.Set("X-Tollgate-Queue-Limit", q.Limit)
	header.Set("X-Tollgate-Queue-Position", strconv.Itoa(q.Position))
	header.Set("X-Tollgate-Queue-Expected-Ms", strconv.FormatInt(q.Expected.Milliseconds(), 10))
	header.Set("X-Tollgate-Queue-Waited-Ms", strconv.FormatInt(q.Waited.Milliseconds(), 10))
}

// tighter compares the shares that remain, without dividing.
func tighter(a, b *admission.LimitState, need ledger.Amounts) bool {
	return float64(a.Remaining(need))*float64(b.Applied.Value) < float64(b.Remaining(need))*float64(a.Applied.Value)
}

// appendField adds one limit to RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10). Units that the
// draft does not register carry our prefix; money is in whole nano-dollars. A limit that refused tells when it would have let
// the request pass, so that Retry-After is never before it.
func appendField(policies, limits *strings.Builder, s *admission.LimitState, need ledger.Amounts, now time.Time) {
	if policies.Len() > 0 {
		policies.WriteString(", ")
		limits.WriteString(", ")
	}
	limit := s.Applied.Limit
	name := `"` + limit.Name + `"`
	policies.WriteString(name + ";q=" + fieldInteger(s.Applied.Value))
	switch {
	case limit.Concurrency > 0:
		policies.WriteString(`;qu="concurrent-requests"`)
	case limit.Unit() == ledger.UnitTokens:
		policies.WriteString(`;qu="tollgate-tokens"`)
	case limit.Unit() == ledger.UnitUSD:
		policies.WriteString(`;qu="tollgate-nanousd"`)
	}
	if limit.Rate != nil {
		policies.WriteString(";w=" + strconv.FormatInt(seconds(limit.Rate.Window), 10))
	}
	limits.WriteString(name + ";r=" + fieldInteger(s.Remaining(need)))
	switch {
	case !s.Fits && s.Wait > 0:
		limits.WriteString(";t=" + strconv.FormatInt(seconds(s.Wait), 10))
	case !s.Reset.IsZero():
		limits.WriteString(";t=" + strconv.FormatInt(seconds(s.Reset.Sub(now)), 10))
	}
}

// fieldInteger is a figure for a structured field, whose integers have at most fifteen digits (RFC 9651, section 3.3.1): readers
// throw away a field with a longer one, so of more than that it says that there is at least so much.
func fieldInteger(n int64) string {
	const most = 999_999_999_999_999
	return strconv.FormatInt(min(n, most), 10)
}
