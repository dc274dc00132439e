package lua

import (
	"strconv"
	"strings"

	"tollgate/ledger"
)

// version is the second part of every key: state left by another layout is never read.
const version = "tg1"

// SharedSlot is the slot of the counters that all apps share.
const SharedSlot = "shared"

// Every key begins with its slot as hash tag: "{app:checkout}:tg1:…" or "{shared}:tg1:…". App names cannot contain braces.

func tag(app string) string {
	if app == SharedSlot || app == "" {
		return "{" + SharedSlot + "}:" + version + ":"
	}
	return "{app:" + app + "}:" + version + ":"
}

// slotOf is the slot of a counter or rate of the tier, met by a request of the app.
func slotOf(app string, tier ledger.Tier) string {
	if tier.Shared() {
		return SharedSlot
	}
	return app
}

func markKey(slot string) string { return tag(slot) + "mark" }

// rebuildingKey names who rebuilds the slot, while it is rebuilt.
func rebuildingKey(slot string) string { return tag(slot) + "rebuilding" }

func joinedKey() string { return tag(SharedSlot) + "apps" }

func deadlinesKey(app string) string { return tag(app) + "deadlines" }

func reservationKey(app, id string) string { return tag(app) + "reservation:" + id }

func counterKey(app string, c *ledger.Counter) string {
	var b strings.Builder
	slot := tag(slotOf(app, c.Tier))
	b.Grow(len(slot) + len(c.Subject) + 32)
	b.WriteString(slot)
	b.WriteString("budget:")
	b.WriteString(string(c.Period))
	b.WriteByte(':')
	if !c.Start.IsZero() {
		var digits [20]byte
		b.Write(strconv.AppendInt(digits[:0], c.Start.Unix(), 10))
	}
	b.WriteByte(':')
	b.WriteString(c.Subject)
	return b.String()
}

// How the scripts call the kinds of rate. Whatever may differ in the form of its state is a kind of its own.
const (
	kindBucket      = "bucket"
	kindLog         = "log" // of requests, counted
	kindWeightedLog = "weighted_log"
	kindWindow      = "window"
	kindSliding     = "sliding"
	kindInflight    = "inflight"
)

// kindOf is "" for an algorithm that the scripts do not know.
func kindOf(r *ledger.Rate) string {
	switch r.Algorithm {
	case ledger.AlgorithmTokenBucket:
		return kindBucket
	case ledger.AlgorithmSlidingLog:
		if r.Unit == ledger.UnitRequests {
			return kindLog
		}
		return kindWeightedLog
	case ledger.AlgorithmFixedWindow:
		return kindWindow
	case ledger.AlgorithmSlidingCounter:
		return kindSliding
	case ledger.AlgorithmConcurrency:
		return kindInflight
	default:
		return ""
	}
}

// rateKeys are the keys that hold the state of a rate: a string, a sorted set, or both; "" where it has none. The kind is in the
// name, so a limit that changes its algorithm never meets state of another type.
func rateKeys(app string, r *ledger.Rate) (text, set string) {
	name := string(r.Unit) + ":" + r.Limit + ":" + r.Subject
	prefix := tag(slotOf(app, r.Tier))
	switch kind := kindOf(r); kind {
	case kindBucket, kindWindow, kindSliding:
		return prefix + kind + ":" + name, ""
	case kindWeightedLog:
		return prefix + "sum:" + name, prefix + "log:" + name
	default:
		return "", prefix + kind + ":" + name
	}
}
