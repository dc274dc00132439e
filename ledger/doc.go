// Package ledger holds the vocabulary that gateway, settler and finance share: amounts, usage classes, tiers, windows,
// counters and reason codes.
//
// It is pure: no I/O, no clock, no goroutine. An instant is always handed in, and always in UTC.
//
// # States of a reservation
//
//	            ┌── Used ─────> settled
//	pending ────┼── Released ─> released
//	            └── Expired ──> expired ─┬─ Used (late) ─────> settled
//	                                     └─ Released (late) ─> released
//
// A reservation ends exactly once, except that an expiry is a guess: a Used or Released event that arrives later replaces
// what the expiry charged. A request that was reported both as unspent and as used counts as used.
//
// # Invariants
//
//   - Amounts are integers. Money is nano-US-dollars; a price is nano-dollars per million units.
//   - The classes of a Usage never overlap, none is negative, and they sum to the provider's total.
//   - A Window is half-open, [Start, End); a Window without End never resets.
//
// # Not guaranteed here
//
// Nothing in this package knows whether an amount fits a limit: that is decided in one place, the reserve script in
// package lua.
package ledger
