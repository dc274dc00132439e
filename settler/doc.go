// Package settler brings events from the stream into Postgres and back to Redis.
//
// A worker takes a batch of messages, posts it in one transaction, writes the absolute values of what it touched back to
// Redis, and acknowledges. Everything may happen twice: an event by its id, a write-back by the budgets' versions and the
// reservations' ids. Any number of settlers may run at once.
//
// # Write-back
//
// The workers of a settler tell Redis in the order in which they committed. Two settlers may do so in another order. The newer
// version of a budget then comes first, and the older one changes nothing: until the older batch's reservations end as well, what
// they used is counted as used and as held, so Redis may refuse what would fit, never admit what does not. A reservation may end
// before the batch that opened it is told: its tombstone, of a minute, keeps it from being held again. A batch that is later still
// holds it again, until the sweep ends it after its deadline.
//
// # When a part is away
//
//   - Postgres: the batch is given back, and the worker looks for Postgres at growing intervals. The stream holds.
//   - Redis: settlement goes on. The apps whose write-back failed are remembered and refreshed, absolutely, once Redis answers;
//     a settler that starts refreshes all apps, so what another one remembered when it died is not lost. A Redis that came back
//     empty has no marks and is rebuilt, see package rebuild.
//   - The stream: reconnect; a consumer or stream that is gone is made again.
//   - A message that can never be settled is parked with its reason and acknowledged; the rest of its batch is settled. One that
//     could not be read is tried again by other settlers: those of the version before cannot read all that newer gateways write.
//
// # New limits
//
// Before a gateway judges by a budget that is new, it asks for the budget to be filled. The answer comes when Postgres counts
// everything of the running window, and Redis was told; settlements wait meanwhile, admissions do not.
package settler
