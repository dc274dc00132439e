package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// chooseKey finds the key that the provider is to be asked with, before any limit is: the limits of that key are then judged with
// all others, in the same call. It refuses while every key rests; an app that has opted in to another model for this one is
// served by that.
func (c *candidate) chooseKey(model *policy.Model) (name string, refusal *Refusal) {
	if c.Upstream == nil {
		return "", nil // nobody is asked, limits are only judged
	}
	without := c.ask.Without
	if len(c.full) > 0 {
		without = slices.Concat(without, c.full)
	}
	key, err := c.Upstream.Choose(provider.Pick{Model: model.Upstream, Without: without, Only: c.ask.OnlyKey}, c.Upstream.Now())
	var resting *provider.Resting
	if errors.As(err, &resting) {
		return "", c.restingRefusal(resting)
	}
	c.Key = key
	return key.Name, nil
}

func (c *candidate) restingRefusal(resting *provider.Resting) *Refusal {
	r := refusalOfResting(c.Upstream.Name, resting)
	if app := c.rules.policy.Apps[c.ask.Caller.App]; app != nil && app.Fallback[c.ask.Model] != "" && c.model == c.ask.Model {
		r.FallbackModel = app.Fallback[c.ask.Model]
		r.onExceed = policy.OnExceed{Action: policy.ActionFallback}
	}
	return r
}

func refusalOfResting(name string, resting *provider.Resting) *Refusal {
	wait := max(resting.Wait, time.Second)
	if resting.Cause == provider.CauseLimited {
		return &Refusal{
			Reason: ledger.ReasonUpstreamLimited, RetryAfter: wait,
			Message: fmt.Sprintf("the provider %s has told every key to wait; the first may be used again in %s", name, wait.Round(time.Millisecond)),
		}
	}
	return &Refusal{
		Reason: ledger.ReasonUpstreamDown, RetryAfter: wait,
		Message: fmt.Sprintf("the provider %s does not serve at the moment; it is tried again in %s", name, wait.Round(time.Millisecond)),
	}
}

// judgeKeys judges a request with the key that was chosen, and, where nothing but that key's own limits has no room, with each of
// the others: one call for each, of which those that refuse write nothing. When all are full, the refusal that ends first stands.
func (a *Admission) judgeKeys(ctx context.Context, c *candidate) (*Verdict, error) {
	v, err := a.judge(ctx, c)
	for best := v; ; {
		if err != nil || v.Refusal == nil || v.MaybeHeld || !onlyKeyFull(v.Limits) {
			return v, err
		}
		if v.Refusal.RetryAfter < best.Refusal.RetryAfter {
			best = v
		}
		next := a.prepare(c.ask, c.model, append(slices.Clone(c.full), v.Key.Name)...)
		if next.Refusal != nil {
			return best, nil
		}
		c = next
		v, err = a.judge(ctx, c)
	}
}

// onlyKeyFull reports whether limits of the provider's key refused, and nothing else did.
func onlyKeyFull(states []LimitState) bool {
	found := false
	for i := range states {
		s := &states[i]
		if s.Fits || s.Soft() {
			continue
		}
		if !s.Applied.Limit.OfProviderKey() {
			return false
		}
		found = true
	}
	return found
}
