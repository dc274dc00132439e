package rerate

import (
	"fmt"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/ledger/pg"
	"tollgate/ledger/price"
)

// priced is what a request costs by a book.
type priced struct {
	components []event.Component
	total      ledger.NanoUSD
	row        string // of the model that answered
}

// priceAnew prices what each model used for the request's answer by the row that the book has for it at the time of admission. It errs
// when one of them has none.
func priceAnew(book *price.Book, p *pg.Priced) (anew priced, err error) {
	if anew.row, err = anew.add(book, p, p.Model, p.Usage, event.Component{}); err != nil {
		return priced{}, err
	}
	for _, other := range p.Others {
		if _, err := anew.add(book, p, other.Model, other.Usage, event.Component{Model: other.Model}); err != nil {
			return priced{}, err
		}
	}
	return anew, nil
}

// add adds the components of one model. by says whose they are, where it is another one than the one that answered.
func (a *priced) add(book *price.Book, p *pg.Priced, model string, usage ledger.Usage, by event.Component) (row string, err error) {
	found, ok := book.Find(p.Provider, model, p.ReservedAt)
	if !ok {
		return "", fmt.Errorf("the book has no row of %s/%s at the time", p.Provider, model)
	}
	cost, err := found.Cost(usage, p.Tier, p.ReservedAt)
	if err != nil {
		return "", err
	}
	if by.Model != "" {
		by.PriceRow = found.ID
	}
	for _, c := range cost.Components {
		by.Class, by.Tokens, by.Price, by.Cost = c.Class, c.Tokens, c.Price, c.Cost
		a.components = append(a.components, by)
	}
	a.total += cost.Total
	return found.ID, nil
}
