package policy

import (
	"math"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tollgate/ledger"
	"tollgate/ledger/price"
)

func (f *file) prices(top record) {
	type row struct {
		provider, model string
		from            time.Time
	}
	seen := make(map[row]int)
	v, ok := top.get("prices")
	if !ok {
		return
	}
	for _, item := range v.items() {
		price := f.price(item)
		at := row{price.Provider, price.Model, price.From}
		if line := seen[at]; line > 0 && price.Model != "" {
			item.fail("the row in line %d has the same provider, model and date: keep one", line)
		}
		seen[at] = price.Line
		f.policy.Prices = append(f.policy.Prices, price)
	}
}

func (f *file) price(item value) PriceRow {
	row := PriceRow{Line: item.node.Line}
	rec := item.record("provider", "model", "from", "usd_per_million", "unpriced", "daily", "usd_per_million_by_service_tier",
		"usd_per_thousand_calls")
	if v, ok := rec.require("provider", "name the provider that the price is of"); ok {
		if name, ok := v.text(); ok && f.knownProvider(v, name) {
			row.Provider = name
		}
	}
	if v, ok := rec.require("model", "name the upstream model"); ok {
		row.Model, _ = v.text()
	}
	if v, ok := rec.require("from", "give the date from which it holds"); ok {
		row.From, _ = v.instant(true)
	}
	if v, ok := rec.require("usd_per_million", "give dollars per million tokens, by class"); ok {
		row.Prices = v.classPrices()
	}
	if v, ok := rec.get("unpriced"); ok {
		row.Unpriced = v.unpriced(row.Prices)
	}
	if v, ok := rec.get("daily"); ok {
		for _, item := range v.items() {
			row.Daily = append(row.Daily, item.daily())
		}
	}
	if v, ok := rec.get("usd_per_million_by_service_tier"); ok {
		row.Service = map[ledger.ServiceTier]price.Prices{}
		tiers := []string{string(ledger.ServiceBatch), string(ledger.ServiceFlex), string(ledger.ServicePriority)}
		for tier, v := range v.record(tiers...).fields {
			row.Service[ledger.ServiceTier(tier)] = v.classPrices()
		}
	}
	if v, ok := rec.get("usd_per_thousand_calls"); ok {
		row.PerCall = v.calls()
	}
	return row
}

// priceClasses are the classes of tokens that a price can be stated of.
func priceClasses() []string {
	var names []string
	for _, class := range (ledger.Usage{}).Classes() {
		names = append(names, string(class.Class))
	}
	return names
}

// classPrices reads dollars per million tokens, by class.
func (v value) classPrices() price.Prices {
	prices := v.record(priceClasses()...)
	if len(prices.fields) == 0 && prices.isMap() {
		v.fail("no price: give at least input and output; %s", v.r.choices("", priceClasses()))
	}
	read := price.Prices{}
	for class, v := range prices.fields {
		read[ledger.Class(class)] = v.classPrice()
	}
	return read
}

// classPrice reads dollars, or a base with the steps that it takes above numbers of input tokens.
func (v value) classPrice() price.Price {
	if v.node.Kind != yaml.MappingNode {
		usd, _ := v.usd()
		return price.Flat(usd)
	}
	rec := v.record("base", "steps", "mode")
	var p price.Price
	if v, ok := rec.require("base", "give the dollars per million tokens below the first step"); ok {
		p.Base, _ = v.usd()
	}
	if v, ok := rec.get("mode"); ok {
		mode, _ := choice(v, "mode of steps", "whole", "marginal")
		p.Marginal = mode == "marginal"
	}
	steps, ok := rec.require("steps", "list them as {above: 200_000, price: 6}, or give the price alone")
	if !ok {
		return p
	}
	for _, item := range steps.items() {
		if step, ok := item.step(); ok {
			if n := len(p.Steps); n > 0 && step.Above <= p.Steps[n-1].Above {
				item.fail("the step above %d tokens does not ascend: list the steps from the lowest to the highest", step.Above)
			}
			p.Steps = append(p.Steps, step)
		}
	}
	if steps.null() || len(steps.node.Content) == 0 {
		steps.fail("no step: list at least one, or give the price alone")
	}
	return p
}

func (v value) step() (step price.Step, ok bool) {
	rec := v.record("above", "price")
	above, hasAbove := rec.require("above", "give the number of tokens above which it holds")
	usd, hasPrice := rec.require("price", "give the dollars per million tokens")
	if !hasAbove || !hasPrice {
		return step, false
	}
	tokens, okTokens := above.count("tokens", 1, math.MaxInt64)
	amount, okAmount := usd.usd()
	return price.Step{Above: ledger.Tokens(tokens), Price: amount}, okTokens && okAmount
}

// unpriced reads classes that are refused where money is counted, instead of costing what a class like them costs.
func (v value) unpriced(listed price.Prices) []ledger.Class {
	var classes []ledger.Class
	for _, item := range v.items() {
		name, ok := choice(item, "class", priceClasses()...)
		if _, both := listed[ledger.Class(name)]; ok && both {
			item.fail("%s has a price in the row: keep one of the two", name)
		}
		if ok {
			classes = append(classes, ledger.Class(name))
		}
	}
	return classes
}

// daily reads prices that hold for a part of each day.
func (v value) daily() price.Daily {
	rec := v.record("from", "until", "usd_per_million")
	var d price.Daily
	if v, ok := rec.require("from", "give the time of day from which it holds, in UTC"); ok {
		d.From, _ = v.timeOfDay()
	}
	if v, ok := rec.require("until", "give the time of day at which it ends, in UTC"); ok {
		until, ok := v.timeOfDay()
		if d.Until = until; ok && d.Until <= d.From {
			v.fail("ends before it begins: split a part that passes midnight, UTC, into two")
		}
	}
	if v, ok := rec.require("usd_per_million", "give dollars per million tokens, by class"); ok {
		d.Prices = v.classPrices()
	}
	return d
}

func (v value) timeOfDay() (at price.TimeOfDay, ok bool) {
	text := v.node.Value
	if strings.Count(text, ":") == 1 {
		text += ":00"
	}
	if err := at.UnmarshalText([]byte(text)); err != nil {
		v.fail("%s is not a time of day: write one such as 16:30", v.describe())
		return 0, false
	}
	return at, true
}

// calls reads dollars per thousand calls.
func (v value) calls() map[price.Call]ledger.NanoUSD {
	names := make([]string, len(price.Calls))
	for i, call := range price.Calls {
		names[i] = string(call)
	}
	calls := map[price.Call]ledger.NanoUSD{}
	for name, v := range v.record(names...).fields {
		usd, ok := v.usd()
		if ok && usd > math.MaxInt64/1000 {
			v.fail("%s dollars for a thousand calls are too many", quote(v.node.Value))
			continue
		}
		calls[price.Call(name)] = usd * 1000 // the book counts in millions
	}
	return calls
}
