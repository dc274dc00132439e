package lua

import (
	"encoding/binary"
	"time"

	"tollgate/ledger"
)

// settleCall gathers the keys and arguments of one run of settle.lua.
type settleCall struct {
	app          string
	tombstoneTTL time.Duration
	index        map[string]int         // counter key -> its 1-based place
	known        map[ledger.Counter]int // the same, without the building of the key
	counterKeys  []string
	counterArgs  []any          // six a counter
	groups       map[string]int // the places of a group's counters -> its own
	groupArgs    []any
	strings      keyList
	stringArgs   []any // three a string
	sets         keyList
	leaseSets    keyList
	leases       [][]any // ids, by lease set
	openKeys     []string
	openArgs     []any
	endingKeys   []string
	endingArgs   []any
	corrections  []any
	nCorrections int
}

// keyList is a list of distinct keys.
type keyList struct {
	keys  []string
	index map[string]int
}

// place is the 1-based place of the key, 0 for none.
func (l *keyList) place(key string) int {
	if key == "" {
		return 0
	}
	place, ok := l.index[key]
	if !ok {
		if l.index == nil {
			l.index = map[string]int{}
		}
		l.keys = append(l.keys, key)
		place = len(l.keys)
		l.index[key] = place
	}
	return place
}

func (s *Scripts) newSettleCall(app string) *settleCall {
	return &settleCall{
		app: app, tombstoneTTL: s.tombstoneTTL,
		index: map[string]int{}, known: map[ledger.Counter]int{}, groups: map[string]int{},
	}
}

// counter gives the place of a counter, adding it without a version when it was not named by state.
func (c *settleCall) counter(counter *ledger.Counter) int {
	place, ok := c.known[*counter]
	if ok {
		return place
	}
	key := counterKey(c.app, counter)
	place, ok = c.index[key]
	if !ok {
		place = len(c.counterKeys) + 1
		c.index[key] = place
		c.addCounter(key, counterTTL(counter.Window), counter.Window.End.IsZero())
	}
	c.known[*counter] = place
	return place
}

// addCounter takes how long the counter lives from its first write or, renewed, from this one.
func (c *settleCall) addCounter(key string, ttl time.Duration, renewed bool) {
	flag := 0
	if renewed {
		flag = 1
	}
	c.counterKeys = append(c.counterKeys, key)
	c.counterArgs = append(c.counterArgs, 0, 0, 0, 0, ttl.Milliseconds(), flag)
}

func (c *settleCall) state(s *ledger.CounterState) {
	place := c.counter(&s.Counter)
	copy(c.counterArgs[6*(place-1):], []any{s.Version, s.Used.Requests, int64(s.Used.Tokens), int64(s.Used.NanoUSD)})
}

// group gives the place of a list of counters. Most reservations of a call are held on the same ones, so each list is named once.
func (c *settleCall) group(counters []ledger.Counter) int {
	places := make([]int, 0, 32)
	for i := range counters {
		places = append(places, c.counter(&counters[i]))
	}
	return c.groupOf(places)
}

func (c *settleCall) groupOf(places []int) int {
	name := make([]byte, 0, 64)
	for _, place := range places {
		name = binary.AppendUvarint(name, uint64(place))
	}
	group, ok := c.groups[string(name)]
	if !ok {
		group = len(c.groups) + 1
		c.groups[string(name)] = group
		c.groupArgs = append(c.groupArgs, len(places))
		for _, place := range places {
			c.groupArgs = append(c.groupArgs, place)
		}
	}
	return group
}

func (c *settleCall) open(o *Open) {
	c.openKeys = append(c.openKeys, reservationKey(c.app, o.ReservationID))
	c.openArgs = append(c.openArgs, o.ReservationID, o.Deadline.UnixMilli(),
		o.Held.Requests, int64(o.Held.Tokens), int64(o.Held.NanoUSD), c.group(o.Counters))
}

func (c *settleCall) ending(i int, e *Ending) {
	c.endingKeys = append(c.endingKeys, reservationKey(c.app, e.ReservationID))
	c.endingArgs = append(c.endingArgs, e.ReservationID, c.group(e.Counters))
	for j := range e.Rates {
		c.rate(i, e, &e.Rates[j])
	}
}

// rate ends a lease, or corrects what was charged. Requests are counted when they are admitted; only tokens are known better
// afterwards.
func (c *settleCall) rate(i int, e *Ending, r *ledger.Rate) {
	text, set := rateKeys(c.app, r)
	switch kind := kindOf(r); {
	case kind == kindInflight:
		place := c.leaseSets.place(set)
		if place > len(c.leases) {
			c.leases = append(c.leases, nil)
		}
		c.leases[place-1] = append(c.leases[place-1], e.ReservationID)
	case kind != "" && r.Unit == ledger.UnitTokens && e.Held.Tokens != e.Spent.Tokens:
		place := c.strings.place(text)
		if place > len(c.stringArgs)/3 {
			c.stringArgs = append(c.stringArgs, kind, c.sets.place(set), slotName(r.Tier))
		}
		c.corrections = append(c.corrections, i+1, place, int64(e.Held.Tokens), int64(e.Spent.Tokens))
		c.nCorrections++
	}
}

func (c *settleCall) build() (keys int, args []any) {
	args = make([]any, 3, 24+len(c.counterKeys)*7+len(c.groupArgs)+len(c.strings.keys)*4+len(c.sets.keys)+
		2*len(c.leases)+len(c.openArgs)+len(c.endingArgs)+len(c.corrections)+len(c.openKeys)+2*len(c.endingKeys))
	args = append(args, markKey(c.app), markKey(SharedSlot), deadlinesKey(c.app))
	for _, list := range [][]string{c.counterKeys, c.strings.keys, c.sets.keys, c.leaseSets.keys, c.openKeys, c.endingKeys} {
		for _, key := range list {
			args = append(args, key)
		}
	}
	keys = len(args) - 3
	args = append(args, len(c.counterKeys), len(c.strings.keys), len(c.sets.keys), len(c.leases), len(c.openKeys),
		len(c.endingKeys), c.nCorrections, len(c.groups), c.tombstoneTTL.Milliseconds(), recordTTL.Milliseconds())
	args = append(args, c.counterArgs...)
	args = append(args, c.groupArgs...)
	args = append(args, c.stringArgs...)
	for _, ids := range c.leases {
		args = append(append(args, len(ids)), ids...)
	}
	args = append(args, c.openArgs...)
	args = append(args, c.endingArgs...)
	args = append(args, c.corrections...)
	return keys, args
}

// counterTTL is how long a counter that is made or renewed now is kept; a window's counter outlives the window.
func counterTTL(w ledger.Window) time.Duration {
	if w.End.IsZero() {
		return totalTTL
	}
	return max(time.Until(w.End), 0) + windowGrace
}
