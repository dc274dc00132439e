package gateway

import (
	"encoding/json"

	"tollgate/gateway/provider"
	"tollgate/ledger"
	"tollgate/ledger/event"
)

// ceiling is how large a stream may grow by what is held for it.
func (x *exchange) ceiling() *provider.Ceiling {
	estimate, held := x.rawEstimate(x.verdict.Reservation.Model), x.heldOutput()
	return &provider.Ceiling{Input: x.input, Output: held, Bounded: estimate.Bounded && held >= estimate.Output, Extend: x.extend}
}

// extend holds more for a stream that outgrows what is held. Where a hard budget has no more room, the provider is told to stop
// before the caller is told why.
func (x *exchange) extend(need ledger.Tokens) (ledger.Tokens, *provider.Stop) {
	extension := x.g.admission.Extend(x.r.Context(), x.verdict, x.input, need, x.recordExtended)
	refusal := extension.Refusal
	if refusal == nil {
		return extension.Output, nil
	}
	x.cancelUpstream()
	x.flagEnd(flagHardLimit)
	p := &problem{reason: refusal.Reason, message: refusal.Message, refusal: refusal}
	k := kindOf(p.reason)
	told, err := json.Marshal(struct {
		*tollgateErr
		Message string `json:"message"`
	}{describe(p, k, adviceOn(p, k)), p.message})
	if err != nil {
		panic(err) // the types are ours and always encode
	}
	return 0, &provider.Stop{Reason: refusal.Reason, Told: told, Input: x.input}
}

// recordExtended tells the ledger what is held, for the case that this gateway does not come to tell what was used. Nobody waits
// for it to be durable.
func (x *exchange) recordExtended(res event.Reservation) error {
	e := x.event(event.KindExtended, res, nil, nil)
	e.ID = event.ExtensionID(res.ID, res.Extensions)
	return x.g.outbox.Append(e)
}
