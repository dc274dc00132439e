package system

import (
	"context"
	"fmt"
	"strings"

	"tollgate/internal/sim"
)

// charge is what the ledger charged for one request, in the simulator's terms.
type charge struct {
	state, usage             string
	input, cached            int64 // what was read from and written to caches is part of input
	output, reasoning, nanos int64 // reasoning is part of output
}

// marked reports whether the ledger says itself that the charge is an estimate.
func (c charge) marked() bool { return c.usage == "estimated" || c.usage == "unconfirmed" }

// checkBooks holds the ledger against the simulator's books, request by request and in total. Requests that the ledger marks as
// estimated or unconfirmed are told apart, with what they were charged and what the simulator billed.
func (s *System) checkBooks(ctx context.Context) ([]Line, error) {
	books, err := s.Sim.Books(ctx)
	if err != nil {
		return nil, err
	}
	charges, err := s.charges(ctx)
	if err != nil {
		return nil, err
	}
	r := compare(books, charges)
	difference := r.ledger - r.marked - (r.billed - r.markedBilled)
	total := Line{
		Name:   "I9 ledger = books in total (nano-dollars)",
		Figure: fmt.Sprintf("ledger %d - marked %d = books %d - marked %d", r.ledger, r.marked, r.billed, r.markedBilled),
	}
	if difference != 0 {
		total.Problem = fmt.Sprintf("differ by %d", difference)
	}
	return []Line{
		{
			Name: "I4 I9 ledger = books by request", Problem: strings.Join(r.problems, "; "),
			Figure: fmt.Sprintf("%d equal, %d in the ledger, %d billed", r.equal, len(charges), len(books)-r.direct),
		},
		{
			Name: "I9 marked as not confirmed by the provider",
			Figure: fmt.Sprintf("%d unconfirmed, %d estimated, charged %d, billed %d", r.unconfirmed, r.estimated, r.marked,
				r.markedBilled),
		},
		total,
	}, nil
}

type comparison struct {
	equal, direct, unconfirmed, estimated int
	ledger, billed, marked, markedBilled  int64
	problems                              []string
}

// compare tells at most ten problems: one bug makes thousands.
func compare(books []sim.Record, charges map[string]charge) comparison {
	var r comparison
	problem := func(format string, args ...any) {
		if len(r.problems) < 10 {
			r.problems = append(r.problems, fmt.Sprintf(format, args...))
		}
	}
	billed := map[string]bool{}
	for _, b := range books {
		id := b.TollgateRequestID
		if id == "" {
			r.direct++ // asked of the simulator without a gateway
			continue
		}
		r.billed += b.CostNanoUSD
		c, known := charges[id]
		switch {
		case billed[id]:
			problem("%s was sent to the provider twice", id)
		case !known:
			problem("%s was billed %d and is not in the ledger", id, b.CostNanoUSD)
		case c.marked():
			r.markedBilled += b.CostNanoUSD
		case c.state != "settled":
			problem("%s was billed %d and is %s in the ledger", id, b.CostNanoUSD, c.state)
		case c != charge{c.state, c.usage, b.InputTokens, b.CachedTokens, b.OutputTokens, b.ReasoningTokens, b.CostNanoUSD}:
			problem("%s: ledger %+v, books %+v", id, c, b)
		default:
			r.equal++
		}
		billed[id] = true
	}
	for id, c := range charges {
		r.ledger += c.nanos
		switch {
		case c.usage == "unconfirmed":
			r.unconfirmed++
			r.marked += c.nanos
		case c.usage == "estimated":
			r.estimated++
			r.marked += c.nanos
		case c.nanos != 0 && !billed[id]:
			problem("%s was charged %d and never billed", id, c.nanos)
		}
	}
	return r
}

func (s *System) charges(ctx context.Context) (map[string]charge, error) {
	const query = `
SELECT reservation_id, state, usage_state, input_tokens + cached_input_tokens + cache_write_5m_tokens + cache_write_1h_tokens,
    cached_input_tokens, output_tokens + reasoning_tokens + output_image_tokens, reasoning_tokens, charged_nanousd
FROM reservations`
	rows, err := s.Pool.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	charges := map[string]charge{}
	for rows.Next() {
		var id string
		var c charge
		if err := rows.Scan(&id, &c.state, &c.usage, &c.input, &c.cached, &c.output, &c.reasoning, &c.nanos); err != nil {
			return nil, err
		}
		charges[id] = c
	}
	return charges, rows.Err()
}
