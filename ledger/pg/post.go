package pg

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/event"
)

// Received is one event as it came from the stream.
type Received struct {
	Event     *event.Event
	Body      []byte // the exact bytes that Event was decoded from
	Subject   string
	StreamSeq uint64
}

// Fate is what Post made of one event.
type Fate string

// The fates. Only a posted event changed anything.
const (
	FatePosted    Fate = "posted"
	FateDuplicate Fate = "duplicate" // the same event was there already
	FateConflict  Fate = "conflict"  // its id was there already with other content; parked
)

// Result says what a batch did and what Redis must learn of it.
type Result struct {
	Fates      []Fate // one per event of the batch
	WriteBacks []WriteBack
}

// WriteBack is what Redis must learn about one app. Counters hold absolute values; the same write-back may be applied any
// number of times and in any order with others.
type WriteBack struct {
	App      string
	Counters []ledger.CounterState
	Opens    []OpenReservation
	Endings  []Ending
}

// OpenReservation is a reservation that is pending.
type OpenReservation struct {
	App         string
	Reservation event.Reservation
}

// holds notes what the reservation holds in all.
func (o *OpenReservation) holds(all ledger.Amounts) {
	o.Reservation.Extended = all.Sub(o.Reservation.Held)
}

// Ending is a reservation that is settled, released or expired. Spent is what its budgets now carry for it.
type Ending struct {
	Reservation event.Reservation
	Spent       ledger.Amounts
}

// Post settles a batch in one transaction, see the package comment. It may be repeated with the same events: then it changes
// nothing and answers the same write-back with present values. When Permanent(err), some event of the batch can never be
// posted; all other errors may be retried. Nothing is written when it errs. Once it has posted, other sessions of the store wait
// before their budgets until this one posts again or is closed.
func (s *Session) Post(ctx context.Context, batch []Received) (Result, error) {
	accounts, err := s.store.ensureAccounts(ctx, s.conn, serverOf(s.conn.Conn()), accountsOf(batch))
	if err != nil {
		return Result{}, err
	}
	for {
		s.giveTurn() // nobody waits for the rows of another batch while others wait for him
		remembered := remembersIncomingType(s.conn.Conn())
		p := &posting{store: s.store, accounts: accounts, awaitTurn: s.awaitTurn, fates: make([]Fate, len(batch)), counting: newCounting(s.known.list)}
		err := pgx.BeginTxFunc(ctx, s.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return p.run(ctx, tx, batch)
		})
		switch {
		case err == nil:
			return Result{Fates: p.fates, WriteBacks: p.writeBacks()}, nil
		case raced(err) && ctx.Err() == nil:
			continue // another settler has committed meanwhile, so it does not go on for ever
		case remembered && Permanent(err):
			forgetIncomingType(s.conn.Conn()) // the batch may not be to blame; with the type looked up it is tried once more
		default:
			s.giveTurn()
			forgetIncomingType(s.conn.Conn())
			return Result{}, fmt.Errorf("post %d events: %w", len(batch), err)
		}
	}
}

// posting is the working state of one attempt at one batch.
type posting struct {
	store    *Store
	accounts map[string]int64 // see ensureAccounts
	fates    []Fate
	fresh    []*entry // new events, by id
	touched  []*touch // reservations that the batch says anything about, by id
	budgets  map[budgetKey]*budgetDelta
	transfer []transfer
	counting *counting
	counted  map[*event.Event][]*budgetDelta // see budgetsOf

	awaitTurn func(context.Context) error // waits until budgets may be written; nil does not
}

// entry is one event of the batch. What follows its index is not set in a rebuild, where the event is stored already.
type entry struct {
	*Received
	index int
	id    string // storable
	day   time.Time
	hash  [sha256.Size]byte
}

func (p *posting) run(ctx context.Context, tx pgx.Tx, batch []Received) error {
	conflicts, err := p.insertEvents(ctx, tx, batch)
	if err != nil {
		return err
	}
	return p.project(ctx, tx, batch, conflicts)
}

// project brings every projection to what the batch says besides what was known before; the batch's events are stored.
func (p *posting) project(ctx context.Context, tx pgx.Tx, batch []Received, conflicts []*entry) error {
	p.group(batch)
	if err := p.writeReservations(ctx, tx); err != nil {
		return err
	}
	p.collectBudgets()
	p.collectGrants()

	if err := p.insertTransfers(ctx, tx); err != nil {
		return err
	}
	if p.awaitTurn != nil {
		if err := p.awaitTurn(ctx); err != nil {
			return err
		}
	}
	out := &pgx.Batch{}
	queueSmall(out, p.fresh, conflicts)
	p.queueBudgets(out)
	queueProducers(out, p.fresh, conflicts)
	if err := tx.SendBatch(ctx, out).Close(); err != nil {
		return fmt.Errorf("write projections: %w", err)
	}
	return nil
}

// touch is everything that a batch and the database know about one reservation.
type touch struct {
	id       string
	top      *event.Event // the deciding event of the batch, new or not
	freshTop *event.Event // the deciding event among the new ones; nil without
	reserved *event.Event // the Reserved event of the batch, new or not
	released bool         // a new Released event is in the batch
	used     *event.Event // the new Used event of the batch
	adjusted []*event.Event
	ends     bool // the batch says more of it than adjustments
	row      reservationRow
	before   ledger.Amounts // what the same counters were charged before this batch
	undone   *event.Event   // the Expired event whose charge this batch takes back
}

// The ranks of the events of one reservation.
const (
	rankReserved = iota + 1
	rankExpired
	rankReleased
	rankUsed // of the n-th adjustment n more
)

// outranks orders the events of one reservation: the highest decides its state, and of those that leave it pending, the one
// that says it holds most.
func outranks(a, b *event.Event) bool {
	if b == nil || rank(a) != rank(b) {
		return b == nil || rank(a) > rank(b)
	}
	return a.Reservation.Extensions > b.Reservation.Extensions
}

// rank is 0 for events about no reservation.
func rank(e *event.Event) int {
	switch e.Kind {
	case event.KindReserved, event.KindExtended:
		return rankReserved
	case event.KindExpired:
		return rankExpired
	case event.KindReleased:
		return rankReleased
	case event.KindUsed:
		return rankUsed
	case event.KindAdjusted:
		return rankUsed + e.Adjustment.Number
	default:
		return 0
	}
}

// group gathers the batch's events by reservation. Conflicting ones say nothing.
func (p *posting) group(batch []Received) {
	byID := map[string]*touch{}
	for i := range batch {
		e := batch[i].Event
		if rank(e) == 0 || p.fates[i] == FateConflict {
			continue
		}
		t := byID[e.Reservation.ID]
		if t == nil {
			t = &touch{id: e.Reservation.ID}
			byID[t.id] = t
			p.touched = append(p.touched, t)
		}
		if outranks(e, t.top) {
			t.top = e
		}
		t.ends = t.ends || e.Kind != event.KindAdjusted
		if e.Kind == event.KindReserved {
			t.reserved = e
		}
		if p.fates[i] != FatePosted {
			continue
		}
		switch e.Kind {
		case event.KindReleased:
			t.released = true
		case event.KindUsed:
			t.used = e
		case event.KindAdjusted:
			t.adjusted = append(t.adjusted, e)
		}
		if outranks(e, t.freshTop) {
			t.freshTop = e
		}
	}
	slices.SortFunc(p.touched, func(a, b *touch) int { return strings.Compare(a.id, b.id) })
}

// writeBacks answers, per app, what Redis must learn. It runs after the transaction.
func (p *posting) writeBacks() []WriteBack {
	byApp := map[string]*WriteBack{}
	budgets := map[string]map[*budgetDelta]bool{}
	for _, t := range p.touched {
		app := t.top.App
		w := byApp[app]
		if w == nil {
			w = &WriteBack{App: app}
			byApp[app], budgets[app] = w, map[*budgetDelta]bool{}
		}
		if t.row.state == statePending {
			if t.reserved != nil {
				open := OpenReservation{App: app, Reservation: *t.reserved.Reservation}
				open.holds(t.row.held)
				w.Opens = append(w.Opens, open)
			}
			continue
		}
		if t.ends { // who was adjusted has ended long ago
			w.Endings = append(w.Endings, Ending{Reservation: *t.top.Reservation, Spent: t.row.charged})
		}
		for _, e := range []*event.Event{t.top, t.undone} { // the budgets that carry it, and those that did
			for _, b := range p.counted[e] {
				budgets[app][b] = true
			}
		}
	}
	result := make([]WriteBack, 0, len(byApp))
	for app, w := range byApp {
		for _, b := range slices.SortedFunc(maps.Keys(budgets[app]), (*budgetDelta).compare) {
			if b.version > 0 {
				w.Counters = append(w.Counters, ledger.CounterState{Counter: b.counter, App: b.key.app, Used: b.used, Version: b.version})
			}
		}
		result = append(result, *w)
	}
	slices.SortFunc(result, func(a, b WriteBack) int { return strings.Compare(a.App, b.App) })
	return result
}
