package event

// FlagCostDiffers marks a request whose provider told another cost than the ledger's.
const FlagCostDiffers = "cost_differs"

// CostDiffers reports whether what the provider told as the cost is off by more than a hundredth. Sums below a microdollar are
// rounding: providers cut their figures.
func (o *Outcome) CostDiffers() bool {
	if o.ProviderCost == nil || o.PriceRow == "" {
		return false
	}
	off := o.Cost - *o.ProviderCost
	return max(off, -off) > max(*o.ProviderCost/100, 1000)
}
