package gateway

import (
	"time"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/price"
)

// price sets the cost, each model's usage at its own price.
func (x *exchange) price(o *event.Outcome) {
	row, at := x.verdict.Price, x.verdict.Reservation.ReservedAt
	if row == nil {
		return
	}
	o.PriceRow = row.ID
	x.charge(o, x.cost(row, o.Usage, o.ServiceTier, at), event.Component{})
	for _, other := range o.Others {
		by := event.Component{Model: other.Model, PriceRow: row.ID}
		theirs, known := x.g.admission.Prices().Find(x.verdict.Reservation.Provider, other.Model, at)
		if known {
			by.PriceRow = theirs.ID
		} else {
			// What has no price is not nothing: the answering model's stands in.
			x.g.log.Error("another model of the answer has no price", "request_id", x.verdict.Reservation.ID, "model", other.Model)
			theirs = row
		}
		x.charge(o, x.cost(theirs, other.Usage, o.ServiceTier, at), by)
	}
}

// charge adds components to the outcome. by says whose they are.
func (x *exchange) charge(o *event.Outcome, parts []price.Component, by event.Component) {
	for _, c := range parts {
		by.Class, by.Tokens, by.Price, by.Cost = c.Class, c.Tokens, c.Price, c.Cost
		o.Components = append(o.Components, by)
		o.Cost += c.Cost
	}
}

// cost prices a usage. A class that the row does not price makes all of it cost its upper bound, as one component that says so:
// never less than what will be billed for the rest, never silently nothing.
func (x *exchange) cost(row *price.Row, u ledger.Usage, tier ledger.ServiceTier, at time.Time) []price.Component {
	cost, err := row.Cost(u, tier, at)
	if err == nil {
		return cost.Components
	}
	x.g.log.Error("answer has tokens without a price, its upper bound is charged", "request_id", x.verdict.Reservation.ID, "error", err)
	ask := price.Ask{Input: u.InputTotal(), Output: u.OutputTotal(), Calls: u.Calls, Tier: tier}
	bound, err := row.UpperBound(ask, at)
	if err != nil {
		// Even the bound has no price for it all: at least what was held, and what the tokens alone can cost.
		bound = x.verdict.Reservation.HeldInAll().NanoUSD
		if tokens, err := row.UpperBound(price.Ask{Input: ask.Input, Output: ask.Output}, at); err == nil {
			bound = max(bound, tokens)
		}
	}
	return []price.Component{{Class: ledger.ClassUpperBound, Tokens: u.Total(), Cost: bound}}
}
