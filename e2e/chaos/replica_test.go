package chaos

import "time"

// lag has a replica of Redis ready that lacks what is written from now on.
func (r *run) lag() {
	r.replica = r.Replicate()
	r.replica.Lag()
}

// promote makes the replica the Redis of all; what was written since its cut may be admitted again.
func (r *run) promote() {
	r.replica.Promote()
	r.losses = append(r.losses, span{r.replica.Cut, time.Now()})
}

// span is a stretch of time.
type span struct{ from, until time.Time }
