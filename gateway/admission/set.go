package admission

import (
	"fmt"

	"tollgate/gateway/provider"
	"tollgate/ledger/policy"
	"tollgate/ledger/price"
)

// SetPolicy takes a policy, with an upstream for each of its providers, into force for every request from now on. It errors
// when its prices contradict each other, and leaves the running policy.
func (a *Admission) SetPolicy(p *policy.Policy, upstreams map[string]*provider.Upstream) error {
	a.setting.Lock()
	defer a.setting.Unlock()
	book, err := BookOf(a.published, p)
	if err != nil {
		return err
	}
	if before := a.rules.Load(); before != nil && before.policy.Calendar != p.Calendar {
		a.exhausted.Clear() // windows end at other times now
	}
	a.breaker.SetConfig(p.Degraded.Breaker)
	a.rules.Store(&rules{p, book, upstreams})
	return nil
}

// SetPrices lays published rows over the built-in book, below the policy's own prices, for every request from now on. It replaces
// what was published before. It errors when they make no book, and leaves the running one. A policy must be in force.
func (a *Admission) SetPrices(rows []price.Row) error {
	a.setting.Lock()
	defer a.setting.Unlock()
	r := a.rules.Load()
	book, err := BookOf(rows, r.policy)
	if err != nil {
		return err
	}
	a.published = rows
	a.rules.Store(&rules{r.policy, book, r.upstreams})
	return nil
}

// BookOf is the built-in book with published rows laid on top, and the policy's own prices over both.
func BookOf(published []price.Row, p *policy.Policy) (*price.Book, error) {
	book, err := price.Default().Amend(published)
	if err != nil {
		return nil, fmt.Errorf("published prices: %w", err)
	}
	overrides := make([]price.Row, len(p.Prices))
	for i := range p.Prices {
		overrides[i] = p.Prices[i].Row
	}
	if book, err = book.With(overrides); err != nil {
		return nil, fmt.Errorf("prices of policy %s: %w", p.Revision, err)
	}
	return book, nil
}

// Prices is the book in force.
func (a *Admission) Prices() *price.Book { return a.rules.Load().book }
