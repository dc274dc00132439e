package chaos

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"tollgate/e2e/system"
	"tollgate/ledger/policy"
)

const (
	// policyLimit is within what every gateway that nothing hurts judges by a policy that was pushed, and for how long at most a
	// request is under way that began to be judged by the one before.
	policyLimit = time.Second
	// standstill is how long any process may stand still besides, where many share few processors. Most are not held up: totals hold
	// these to policyLimit alone.
	standstill = 20 * time.Second
)

// push is one policy that was pushed.
type push struct {
	revision string
	done     time.Time
	calm     bool // nothing was about to hurt its way to the gateways
}

// pushPolicy pushes another policy than the one in force. Where NATS is away it is owed until the end of the faults.
func (r *run) pushPolicy(calm bool) {
	text := r.Policy(limits(11 + len(r.pushes)))
	r.do(os.WriteFile(r.PolicyFile, []byte(text), 0o600))
	revision := policy.RevisionOf([]byte(text))
	if _, err := r.TryCLI("policy", "push", r.PolicyFile); err != nil {
		r.t.Logf("policy not pushed: %v", err)
		r.owed = true
		return
	}
	r.owed = false
	r.pushes = append(r.pushes, push{revision, time.Now(), calm})
}

// policies holds I10: when each gateway took the pushed policies into force, by its own events, and that nobody judged by an
// older one when it should have.
func (r *run) policies(ctx context.Context) ([]system.Line, error) {
	var problems []string
	r.took = nil
	calm := 0
	for i, p := range r.pushes {
		last := i == len(r.pushes)-1
		const query = `
SELECT producer, min(occurred_at) FROM events
WHERE kind = 'policy' AND convert_from(body, 'UTF8')::json -> 'policy' ->> 'revision' = $1 GROUP BY producer`
		rows, err := r.Pool.Query(ctx, query, p.revision)
		if err != nil {
			return nil, err
		}
		took := 0
		for rows.Next() {
			var producer string
			var at time.Time
			if err := rows.Scan(&producer, &at); err != nil {
				rows.Close()
				return nil, err
			}
			took++
			if late := at.Sub(p.done); p.calm {
				r.took = append(r.took, max(0, late))
				if late > policyLimit+standstill {
					problems = append(problems, fmt.Sprintf("%s judged by %s after %s", producer, p.revision, late))
				}
			}
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
		if p.calm {
			calm++
		}
		if (p.calm || last) && took != len(r.Gateways) {
			problems = append(problems, fmt.Sprintf("%d of %d gateways judge by %s", took, len(r.Gateways), p.revision))
		}
		if p.calm {
			var stale int64
			const query = `
SELECT count(*) FROM reservations r
JOIN (
    SELECT producer, min(occurred_at) AS since FROM events
    WHERE kind = 'policy' AND convert_from(body, 'UTF8')::json -> 'policy' ->> 'revision' = $2 GROUP BY producer
) p USING (producer)
WHERE r.reserved_at > p.since + $1::interval AND r.policy_revision <> $2 AND ($3 OR r.reserved_at < $4)`
			until := time.Time{}
			if !last {
				until = r.pushes[i+1].done.Add(-policyLimit)
			}
			if err := r.Pool.QueryRow(ctx, query, policyLimit, p.revision, last, until).Scan(&stale); err != nil {
				return nil, err
			}
			if stale != 0 {
				problems = append(problems, fmt.Sprintf("%d requests were judged by another policy than %s", stale, p.revision))
			}
		}
	}
	var slowest time.Duration
	if len(r.took) > 0 {
		slowest = slices.Max(r.took)
	}
	return []system.Line{{
		Name: "I10 one policy within a second", Problem: strings.Join(problems, "; "),
		Figure: fmt.Sprintf("%d pushed, %d with nothing hurt: in force everywhere after at most %s", len(r.pushes), calm, slowest.Round(time.Millisecond)),
	}}, nil
}
