package admission

import (
	"errors"
	"fmt"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// Route is who serves a model.
type Route struct {
	Model    *policy.Model
	Provider *policy.Provider
	Upstream *provider.Upstream
	Key      *provider.Key
}

// Route finds who serves a model to callers of a protocol, by the policy in force, and the key to ask with: that of the name only,
// "" for any. The refusal is set when nobody does.
func (a *Admission) Route(model string, protocol policy.Protocol, only string) (Route, *Refusal) {
	r := a.rules.Load()
	m, refusal := r.route(model, protocol)
	if refusal != nil {
		return Route{}, refusal
	}
	route := Route{Model: m, Provider: r.policy.Providers[m.Provider], Upstream: r.upstreams[m.Provider]}
	if route.Upstream == nil {
		return route, nil // nobody is asked
	}
	key, err := route.Upstream.Choose(provider.Pick{Model: m.Upstream, Only: only}, route.Upstream.Now())
	var resting *provider.Resting
	if errors.As(err, &resting) {
		return Route{}, refusalOfResting(m.Provider, resting)
	}
	route.Key = key
	return route, nil
}

// Servable lists the providers' models that may serve a request for a model by the policy in force: its own, and the one that the
// app falls back to.
func (a *Admission) Servable(model, app string) []string {
	p := a.rules.Load().policy
	var upstream []string
	names := []string{model}
	if own := p.Apps[app]; own != nil {
		names = append(names, own.Fallback[model])
	}
	for _, name := range names {
		if m := p.Models[name]; m != nil {
			upstream = append(upstream, m.Upstream)
		}
	}
	return upstream
}

// Provider finds a provider of the policy in force, false when it has none of that name.
func (a *Admission) Provider(name string) (*policy.Provider, *provider.Upstream, bool) {
	r := a.rules.Load()
	p, ok := r.policy.Providers[name]
	return p, r.upstreams[name], ok
}

// route finds a model whose provider speaks the caller's protocol: nothing is translated.
func (r *rules) route(name string, protocol policy.Protocol) (*policy.Model, *Refusal) {
	m := r.policy.Models[name]
	if m == nil {
		return nil, &Refusal{
			Reason:  ledger.ReasonUnknownModel,
			Message: fmt.Sprintf("the model %q does not exist here, or you do not have access to it", name),
		}
	}
	if spoken := r.policy.Providers[m.Provider].Protocol; spoken != protocol {
		return nil, &Refusal{
			Reason: ledger.ReasonBadRequest,
			Message: fmt.Sprintf("the model %s is served by a provider that speaks the protocol %s, this route speaks %s: use %s",
				name, spoken, protocol, provider.RoutesOf(spoken)),
		}
	}
	return m, nil
}
