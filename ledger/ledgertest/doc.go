// Package ledgertest is the reference that every implementation of the limits is held against: an in-memory model in plain
// exact arithmetic, generators of random calls, and a conformance suite.
//
// The model is written from the rules and not from the scripts: budgets in big integers, buckets as rationals, logs as lists
// of entries. It has no clock: each call is told the instant it happens at, so that the model and a real store can judge the
// same call at the same microsecond. It is not safe for concurrent use.
//
// # Rules
//
//   - A budget passes if used + held + need <= limit. A bucket passes if its debt, drained up to now, plus the need is at most
//     the burst. A log passes if the entries younger than the window, plus the need, sum to at most the limit. A fixed window
//     passes if what was admitted since its start, plus the need, is at most the limit; it starts at an offset that is hashed
//     from tier and subject. A sliding counter passes if the sub-windows, a twentieth each, that overlap the last window, plus
//     the need, sum to at most the limit. Requests in flight pass if one more lease is at most the limit.
//   - A clock that steps back changes nothing: a fixed window that has begun goes on, and so does a sub-window.
//   - A soft limit is judged and refuses nobody. A soft budget holds; a soft rate that does not fit is not charged.
//   - A reserve passes everywhere or changes nothing. It is idempotent by id: held, it says so again; ended, never again.
//   - used moves only by a settlement whose version is newer; held moves only with a reservation.
//   - A settlement that meets a missing mark is dropped whole, and leaves the slots of its app and of all apps in need of a
//     rebuild.
//   - A rate is corrected by the difference of spent and held when a reservation ends that was judged. One that was registered
//     unjudged was never charged, so it corrects nothing. The window that it was charged to is found by its time; one that has
//     gone is not corrected, nor one from before a loss.
//   - A lease ends with its reservation, by a release, or by lapsing; a renewal makes it whole again, also where it was lost,
//     but not after its reservation has ended.
//
// # Not modelled
//
// Times to live: a state that expired must be one that no longer matters, which is what comparing with the model shows. A
// tombstone is the exception, and is kept for ever here.
package ledgertest
