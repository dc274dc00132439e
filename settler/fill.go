package settler

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"tollgate/ledger"
	"tollgate/ledger/event"
	"tollgate/lua"
)

// serveFills fills budgets that gateways are about to judge by.
func (s *Settler) serveFills(ctx context.Context) error {
	return s.serve(ctx, event.FillSubject, func(request *nats.Msg) {
		answer := event.FillDone
		if err := s.fill(ctx, request.Data); err != nil {
			s.log.Warn("budgets not filled", "error", err)
			answer = "error: " + err.Error()
		}
		s.respond(request, answer)
	})
}

// fill has settlements count the families of the request, adds to their budgets what was used before, and tells Redis. When it
// returns without error, whoever did the work, Redis has it: settlements, and so other settlers' looks at what is known, are
// kept out until then.
func (s *Settler) fill(ctx context.Context, data []byte) error {
	fill, err := event.DecodeFill(data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, batchTimeout, errors.New("fill: took more than 30 s"))
	defer cancel()
	if filled, err := s.filled(ctx, fill); err != nil || filled {
		return err
	}
	// Without Redis it would be for nothing, and settlements would wait for it.
	if _, _, err := s.scripts.Mark(ctx, lua.SharedSlot); err != nil {
		return err
	}
	session, err := s.store.Rebuilding(ctx)
	if err != nil {
		return err
	}
	defer session.Close(ctx)
	if err := session.Fill(ctx, fill, s.now()); err != nil {
		return err
	}
	states, err := session.FilledBudgets(ctx, fill, s.now())
	if err != nil {
		return err
	}
	byApp := map[string][]ledger.CounterState{}
	for _, state := range states {
		byApp[state.App] = append(byApp[state.App], state)
	}
	for app, states := range byApp {
		if app == "" {
			app = lua.SharedSlot
		}
		// Where the slot has no mark nothing is written: it will be rebuilt from the same rows before it is judged by.
		if _, err := s.scripts.Settle(ctx, app, states, nil, nil); err != nil {
			return fmt.Errorf("write filled budgets: %w", err)
		}
	}
	if err := session.FillWritten(ctx, fill); err != nil {
		return err
	}
	s.log.Info("budgets filled", "families", len(fill.Families), "budgets", len(states))
	return nil
}

func (s *Settler) filled(ctx context.Context, fill *event.Fill) (bool, error) {
	session, err := s.store.Settling(ctx)
	if err != nil {
		return false, err
	}
	defer session.Close(ctx)
	return session.Filled(ctx, fill, s.now())
}
