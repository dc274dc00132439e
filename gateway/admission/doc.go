// Package admission decides whether a request may be sent: who asks (identify), what it may use (estimate), and whether
// every limit above it has room (reserve). It holds what the request may use, or names the rule that refused it.
//
//	Identify   secret -> key, app, plan        in memory, from the directory of keys
//	Reserve    limits, price, one Redis call   -> Verdict: a reservation, or a refusal with its figures
//
// A refusal is a decision, not an error. An error means that no decision could be made. After an UndecidedError something may
// be held all the same: the caller must record a release of its reservation.
//
// # Windows and clocks
//
// Calendar windows are computed here, from a clock calibrated against Redis's by every answer; the script refuses a window
// that is over or has not begun by its own clock, and the windows are computed anew. So gateways whose clocks differ decide
// identically.
//
// # Not guaranteed yet
//
// While Redis cannot be asked, requests are refused.
package admission
