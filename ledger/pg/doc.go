// Package pg is the ledger in Postgres: every SQL statement of Tollgate that touches events, transfers, reservations,
// budgets, producers, apps and keys.
//
// # What a batch does
//
// Post writes one batch in one transaction (read committed):
//
//  1. events: insert what is new. A known id with the same bytes is a duplicate, with other bytes a conflict, which is parked.
//  2. reservations: insert those that are new in the state that the batch's events fold to; lock and change the others.
//  3. transfers: one debit and one credit each, never changed.
//  4. budgets: one upsert per counter with the batch's summed difference; version + 1. They are the hottest rows and come
//     last, so that they are locked for the shortest time. Sessions of one store take turns from here until they are closed, so
//     that Redis learns of budgets in the order of their versions.
//
// Any number of settlers never deadlock: everything is locked in the order of its key; who inserts reservations holds only rows that
// nobody sees yet, and who locks them waits only for committed ones; who has the turn waits for no row of the steps before it.
//
// # States
//
// The events of a reservation decide its state by rank, adjusted > used > released > expired > reserved and extended, of several
// adjustments the one with the highest number, whatever order they arrive in:
//
//	reserved            pending    charges nothing
//	extended            pending    charges nothing; holds what its latest extension says
//	expired             expired    charges what was held, or nothing (the event says which); usage state unconfirmed
//	released            released   charges nothing; takes an expiry's charge back
//	used                settled    charges what was used; takes an expiry's charge back
//	adjusted            settled    charges what the adjustment says; its transfer is the difference from what was charged before
//	used and released   settled    and flagged used_after_release
//
// # Families
//
// An event names the budgets that its request was judged by, so a budget that a new policy brings would know nothing of what was
// used before it, nor of requests in flight at the switch. Therefore budget_families holds which families of counters are
// judged by, and since when. A reservation counts in the budgets that its event names, and besides in its window of every
// family that matches it and was known at the time of the reservation, unless it names a budget of that family and calendar.
// Settlements add those; Fill makes a family known, and adds what was settled before to the running window. It excludes
// settlements (see Rebuilding), so each request is added by exactly one of the two. Families with IP addresses cannot be
// filled, because the ledger has none.
//
// Only used amounts are filled. What a request in flight holds is held on the budgets that its event names, so until it is
// settled a new limit does not see it.
//
// # Invariants
//
// For every budget: its used amounts are the sum of what reservations charge to it, named or not. For every app: the net of its spend
// account is the sum of what its reservations charge. A charged reservation has exactly one final transfer that nothing took
// back, also at zero cost, and one for each adjustment, which sum to its charge; a released one has none. Verify proves them.
//
// # Not guaranteed
//
// Until a batch is written back, Redis lags behind budgets. A conflict keeps the content that came first.
package pg
