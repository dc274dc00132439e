package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"tollgate/e2e/system"
)

// tight is what the budget that is used up during a run allows, in requests.
const tight = 60

// limits meet every tier; some budgets are used up during a run, others never.
const limits = `
  - {name: platform-month, tier: platform, budget: {usd: 1000, per: month}}
  - {name: provider-slots, tier: provider, concurrency: 200}
  - {name: app-day, tier: app, budget: {requests: 100000, per: day}, overrides: {depot: {requests: 60}}}
  - {name: app-tokens, tier: app, budget: {tokens: 1000000000, per: month}}
  - {name: key-total, tier: key, budget: {usd: 0.05, per: total}}
  - {name: user-day, tier: user, budget: {requests: 100, per: day}}
  - {name: key-rpm, tier: key, by: [model, endpoint], rate: {requests: 100000, per: minute, algorithm: sliding_log}}
  - {name: key-tpm, tier: key, by: [model], rate: {tokens: 1000000000, per: minute, algorithm: token_bucket}}
  - {name: shown, tier: endpoint, budget: {requests: 10, per: day}, shadow: true}
`

const sections = `
plans:
  free: {on_exceed: {action: reject}}
  paid: {on_exceed: {action: throttle, max_wait: 300ms, max_depth: 20}}
apps:
  shop: {plan: paid}
  depot: {plan: free}
`

// callers are how many clients call at a time.
const callers = 8

// call makes the i-th call of a run. Which it is follows from the seed; to whom it goes, too.
func (r *run) call(i int) system.Answer {
	d := rand.New(rand.NewPCG(r.plan.seed, uint64(i)+1))
	q := system.Request{
		Key:    r.keys[d.IntN(len(r.keys))],
		Header: map[string]string{"X-Sim-Latency": fmt.Sprintf("%dms", d.IntN(30)), "X-Tollgate-User": fmt.Sprintf("user%d", d.IntN(5))},
	}
	model := []string{"gpt-4o", "gpt-4o-mini"}[d.IntN(2)]
	q.Path, q.Body = "/v1/chat/completions", system.ChatBody(model, "How much is left?", 20+d.IntN(20), d.IntN(2) == 0)
	if d.IntN(3) == 0 {
		q.Path, q.Body = "/v1/embeddings", system.EmbeddingBody(1+d.IntN(50))
	}
	q.Header["X-Sim-Chunk-Delay"] = "2ms"
	ctx := r.t.Context()
	switch d.IntN(12) {
	case 0:
		q.Header["X-Sim-Status"] = "500"
	case 1:
		q.Header["X-Sim-Cut-After"] = "2"
	case 2: // leaves early
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(1+d.IntN(40))*time.Millisecond)
		defer cancel()
	}
	a := r.Send(ctx, r.Gateways[d.IntN(len(r.Gateways))].URL, q)
	if !a.Passed() {
		time.Sleep(10 * time.Millisecond) // refusals must not take the processors from the rest
	}
	return a
}
