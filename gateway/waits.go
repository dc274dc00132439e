package gateway

import "time"

// waits are how long a gateway waits for what it can go on without. Tests, whose process may stand still for longer than the usual
// ones, change them before Run.
type waits struct {
	fill   time.Duration // a policy for its new budgets to be filled: a push is in force within a second
	pushed time.Duration // the first request for what was pushed before the start
	owners time.Duration // one request for the bucket that says whose stored responses are
	cut    time.Duration // a shutdown for the requests that it has cut, and for the flush after them, at least
}

var usualWaits = waits{fill: 500 * time.Millisecond, pushed: 2 * time.Second, owners: 500 * time.Millisecond, cut: 5 * time.Second}
