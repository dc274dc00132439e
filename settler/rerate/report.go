package rerate

import (
	"cmp"
	"slices"

	"tollgate/ledger"
	"tollgate/ledger/pg"
)

// Report is what a run found, and posted.
type Report struct {
	Looked            int64   // settled requests
	Models            []Model // those with anything to tell, by provider and model
	Largest           []Difference
	Unconfirmed       int64 // requests whose outcome never arrived
	UnconfirmedCharge ledger.NanoUSD
	Posted            int64 // adjustments that the stream has taken
}

// Model is what was found of one model.
type Model struct {
	Provider, Model string
	Requests        int64          // charged another cost
	Before, After   ledger.NanoUSD // what those cost
	Unpriced        int64          // requests that the book cannot price
	Kept            ledger.NanoUSD // what those were charged and keep
	Why             string         // one of them cannot be priced
}

// Difference is one request that is charged another cost.
type Difference struct {
	Request  pg.Priced
	After    ledger.NanoUSD
	PriceRow string
}

func (d *Difference) size() ledger.NanoUSD {
	return max(d.After-d.Request.Charged, d.Request.Charged-d.After)
}

// note keeps the largest differences, the largest first.
func (r *Report) note(d Difference, most int) {
	at, _ := slices.BinarySearchFunc(r.Largest, d, func(x, y Difference) int {
		return cmp.Or(cmp.Compare(y.size(), x.size()), cmp.Compare(x.Request.ReservationID, y.Request.ReservationID))
	})
	if at >= most {
		return
	}
	r.Largest = slices.Insert(r.Largest, at, d)
	r.Largest = r.Largest[:min(len(r.Largest), most)]
}

// Total sums the models that are charged another cost.
func (r *Report) Total() (requests int64, before, after ledger.NanoUSD) {
	for _, m := range r.Models {
		requests, before, after = requests+m.Requests, before+m.Before, after+m.After
	}
	return requests, before, after
}

func (r *Report) finish(models map[modelKey]*Model) {
	for _, m := range models {
		if m.Requests > 0 || m.Unpriced > 0 {
			r.Models = append(r.Models, *m)
		}
	}
	slices.SortFunc(r.Models, func(x, y Model) int {
		return cmp.Or(cmp.Compare(x.Provider, y.Provider), cmp.Compare(x.Model, y.Model))
	})
}
