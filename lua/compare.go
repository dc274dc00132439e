package lua

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"tollgate/ledger"
)

// Glance is what Redis had of one slot at one time.
type Glance struct {
	slot     string
	counters map[string][]any // key -> version, used, held
	known    map[string]bool  // reservations of the slot
}

// glanceChunk bounds one trip of Look.
const glanceChunk = 500

// Look reads what Redis has of the slot's counters, those that the reservations name included, and whether it knows the
// reservations. It writes nothing.
func (s *Scripts) Look(ctx context.Context, slot string, rows []ledger.CounterState, open []Open) (*Glance, error) {
	g := &Glance{slot: slot, counters: map[string][]any{}, known: map[string]bool{}}
	states := withHeld(RebuildCall{Slot: slot, Counters: rows, Open: open})
	if slot == SharedSlot {
		open = nil // their records stand in the slots of their apps
	}
	for len(states) > 0 || len(open) > 0 {
		n, m := min(glanceChunk, len(states)), min(glanceChunk, len(open))
		counters, records := make([]*redis.SliceCmd, n), make([]*redis.IntCmd, m)
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range counters {
				counters[i] = p.HMGet(ctx, counterKey(slot, &states[i].Counter), "version",
					"used_requests", "used_tokens", "used_nanousd", "held_requests", "held_tokens", "held_nanousd")
			}
			for i := range records {
				records[i] = p.Exists(ctx, reservationKey(slot, open[i].ReservationID))
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", slot, err)
		}
		for i := range counters {
			g.counters[counterKey(slot, &states[i].Counter)] = counters[i].Val()
		}
		for i := range records {
			g.known[open[i].ReservationID] = records[i].Val() > 0
		}
		states, open = states[n:], open[m:]
	}
	return g, nil
}

// Lost counts what Redis is wrong about: a counter that is missing although it was used, or has other amounts than the ledger's at
// its version, or a newer version than it, or holds less than the reservations do, and a reservation that is unknown. Write-backs
// do not mend those. The reservations must have been open in the ledger before Look and after it. Without settled, settlements may
// have gone on meanwhile: then a newer version is no fault, and what is missing may be about to be written.
func (g *Glance) Lost(rows []ledger.CounterState, open []Open, settled bool) (lost int) {
	for _, state := range withHeld(RebuildCall{Slot: g.slot, Counters: rows, Open: open}) {
		if fields := g.counters[counterKey(g.slot, &state.Counter)]; wrong(&state.CounterState, fields, settled) || less(fields[4:], state.held) {
			lost++
		}
	}
	for i := range open {
		if known, looked := g.known[open[i].ReservationID]; looked && !known {
			lost++
		}
	}
	return lost
}

// wrong judges one counter by its version and its used amounts.
func wrong(row *ledger.CounterState, fields []any, settled bool) bool {
	used := figuresOf(row.Used)
	version, _ := fields[0].(string)
	if version == "" {
		return used != [3]int64{}
	}
	known, err := strconv.ParseInt(version, 10, 64)
	if err != nil || known > row.Version {
		return err != nil || settled
	}
	for i, amount := range used {
		if known == row.Version && fields[1+i] != strconv.FormatInt(amount, 10) {
			return true
		}
	}
	return false
}

// less reports whether a counter's held fields show less than an amount. A field that is missing shows 0.
func less(fields []any, held ledger.Amounts) bool {
	for i, amount := range figuresOf(held) {
		text, _ := fields[i].(string)
		if n, err := strconv.ParseInt(text, 10, 64); text != "" && err != nil || n < amount {
			return true
		}
	}
	return false
}

func figuresOf(a ledger.Amounts) [3]int64 {
	return [3]int64{a.Requests, int64(a.Tokens), int64(a.NanoUSD)}
}
