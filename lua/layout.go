package lua

import (
	"hash/fnv"
	"math/bits"
	"time"

	"tollgate/ledger"
)

// layout is a ReserveCall in the form that reserve.lua takes: counters by window, budgets by counter.
type layout struct {
	keys    int
	args    []any // three free places, the keys, the arguments
	budgets []int // which of the call's budgets each budget of the script is
}

// letters name the units in the script; those of soft budgets are upper case.
var letters = map[ledger.Unit]string{ledger.UnitRequests: "r", ledger.UnitTokens: "t", ledger.UnitUSD: "n"}

func (b *Budget) letter() string {
	letter := letters[b.Unit]
	if b.Soft {
		letter = string(letter[0] - 'a' + 'A')
	}
	return letter
}

func (s *Scripts) layOut(c *ReserveCall) layout {
	l := layout{args: make([]any, 3, 32+len(c.Counters)*3+len(c.Budgets)+len(c.Rates)*9)}
	windows := windowsOf(c.Counters)
	texts, sets := l.addKeys(c, windows)
	l.args = append(l.args, c.ID, c.Generation, c.TTL.Milliseconds(), (c.TTL + recordTTL).Milliseconds(),
		c.Need.Requests, int64(c.Need.Tokens), int64(c.Need.NanoUSD), texts, sets, len(windows), len(c.Rates))
	l.budgets = make([]int, 0, len(c.Budgets))
	for _, w := range windows {
		l.addWindow(c, w)
	}
	for i := range c.Rates {
		l.addRate(&c.Rates[i], s.leaseTTL)
	}
	return l
}

// window is a distinct window with its counters, by their index.
type window struct {
	ledger.Window
	counters []int
}

func windowsOf(counters []ledger.Counter) []window {
	windows := make([]window, 0, 4)
next:
	for i := range counters {
		w := counters[i].Window
		for j := range windows {
			if windows[j].Start.Equal(w.Start) && windows[j].End.Equal(w.End) {
				windows[j].counters = append(windows[j].counters, i)
				continue next
			}
		}
		windows = append(windows, window{w, append(make([]int, 0, len(counters)), i)})
	}
	return windows
}

func (l *layout) addKeys(c *ReserveCall, windows []window) (texts, sets int) {
	l.args = append(l.args, markKey(c.App), markKey(SharedSlot), reservationKey(c.App, c.ID))
	setKeys := make([]string, 0, len(c.Rates))
	for i := range c.Rates {
		text, set := rateKeys(c.App, &c.Rates[i].Rate)
		if text != "" {
			l.args = append(l.args, text)
			texts++
		}
		if set != "" {
			setKeys = append(setKeys, set)
		}
	}
	l.args = append(l.args, deadlinesKey(c.App))
	for _, set := range setKeys {
		l.args = append(l.args, set)
	}
	for _, w := range windows {
		for _, i := range w.counters {
			l.args = append(l.args, counterKey(c.App, &c.Counters[i]))
		}
	}
	l.keys = len(l.args) - 3
	return texts, len(setKeys)
}

func (l *layout) addWindow(c *ReserveCall, w window) {
	if w.End.IsZero() {
		l.args = append(l.args, 0, 0, totalTTL.Milliseconds(), len(w.counters))
	} else {
		l.args = append(l.args, w.Start.UnixMilli(), w.End.UnixMilli(), w.End.Add(windowGrace).UnixMilli(), len(w.counters))
	}
	for _, i := range w.counters {
		place := len(l.args)
		l.args = append(l.args, "")
		names := ""
		for j := range c.Budgets {
			if b := &c.Budgets[j]; b.Counter == i {
				names += b.letter()
				l.args = append(l.args, b.Limit)
				l.budgets = append(l.budgets, j)
			}
		}
		l.args[place] = names
	}
}

func (l *layout) addRate(r *Rate, leaseTTL time.Duration) {
	kind, soft := kindOf(&r.Rate), 0
	if r.Soft {
		soft = 1
	}
	l.args = append(l.args, kind, letters[r.Unit], slotName(r.Tier), soft)
	l.args = append(l.args, figures(r, kind, leaseTTL)...)
}

// figures are the three of a rate that its kind is judged by.
func figures(r *Rate, kind string, leaseTTL time.Duration) []any {
	us := r.Window.Microseconds()
	switch kind {
	case kindBucket:
		perUnit, drain := bucketScale(r.Amount, r.Window, r.Burst)
		return []any{perUnit, drain, r.Burst}
	case kindWindow:
		return []any{r.Amount, us, windowOffset(&r.Rate, us)}
	case kindSliding:
		return []any{r.Amount, us, slidingStep(us)}
	case kindInflight:
		return []any{r.Amount, leaseTTL.Milliseconds(), 0}
	default:
		return []any{r.Amount, us, 0}
	}
}

// slotName is how the scripts call the slot of a tier's state.
func slotName(t ledger.Tier) string {
	if t.Shared() {
		return "shared"
	}
	return "app"
}

// windowOffset is when a subject's fixed windows begin, in microseconds after a multiple of their length: spread over it, so
// that the windows of all subjects do not turn over at once, and the same on every gateway.
func windowOffset(r *ledger.Rate, length int64) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(r.Tier)) // a hash never fails
	_, _ = h.Write([]byte(r.Subject))
	return int64(h.Sum64() % uint64(length))
}

// slidingSteps is into how many sub-windows a sliding counter cuts its window. The oldest counts whole until it has left, so
// room comes free by up to a twentieth of the window too late.
const slidingSteps = 20

func slidingStep(length int64) int64 { return (length + slidingSteps - 1) / slidingSteps }

// bucketScale gives a bucket's arithmetic in whole ticks: one unit is perUnit ticks, one microsecond drains drain ticks, so
// amount units drain in exactly one window. Where the ticks of a full bucket would pass 2^52 they are made coarser and the
// unit rounded up: such a bucket refills too slowly by less than one part in perUnit, never too fast.
func bucketScale(amount int64, window time.Duration, burst int64) (perUnit, drain int64) {
	perUnit, drain = window.Microseconds(), amount
	if d := gcd(perUnit, drain); d > 1 {
		perUnit, drain = perUnit/d, drain/d
	}
	whole, full := uint64(perUnit), uint64(drain)
	for perUnit > most/(burst+1) && drain > 1 {
		drain /= 2
		hi, lo := bits.Mul64(whole, uint64(drain))
		quotient, rest := bits.Div64(hi, lo, full)
		perUnit = int64(quotient)
		if rest > 0 {
			perUnit++
		}
	}
	return perUnit, drain
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
