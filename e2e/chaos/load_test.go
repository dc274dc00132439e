package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"tollgate/e2e/system"
)

// Apps besides system.App, each with a plan of its own.
const (
	depot  = "depot"  // its budget is used up during the run, and refuses then
	outlet = "outlet" // falls back to a cheaper model
	spent  = "spent"  // its budget is used up before the faults begin: every call is refused
)

// What budgets allow, in requests.
const (
	depotDay = 60
	spentDay = 2
	userDay  = 60
)

// limits meet every tier; some budgets are used up during a run, others never. shown is a figure that the pushed policies differ
// in.
func limits(shown int) string {
	return fmt.Sprintf(`
  - {name: platform-month, tier: platform, budget: {usd: 1000, per: month}}
  - {name: slots, tier: provider, match: {plan: thrifty}, concurrency: 200}
  - {name: app-day, tier: app, budget: {requests: 100000, per: day}, overrides: {depot: {requests: %d}, spent: {requests: %d}}}
  - {name: app-tokens, tier: app, budget: {tokens: 1000000000, per: month}}
  - {name: app-rate, tier: app, match: {plan: paid}, rate: {requests: 30, per: second, algorithm: sliding_log}}
  - {name: dear-day, tier: app, match: {plan: thrifty, model: gpt-4o}, by: [model], budget: {requests: 10, per: day}}
  - {name: key-total, tier: key, budget: {usd: 0.05, per: total}}
  - {name: user-day, tier: user, budget: {requests: %d, per: day}}
  - {name: user-month, tier: user, budget: {requests: 20, per: month}, on_exceed: {action: flag}}
  - {name: key-rpm, tier: key, by: [model, endpoint], rate: {requests: 100000, per: minute, algorithm: sliding_log}}
  - {name: key-tpm, tier: key, by: [model], rate: {tokens: 1000000000, per: minute, algorithm: token_bucket}}
  - {name: shown, tier: endpoint, budget: {requests: %d, per: day}, shadow: true}
`, depotDay, spentDay, userDay, shown)
}

const sections = `
plans:
  free: {on_exceed: {action: reject}}
  paid: {on_exceed: {action: throttle, max_wait: 300ms, max_depth: 20}}
  thrifty: {on_exceed: {action: fallback}}
apps:
  shop: {plan: paid}
  depot: {plan: free}
  spent: {plan: free}
  outlet: {plan: thrifty, fallback: {gpt-4o: gpt-4o-mini}}
`

// callers are how many clients call at a time.
const callers = 8

// callerKeys are the keys that calls are drawn from.
func callerKeys() []string {
	return []string{
		secrets[system.App][0], secrets[system.App][1], secrets[system.App][0], secrets[depot][0], secrets[depot][0], secrets[outlet][0],
		secrets[spent][0],
	}
}

// call makes the i-th call of a run. Which it is follows from the seed; to whom it goes, too.
func (r *run) call(i int) system.Answer {
	d := rand.New(rand.NewPCG(r.plan.seed, uint64(i)+1))
	keys := callerKeys()
	q := system.Request{
		Key:    keys[d.IntN(len(keys))],
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
	case 3:
		if d.IntN(3) == 0 { // its outcome comes when its reservation is overdue
			q.Header["X-Sim-Latency"] = fmt.Sprint(r.plan.ttl + 200*time.Millisecond)
		}
	}
	a := r.Send(ctx, r.Gateways[d.IntN(len(r.Gateways))].URL, q)
	if q.Key == secrets[spent][0] && a.Status == http.StatusTooManyRequests {
		r.refused.Add(1)
	}
	if !a.Passed() {
		time.Sleep(10 * time.Millisecond) // refusals must not take the processors from the rest
	}
	return a
}

// spendUp uses up the budget of the app whose calls are all refused from then on.
func (r *run) spendUp() {
	for n := 0; n < spentDay; {
		r.Eventually(system.Patience, "a call of the app whose budget is to be used up", func() error {
			if a := r.askSpent(n); !a.Passed() {
				return fmt.Errorf("%s", a)
			}
			return nil
		})
		n++
	}
}

// askSpent calls for the app whose budget is used up.
func (r *run) askSpent(i int) system.Answer {
	return r.Send(r.t.Context(), r.Gateways[i%len(r.Gateways)].URL, system.Request{
		Key: secrets[spent][0], Path: "/v1/embeddings", Body: system.EmbeddingBody(1 + i%7),
		Header: map[string]string{"X-Tollgate-User": fmt.Sprintf("user%d", i%3)},
	})
}
