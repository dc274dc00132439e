package lua

import (
	"context"
	"fmt"
	"time"

	"tollgate/ledger"
)

// replayChunk bounds the charges of one call of replay_rate.lua.
const replayChunk = 200

// RateCharges is what one rate was charged, oldest first. App is the one whose request met it, also where all apps share it.
type RateCharges struct {
	App     string
	Rate    Rate
	Charges []Charge
}

// Charge is what one reservation takes of a rate, in its unit: what it holds, or what it used once it has ended.
type Charge struct {
	ReservationID string
	Units         int64
	At            time.Time // Redis's clock at the reserve
}

// Remembers is for how long a rate remembers a charge: what is older no longer matters.
func (r *Rate) Remembers() time.Duration {
	if kindOf(&r.Rate) == kindBucket && r.Amount > 0 {
		// Whatever it was charged at once has drained after this; charges that were not judged may have come on top.
		return 2 * time.Duration(float64(r.Window)*float64(r.Burst)/float64(r.Amount))
	}
	return r.Window
}

// replayRates charges the slot's rates anew. Requests in flight are not among them: their gateways renew them. What Reserve
// refuses to judge was never charged.
func (s *Scripts) replayRates(ctx context.Context, c *RebuildCall) error {
	for i := range c.Charges {
		r := &c.Charges[i]
		if kindOf(&r.Rate.Rate) == kindInflight || r.Rate.check(ledger.Amounts{Requests: 1}) != nil {
			continue
		}
		if err := s.replayRate(ctx, r, c.ChargedSince); err != nil {
			return fmt.Errorf("charge rate %s of %s: %w", r.Rate.Limit, r.Rate.Subject, err)
		}
	}
	return nil
}

func (s *Scripts) replayRate(ctx context.Context, r *RateCharges, since time.Time) error {
	kind := kindOf(&r.Rate.Rate)
	head := make([]any, 3, 12)
	text, set := rateKeys(r.App, &r.Rate.Rate)
	for _, key := range []string{text, set} {
		if key != "" {
			head = append(head, key)
		}
	}
	keys := len(head) - 3
	head = append(head, kind, since.UnixMicro(), 1)
	fresh := len(head) - 1
	head = append(head, figures(&r.Rate, kind, s.leaseTTL)...)
	for rest := r.Charges; len(rest) > 0; {
		chunk := rest[:min(replayChunk, len(rest))]
		rest = rest[len(chunk):]
		args := append(make([]any, 0, len(head)+3*len(chunk)), head...)
		for _, charge := range chunk {
			args = append(args, charge.ReservationID, charge.Units, charge.At.UnixMicro())
		}
		reply, err := s.run(ctx, s.replay, keys, args)
		if err != nil {
			return err
		}
		if reader := (replyReader{reply: reply}); reader.integer() != 1 {
			return fmt.Errorf("%w: %v", ErrReply, reply)
		}
		head[fresh] = 0
	}
	return nil
}
