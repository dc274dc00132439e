package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"tollgate/gateway/admission"
	"tollgate/ledger"
)

// writeLimits tells the caller where it stands: x-ratelimit-* for the tightest limit on requests and on tokens, as OpenAI
// does, and the IETF fields for each. Limits that callers of other apps share are nobody's business and are left out.
func writeLimits(header http.Header, states []admission.LimitState, need ledger.Amounts, now time.Time) {
	var tightest [2]*admission.LimitState
	var policies, limits strings.Builder
	for i := range states {
		s := &states[i]
		limit := s.Applied.Limit
		if limit.Tier.Shared() {
			continue
		}
		unit := limit.Unit()
		if unit != ledger.UnitUSD {
			slot := 0
			if unit == ledger.UnitTokens {
				slot = 1
			}
			if t := tightest[slot]; t == nil || tighter(s, t, need) {
				tightest[slot] = s
			}
		}
		appendField(&policies, &limits, s, need, now)
	}
	for slot, name := range [2]string{"Requests", "Tokens"} {
		if s := tightest[slot]; s != nil {
			header["X-Ratelimit-Limit-"+name] = []string{strconv.FormatInt(s.Applied.Value, 10)}
			header["X-Ratelimit-Remaining-"+name] = []string{strconv.FormatInt(s.Remaining(need), 10)}
			if !s.Reset.IsZero() {
				header["X-Ratelimit-Reset-"+name] = []string{durationText(s.Reset.Sub(now))}
			}
		}
	}
	if policies.Len() > 0 {
		header["Ratelimit-Policy"] = []string{policies.String()}
		header["Ratelimit"] = []string{limits.String()}
	}
}

// tighter compares the shares that remain, without dividing.
func tighter(a, b *admission.LimitState, need ledger.Amounts) bool {
	return float64(a.Remaining(need))*float64(b.Applied.Value) < float64(b.Remaining(need))*float64(a.Applied.Value)
}

// appendField adds one limit to RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10). Units that the
// draft does not register carry our prefix; money is in whole nano-dollars.
func appendField(policies, limits *strings.Builder, s *admission.LimitState, need ledger.Amounts, now time.Time) {
	if policies.Len() > 0 {
		policies.WriteString(", ")
		limits.WriteString(", ")
	}
	limit := s.Applied.Limit
	name := `"` + limit.Name + `"`
	policies.WriteString(name + ";q=" + strconv.FormatInt(s.Applied.Value, 10))
	switch limit.Unit() {
	case ledger.UnitTokens:
		policies.WriteString(`;qu="tollgate-tokens"`)
	case ledger.UnitUSD:
		policies.WriteString(`;qu="tollgate-nanousd"`)
	}
	if limit.Rate != nil {
		policies.WriteString(";w=" + strconv.FormatInt(int64(limit.Rate.Window/time.Second), 10))
	}
	limits.WriteString(name + ";r=" + strconv.FormatInt(s.Remaining(need), 10))
	if !s.Reset.IsZero() {
		limits.WriteString(";t=" + strconv.FormatInt(seconds(s.Reset.Sub(now)), 10))
	}
}

// durationText is a duration as OpenAI writes it: 6m0s, 1s, 120ms.
func durationText(d time.Duration) string {
	d = max(d, 0)
	if d >= time.Second {
		return ((d + time.Second - 1) / time.Second * time.Second).String()
	}
	return ((d + time.Millisecond - 1) / time.Millisecond * time.Millisecond).String()
}
