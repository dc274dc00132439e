package lua

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"tollgate/ledger"
)

// rebuildChunk bounds one call of rebuild.lua.
const rebuildChunk = 500

// ErrOvertaken is returned by Rebuild when what it had written may be gone or another's: the slot has no mark of this call, and
// must be rebuilt anew.
var ErrOvertaken = errors.New("what was written was lost, or another began to rebuild the slot")

// RebuildCall is everything Postgres knows of one slot that still matters.
type RebuildCall struct {
	Slot       string // an app, or SharedSlot
	Generation string
	Counters   []ledger.CounterState
	// Open reservations that hold something on the slot's counters. For an app they are its own and are written as records;
	// for SharedSlot they are those of all apps and only add up to what the shared counters hold.
	Open []Open
	// WithShared says that the shared slot is rebuilt next: shared counters that the reservations in Redis name go, too, because
	// one that only held what the ledger never heard of would hold it for ever.
	WithShared bool
	// Active says that the slot was used recently: what its rates were charged before ChargedSince is unknown, and they start
	// as if used up by it. A new app starts with full rates.
	Active bool
	// ChargedSince is the instant from which Charges has everything; zero is the instant of the rebuild.
	ChargedSince time.Time
	Charges      []RateCharges
	// Sure is asked before the mark is given, which its error keeps from being given: settlements may not have been kept away. nil
	// is not asked.
	Sure func(context.Context) error
}

// Rebuild replaces the slot's counters and reservations by what the call says and writes the mark last; until then every
// Reserve that needs the slot answers StatusRebuild. The caller must keep settlements of the slot away meanwhile. A Redis that is
// emptied between two writes, and a caller that was paused for so long that another rebuilds the slot, are noticed: the slot keeps
// what the other writes, gets no mark from this call, and the error is ErrOvertaken. Only rates may then be charged by both.
func (s *Scripts) Rebuild(ctx context.Context, c RebuildCall) error {
	w := &rewrite{Scripts: s, slot: c.Slot, token: uuid.NewString()}
	if err := w.all(ctx, c); err != nil {
		return fmt.Errorf("rebuild %s: %w", c.Slot, err)
	}
	return nil
}

// rewrite is one Rebuild under way. Its token stands in Redis from its first write to its last, and none is made without it.
type rewrite struct {
	*Scripts
	slot, token string
}

func (w *rewrite) all(ctx context.Context, c RebuildCall) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	if err := w.forgetReservations(ctx, c.WithShared); err != nil {
		return err
	}
	now, err := w.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	if err := w.replayRates(ctx, &c); err != nil {
		return err
	}
	states := withHeld(c)
	var records []Open
	if c.Slot != SharedSlot {
		records = c.Open
	}
	for len(states) > 0 || len(records) > 0 {
		n, m := min(rebuildChunk, len(states)), min(rebuildChunk, len(records))
		if err := w.write(ctx, rewritten{states: states[:n], records: records[:m]}); err != nil {
			return err
		}
		states, records = states[n:], records[m:]
	}
	if c.Sure != nil {
		if err := c.Sure(ctx); err != nil {
			return err
		}
	}
	var rates, leases int64 // until when they may be lost
	if c.Active {
		leases = now.UnixMicro()
		rates = leases
		if !c.ChargedSince.IsZero() {
			rates = c.ChargedSince.UnixMicro()
		}
	}
	return w.write(ctx, rewritten{mark: fmt.Sprintf("%s %d %d", c.Generation, rates, leases)})
}

// begin takes the mark away, and from whoever else rebuilds the slot the right to go on.
func (w *rewrite) begin(ctx context.Context) error {
	_, err := w.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, markKey(w.slot))
		p.Set(ctx, rebuildingKey(w.slot), w.token, rebuildingTTL)
		return nil
	})
	return err
}

// forgetReservations removes the records that Redis still has, and the slot's counters that they name: what is held is about
// to be written absolutely, and a counter that only held what the ledger never heard of would hold it for ever.
func (w *rewrite) forgetReservations(ctx context.Context, withShared bool) error {
	ids, err := w.client.ZRange(ctx, deadlinesKey(w.slot), 0, -1).Result()
	if err != nil {
		return err
	}
	for len(ids) > 0 {
		n := min(rebuildChunk, len(ids))
		keys := make([]string, n)
		for i, id := range ids[:n] {
			keys[i] = reservationKey(w.slot, id)
		}
		records, err := w.client.MGet(ctx, keys...).Result()
		if err != nil {
			return err
		}
		for _, text := range records {
			for _, key := range countersOf(text) {
				if withShared || strings.HasPrefix(key, tag(w.slot)) {
					keys = append(keys, key)
				}
			}
		}
		if err := w.write(ctx, rewritten{forgotten: keys}); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return w.write(ctx, rewritten{forgotten: []string{deadlinesKey(w.slot)}})
}

type heldState struct {
	ledger.CounterState
	held ledger.Amounts
}

// withHeld lists the slot's counters with the sum of what open reservations hold on each; a counter that only holds has no
// row yet and counts as unused.
func withHeld(c RebuildCall) []heldState {
	app := c.Slot
	index := make(map[string]int, len(c.Counters))
	states := make([]heldState, 0, len(c.Counters))
	for _, state := range c.Counters {
		index[counterKey(app, &state.Counter)] = len(states)
		states = append(states, heldState{CounterState: state})
	}
	for _, open := range c.Open {
		for _, counter := range open.Counters {
			if counter.Tier.Shared() != (c.Slot == SharedSlot) {
				continue
			}
			key := counterKey(app, &counter)
			place, ok := index[key]
			if !ok {
				place = len(states)
				index[key] = place
				states = append(states, heldState{CounterState: ledger.CounterState{Counter: counter}})
			}
			states[place].held = states[place].held.Add(open.Held)
		}
	}
	return states
}

// rewritten is what one call of rebuild.lua does: keys that go, then what is written, then the mark, which ends the rebuild.
type rewritten struct {
	forgotten []string
	states    []heldState
	records   []Open
	mark      string // "" for none yet
}

func (w *rewrite) write(ctx context.Context, c rewritten) error {
	args := make([]any, 3, 16+len(c.forgotten)+len(c.states)*9+len(c.records)*4)
	args = append(args, deadlinesKey(w.slot), rebuildingKey(w.slot), markKey(w.slot))
	for i := range c.states {
		args = append(args, counterKey(w.slot, &c.states[i].Counter))
	}
	for i := range c.records {
		args = append(args, reservationKey(w.slot, c.records[i].ReservationID))
	}
	for _, key := range c.forgotten {
		args = append(args, key)
	}
	keys := len(args) - 3
	args = append(args, w.token, c.mark, markTTL.Milliseconds(), len(c.states), len(c.records), recordTTL.Milliseconds())
	for i := range c.states {
		st := &c.states[i]
		args = append(args, st.Version, st.Used.Requests, int64(st.Used.Tokens), int64(st.Used.NanoUSD),
			st.held.Requests, int64(st.held.Tokens), int64(st.held.NanoUSD), counterTTL(st.Counter.Window).Milliseconds())
	}
	for i := range c.records {
		r := &c.records[i]
		args = append(args, r.ReservationID, r.Deadline.UnixMilli(), record(w.slot, r))
	}
	reply, err := w.run(ctx, w.rebuild, keys, args)
	if err != nil {
		return err
	}
	switch r := (replyReader{reply: reply}); r.integer() {
	case 1:
		return nil
	case 0:
		return ErrOvertaken
	default:
		return fmt.Errorf("%w: %v", ErrReply, reply)
	}
}

// record is the text that reserve.lua writes for the reservation.
func record(app string, o *Open) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %d %d %d", o.Held.Requests, o.Held.Tokens, o.Held.NanoUSD, o.Deadline.UnixMilli())
	if !o.ReservedAt.IsZero() {
		fmt.Fprintf(&b, " %d", o.ReservedAt.UnixMicro())
	}
	for i := range o.Counters {
		b.WriteByte('\n')
		b.WriteString(counterKey(app, &o.Counters[i]))
	}
	return b.String()
}

// Overdue is a reservation in Redis whose deadline has passed.
type Overdue struct {
	ReservationID string
	Deadline      time.Time
	counterKeys   []string
}

// AppsOverdue lists those of the apps that have a reservation in Redis whose deadline lies before the instant.
func (s *Scripts) AppsOverdue(ctx context.Context, apps []string, before time.Time) (overdue []string, err error) {
	for some := range slices.Chunk(apps, appsAtOnce) {
		counts := make([]*redis.IntCmd, len(some))
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, app := range some {
				counts[i] = p.ZCount(ctx, deadlinesKey(app), "-inf", scoreBefore(before))
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look for overdue reservations: %w", err)
		}
		for i, app := range some {
			if counts[i].Val() > 0 {
				overdue = append(overdue, app)
			}
		}
	}
	return overdue, nil
}

// scoreBefore is the end of a range of deadlines, without those at the instant.
func scoreBefore(before time.Time) string { return "(" + strconv.FormatInt(before.UnixMilli(), 10) }

// Overdue lists up to limit reservations of the app whose deadline lies before the instant.
func (s *Scripts) Overdue(ctx context.Context, app string, before time.Time, limit int64) ([]Overdue, error) {
	found, err := s.client.ZRangeByScoreWithScores(ctx, deadlinesKey(app), &redis.ZRangeBy{
		Min: "-inf", Max: scoreBefore(before), Count: limit,
	}).Result()
	if err != nil || len(found) == 0 {
		return nil, wrapOverdue(app, err)
	}
	keys := make([]string, len(found))
	for i, z := range found {
		keys[i] = reservationKey(app, z.Member.(string))
	}
	records, err := s.client.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, wrapOverdue(app, err)
	}
	overdue := make([]Overdue, len(found))
	for i, z := range found {
		overdue[i] = Overdue{ReservationID: z.Member.(string), Deadline: time.UnixMilli(int64(z.Score)).UTC()}
		overdue[i].counterKeys = countersOf(records[i])
	}
	return overdue, nil
}

// countersOf gives the keys that a reservation's record names; none for a tombstone or a missing record.
func countersOf(record any) []string {
	text, _ := record.(string)
	return strings.Split(text, "\n")[1:]
}

func wrapOverdue(app string, err error) error {
	if err != nil {
		return fmt.Errorf("list overdue reservations of %s: %w", app, err)
	}
	return nil
}

// EndOverdue gives back what a reservation holds that the ledger does not know, or knows as ended. Its counters are those
// its record names. Idempotent.
func (s *Scripts) EndOverdue(ctx context.Context, app string, o Overdue) error {
	c := s.newSettleCall(app)
	c.endingKeys = []string{reservationKey(app, o.ReservationID)}
	places := make([]int, len(o.counterKeys))
	for i, key := range o.counterKeys {
		c.addCounter(key, windowGrace, false)
		places[i] = i + 1
	}
	c.endingArgs = []any{o.ReservationID, c.groupOf(places)}
	keys, args := c.build()
	if _, err := s.run(ctx, s.settle, keys, args); err != nil {
		return fmt.Errorf("end overdue %s: %w", o.ReservationID, err)
	}
	return nil
}
