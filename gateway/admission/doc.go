// Package admission decides whether a request may be sent: who asks (identify), what it may use (estimate), and whether
// every limit above it has room (reserve). It holds what the request may use, or names the rule that refused it.
//
//	Identify   secret -> key, app, plan        in memory, from the directory of keys
//	Admit      limits, price, one Redis call   -> Verdict: a reservation, or a refusal with its figures
//
// A refusal is a decision, not an error. An error means that no decision could be made.
//
// # Outcomes
//
// A limit in shadow, or whose action is flag, is judged like any other and refuses nobody: what it says goes with the verdict.
// Where other limits have no room, the strictest of their actions holds: one that rejects refuses the request; else fallback
// judges it again for the cheaper model that its app has opted in to; else throttle has it wait in the line of the first limit
// without room. There is one line a limit and subject in each gateway, first come, first served; its head alone asks Redis.
//
// Slots of concurrency limits are leases. This gateway renews those of its requests in flight and gives them back when the
// answer is complete; those of a gateway that died lapse.
//
// # Extensions
//
// An answer that outgrows what was held for it has its reservation extended, by the limits of the decision that admitted it, on
// every budget above it. Hard budgets are judged, and end the stream where they have no more room; the others are told, and let it
// finish. Rates are left to the settlement. An extension is in a section like a decision, so a rebuild finds it in the ledger.
//
// # Windows and clocks
//
// Calendar windows are computed here, from a clock calibrated against Redis's by every answer; the script refuses a window
// that is over or has not begun by its own clock, and the windows are computed anew. So gateways whose clocks differ decide
// identically.
//
// # Without Redis
//
// A decision is one call, bounded by the limiter's timeout, that is never repeated. When it fails, or the breaker is open
// because calls failed before, the gateway judges by itself: closed plans and budgets that are known to be used up are refused,
// and the rest shares an allowance a gateway and app, small on purpose. What was admitted so is on record like everything else;
// Redis is told of it before it is asked again. The most that can be overspent is that allowance, times the gateways, times the
// outage. A stream under a hard budget that outgrows what was held draws on it, too, and ends when it is used up.
//
// Counters that Redis has lost are rebuilt from the ledger. Meanwhile callers are told to come back in a second; when it takes
// longer than three seconds, the gateway judges by itself. A request of an app that this gateway has never judged waits for
// the rebuild.
//
// # Barriers
//
// From before Redis is asked until what it admitted is on record, a request is in a section. A settler that is about to rebuild
// asks every live gateway to adopt a generation; the gateway answers when the sections that had begun have ended and the stream
// has what they recorded. So the rebuild finds in the ledger whatever was admitted by the old marks, and what is admitted later
// is judged by the new.
//
// A gateway that is paused or cut off is waited for until its presence lapses, event.PresenceTTL after it was last renewed. It still
// names the old generation, so it admits nothing new. What it had decided before it fell silent is, when its presence lapses, older
// than event.PresenceTTL less event.PresenceRenewal, 8 s, and a decision older than decisionAge, 5 s, is asked about anew before the
// request is sent: Redis holds it still, or admits it again, or it is refused and its release recorded.
//
// # Not guaranteed
//
// A process that is paused between that question and the sending sends on a decision that may not stand any more; so does one on
// a machine that was suspended, whose monotonic clock stood still.
//
// Lines are a gateway's own: two gateways share what a limit allows as their heads happen to ask. Slots are not limited while
// Redis is away.
package admission
