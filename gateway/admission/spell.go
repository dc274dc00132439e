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
	admitted map[string]spellEntry
	looked   time.Time // when those that ended long ago were last dropped
}

type spellEntry struct {
	lua.Open
	ended time.Time // zero while the request is in flight
}

// Bounds on what is kept of requests that have ended: by then a settler that is there at all has settled them.
const (
	spellKeep = time.Minute
	spellMost = 10_000
	// spellLook is how often they are looked for, which takes long where there are many.
	spellLook = time.Second
)

func (s *spell) begin(app string, res *event.Reservation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admitted == nil {
		s.admitted = map[string]spellEntry{}
	}
	if len(s.admitted) >= spellMost && time.Since(s.looked) >= spellLook {
		s.dropEndedLocked()
	}
	s.admitted[res.ID] = spellEntry{Open: openOf(app, res)}
}

func (s *spell) dropEndedLocked() {
	s.looked = time.Now()
	for id, e := range s.admitted {
		if !e.ended.IsZero() && time.Since(e.ended) > spellKeep {
			delete(s.admitted, id)
		}
	}
}

func (s *spell) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.admitted[id]; ok {
		e.ended = time.Now()
		s.admitted[id] = e
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
	for _, e := range s.admitted {
		byApp[e.App] = append(byApp[e.App], e.Open)
	}
	return byApp
}

// registered forgets what Redis has been told.
func (s *spell) registered(opens []lua.Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range opens {
		delete(s.admitted, opens[i].ReservationID)
	}
}

// register has Redis hold what was admitted without it, without judging it: the next decisions must see it. What has ended
// meanwhile and is settled, Redis knows as ended.
func (a *Admission) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, registerTimeout, errors.New("register: Redis did not answer in time"))
	defer cancel()
	for app, opens := range a.spell.open() {
		if _, err := a.scripts.Settle(ctx, app, nil, opens, nil); err != nil {
			return fmt.Errorf("register what was admitted without Redis: %w", err)
		}
		a.spell.registered(opens) // or not applied: a mark is missing, and the rebuild reads them from the ledger
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
