package provider

import (
	"slices"
	"strings"

	"tollgate/ledger"
	"tollgate/ledger/policy"
)

// digest is what a request without its body must still say.
type digest struct {
	calls ledger.Calls
	tier  ledger.ServiceTier
}

// Digest is the request without its body, which may then be overwritten. Estimate and UpstreamBody need a request with a body.
func (r *Request) Digest() *Request {
	d := *r
	d.digest = &digest{r.Calls(), r.Tier()}
	d.Model, d.User, d.Previous, d.named = strings.Clone(r.Model), strings.Clone(r.User), strings.Clone(r.Previous), strings.Clone(r.named)
	d.Also = slices.Clone(r.Also)
	d.body, d.found, d.form = nil, nil, nil
	return &d
}

// Unchanged reports whether the provider is sent the caller's bytes when a model serves the request.
func (r *Request) Unchanged(model string, api policy.API) bool {
	if r.Endpoint.ModelInPath() {
		return model == r.Model
	}
	return model == r.named && !r.asksUsage(api)
}

// asksUsage reports whether a stream must be asked for its usage.
func (r *Request) asksUsage(api policy.API) bool {
	return r.Stream && !r.UsageAsked && api != policy.APIMistral
}
