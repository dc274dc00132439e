package provider

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Key is one of a provider's keys with what this gateway has seen of it. It is safe for concurrent use.
type Key struct {
	Name   string
	secret string
	weight int
	*health
}

// health is how a key fares, by scope: providers limit each model by itself. It outlives policies.
type health struct {
	mu     sync.Mutex // guards what follows
	flying int        // requests that wait for their answer or read it
	chosen time.Time  // when it was last
	rests  map[string]*rest
}

// rest is a time for which a key is not asked, and what led to it.
type rest struct {
	cause    Cause
	began    time.Time
	until    time.Time
	times    int       // rests in a row, without a success between them
	refusals int       // in a row
	failures int       // in a row, of the cause CauseDown
	since    time.Time // the first of them
	probing  bool      // one request is finding out whether it is over
}

// scopes are the rests that concern a request: of all models, and of its own. Requests that name no model, such as those for what is
// stored, have one of their own: what they meet says nothing of models.
func scopes(model string) [2]string {
	if model == "" {
		model = "\x00" // no model's name
	}
	return [...]string{"", model}
}

// Cause is why a key rests.
type Cause string

// The causes.
const (
	CauseLimited Cause = "limited" // the provider answered 429, or told to wait
	CauseRefused Cause = "refused" // the provider does not accept the key: 401, 403
	CauseDown    Cause = "down"    // failures in a row
)

// Causes lists them.
func Causes() []Cause { return []Cause{CauseLimited, CauseRefused, CauseDown} }

// downAfter is how many failures in a row make a key rest, when they have gone on for as long as Timeouts.Down: neither a bad
// request, nor one connection that breaks with all the requests on it, must shut a provider for everybody.
const downAfter = 5

// refusedAfter is how many 403 in a row make a key rest: one may be about what its request asked for, such as somebody else's file.
// Where nobody else uses the model meanwhile, that many of one caller do.
const refusedAfter = 3

// restsOf bounds the rests of each cause. Each is double the one before.
var restsOf = map[Cause]struct{ least, most time.Duration }{
	CauseLimited: {time.Second, time.Minute},
	CauseRefused: {10 * time.Second, 5 * time.Minute},
	CauseDown:    {time.Second, 30 * time.Second},
}

// longestTold bounds what a provider's Retry-After is believed: then the key is tried once more.
const longestTold = 10 * time.Minute

// probeWait is told to those who come while a probe is under way.
const probeWait = time.Second

// resting is until when the key is not asked for the model, and why; the zero time when it is. The sole key rests only while its
// provider is down.
func (h *health) resting(model string, now time.Time, sole bool) (until time.Time, cause Cause) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, scope := range scopes(model) {
		r := h.rests[scope]
		if r == nil || sole && r.cause != CauseDown {
			continue
		}
		end := r.until
		if r.probing && !now.Before(end) {
			end = now.Add(probeWait)
		}
		if now.Before(end) && end.After(until) {
			until, cause = end, r.cause
		}
	}
	return until, cause
}

// begin counts a request, and makes it the probe where one is due.
func (h *health) begin(model string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flying++
	for _, scope := range scopes(model) {
		if r := h.rests[scope]; r != nil && r.cause == CauseDown && !r.until.IsZero() && !now.Before(r.until) {
			r.probing = true
		}
	}
}

func (h *health) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flying--
}

// probedLocked ends the probe, however it fared: a rest that nobody is finding out about must not wait for that.
func (h *health) probedLocked(model string) {
	for _, scope := range scopes(model) {
		if r := h.rests[scope]; r != nil {
			r.probing = false
		}
	}
}

// answered takes what an answer's status says of the key. Success ends every rest of the model that began before the request was
// sent, and one of a provider that is down in any case; so does an error that may be the request's own fault, such as 400 or 500:
// somebody was there and took the key.
func (h *health) answered(model string, status int, header http.Header, sent, now time.Time, down time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probedLocked(model)
	told, _ := RetryAfter(header, now)
	own := scopes(model)[1]
	switch {
	case status == http.StatusUnauthorized:
		h.restLocked("", CauseRefused, 0, now)
	case status == http.StatusForbidden:
		r := h.ofLocked(own)
		if r.refusals++; r.refusals >= refusedAfter {
			h.restLocked(own, CauseRefused, 0, now)
		}
	case status == http.StatusTooManyRequests, unavailable(status) && told > 0:
		h.restLocked(own, CauseLimited, told, now)
	case unavailable(status):
		h.failedLocked(own, now, down)
	default:
		for _, scope := range scopes(model) {
			if r := h.rests[scope]; r != nil && (r.cause == CauseDown || !r.began.After(sent)) {
				delete(h.rests, scope)
			}
		}
	}
}

// unavailable reports whether a status says that nobody is there to serve.
func unavailable(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout || status == StatusOverloaded
}

// StatusOverloaded is Anthropic's for having no room.
const StatusOverloaded = 529

// unanswered takes that there was no answer, whatever the model. left says that it was not waited for.
func (h *health) unanswered(model string, left bool, now time.Time, down time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probedLocked(model)
	if !left {
		h.failedLocked("", now, down)
	}
}

func (h *health) ofLocked(scope string) *rest {
	r := h.rests[scope]
	if r == nil {
		if h.rests == nil {
			h.rests = map[string]*rest{}
		}
		r = &rest{}
		h.rests[scope] = r
	}
	return r
}

// restLocked rests for as long as was told, else longer each time. What was under way when the rest began makes it no longer.
func (h *health) restLocked(scope string, cause Cause, told time.Duration, now time.Time) {
	r := h.ofLocked(scope)
	if r.cause == cause && now.Before(r.until) && told <= r.until.Sub(now) {
		return
	}
	if r.cause != cause {
		r.times = 0
	}
	bounds := restsOf[cause]
	d := min(bounds.least<<min(r.times, 20), bounds.most)
	d = d/2 + rand.N(d/2+1)
	if told > 0 {
		d = min(told, longestTold) + rand.N(min(told, longestTold)/10+1)
	}
	r.cause, r.began, r.until, r.times, r.probing = cause, now, now.Add(d), r.times+1, false
}

func (h *health) failedLocked(scope string, now time.Time, down time.Duration) {
	r := h.ofLocked(scope)
	if r.failures == 0 {
		r.since = now
	}
	if r.failures++; r.failures >= downAfter && now.Sub(r.since) >= down {
		h.restLocked(scope, CauseDown, 0, now)
	}
}

// Rests is how many of the key's models rest for each cause; a rest of all models counts as one.
func (k *Key) Rests(now time.Time) map[Cause]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := map[Cause]int{}
	for _, r := range k.rests {
		if now.Before(r.until) || r.probing {
			n[r.cause]++
		}
	}
	return n
}

// InFlight is how many requests wait for their answer or read it.
func (k *Key) InFlight() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.flying
}

// Pick says which key is wanted.
type Pick struct {
	Model   string   // the provider's name for it
	Without []string // keys that have failed already
	Only    string   // the one that knows what the request speaks of, "" for any
}

// Resting is why no key can be asked.
type Resting struct {
	Cause Cause         // CauseLimited when one of the keys rests because of that
	Wait  time.Duration // until the first of them can be asked
}

func (r *Resting) Error() string {
	return fmt.Sprintf("no key can be asked for %s: %s", r.Wait, r.Cause)
}

// Choose finds the key to ask: of those that do not rest the one with the fewest requests in flight for its weight, among
// equals the one that was chosen longest ago. The only key there is, or that will do, is also asked while it was told to wait or
// was refused: its provider's own answer says more than the gateway could. Every error is a *Resting.
func (u *Upstream) Choose(p Pick, now time.Time) (*Key, error) {
	able := u.able(p)
	sole := len(able) == 1 && len(p.Without) == 0
	why := &Resting{Cause: CauseDown}
	var best *Key
	var bestFlying int
	var bestChosen time.Time
	for _, k := range able {
		if until, cause := k.resting(p.Model, now, sole); !until.IsZero() {
			if wait := until.Sub(now); why.Wait == 0 || wait < why.Wait {
				why.Wait = wait
			}
			if cause == CauseLimited {
				why.Cause = cause
			}
			continue
		}
		k.mu.Lock()
		flying, chosen := k.flying, k.chosen
		k.mu.Unlock()
		if a, b := (flying+1)*weightOf(best), (bestFlying+1)*k.weight; best == nil || a < b || a == b && chosen.Before(bestChosen) {
			best, bestFlying, bestChosen = k, flying, chosen
		}
	}
	if best == nil {
		return nil, why
	}
	best.mu.Lock()
	best.chosen = now
	best.mu.Unlock()
	return best, nil
}

func weightOf(k *Key) int {
	if k == nil {
		return 1
	}
	return k.weight
}

// able are the keys that the pick allows.
func (u *Upstream) able(p Pick) []*Key {
	if p.Only == "" && len(p.Without) == 0 {
		return u.keys
	}
	var able []*Key
	for _, k := range u.keys {
		if (p.Only == "" || k.Name == p.Only) && !slices.Contains(p.Without, k.Name) {
			able = append(able, k)
		}
	}
	if p.Only != "" && len(able) == 0 && len(p.Without) == 0 {
		return u.keys // the policy does not have it any more
	}
	return able
}

// Keys lists the provider's keys.
func (u *Upstream) Keys() []*Key { return slices.Clone(u.keys) }

// Adopt takes over what is known of the keys of the same provider before a change of policy.
func (u *Upstream) Adopt(before *Upstream) {
	for _, k := range u.keys {
		for _, known := range before.keys {
			if k.Name == known.Name && k.secret == known.secret && u.BaseURL == before.BaseURL {
				k.health = known.health
			}
		}
	}
}

// Hide takes the provider's keys out of text.
func (u *Upstream) Hide(text []byte) []byte {
	for _, k := range u.keys {
		if k.secret != "" {
			text = bytes.ReplaceAll(text, []byte(k.secret), []byte("[hidden]"))
		}
	}
	return text
}
