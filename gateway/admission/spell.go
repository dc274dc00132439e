package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tollgate/ledger/event"
	"tollgate/lua"
)

// spell is what was admitted while Redis could not be asked, and is not known there yet. Reservations that have ended stay for
// a while: until their settlement is written back, Redis must count them as held.
type spell struct {
	mu       sync.Mutex // guards what follows
	admitted map[string]lua.Open
	ended    []spellEnd // in the order of time; some may be registered by now
}

type spellEnd struct {
	id string
	at time.Time
}

// Bounds on what is kept of requests that have ended: by then a settler that is there at all has settled them. There are never
// more of those in flight than callers.
const (
	spellKeep = time.Minute
	spellMost = 10_000
)

func (s *spell) begin(app string, res *event.Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admitted == nil {
		s.admitted = map[string]lua.Open{}
	}
	s.admitted[res.ID] = lua.Open{
		ReservationID: res.ID, App: app, Held: res.Held, Counters: res.Counters, Deadline: res.Deadline,
	}
}

func (s *spell) dropEndedLocked() {
	for len(s.ended) > spellMost || len(s.ended) > 0 && time.Since(s.ended[0].at) > spellKeep {
		delete(s.admitted, s.ended[0].id)
		s.ended = s.ended[1:]
	}
}

// end notes that a request has ended. It is overdue from now on: where its settlement was written back before Redis heard of it,
// nobody else would give it back, and the settler asks Postgres about what is overdue.
func (s *spell) end(id string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.admitted[id]; ok {
		if now.Before(o.Deadline) {
			o.Deadline = now
			s.admitted[id] = o
		}
		s.ended = append(s.ended, spellEnd{id, time.Now()})
		s.dropEndedLocked()
	}
}

// any reports whether Redis must be told of something.
func (s *spell) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.admitted) > 0
}

// open is what Redis must be told, by app.
func (s *spell) open() map[string][]lua.Open {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropEndedLocked()
	byApp := map[string][]lua.Open{}
	for _, open := range s.admitted {
		byApp[open.App] = append(byApp[open.App], open)
	}
	return byApp
}

// registered forgets what Redis has been told, or never can be.
func (s *spell) registered(opens []lua.Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range opens {
		delete(s.admitted, opens[i].ReservationID)
	}
	if len(s.admitted) == 0 {
		s.ended = nil
	}
}

// register has Redis hold what was admitted without it, without judging it: the next decisions must see it. What has ended
// meanwhile and is settled, Redis knows as ended. An app whose keys are broken must not keep the others from being judged: what
// it was admitted is given up, and counts when it is settled. Where a mark is missing Redis is told again later: the rebuild may
// have read the ledger before this came there.
func (a *Admission) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, registerTimeout, errors.New("register: Redis did not answer in time"))
	defer cancel()
	for app, opens := range a.spell.open() {
		told, err := a.scripts.Settle(ctx, app, nil, opens, nil)
		switch {
		case err == nil && !told.Applied:
			continue
		case err == nil:
		case lua.Outage(err):
			return fmt.Errorf("register what was admitted without Redis: %w", err)
		default:
			a.log.Error("redis cannot be told what was admitted without it", "app", app, "reservations", len(opens), "error", err)
		}
		a.spell.registered(opens)
	}
	return nil
}

// registerTimeout is longer than a decision's: there may be much to tell, and no caller waits for it.
const registerTimeout = 2 * time.Second

// registerEvery is how soon Redis hears of a request that was admitted without it while it is asked again, or still.
const registerEvery = 100 * time.Millisecond

// registerLate registers what the probe before the return to Redis did not: requests that were judged at that moment, and those
// whose one call failed without the breaker opening.
func (a *Admission) registerLate(ctx context.Context) error {
	ticker := time.NewTicker(registerEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if a.breaker.Open() || !a.spell.any() {
			continue
		}
		if err := a.register(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("redis does not know yet what was admitted without it", "error", err)
		}
	}
}
