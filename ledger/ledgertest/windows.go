package ledgertest

import (
	"hash/fnv"
	"slices"
	"time"
)

// window is a fixed window: what was admitted since its start.
type window struct {
	start  time.Time
	length time.Duration
	used   int64
}

// sliding is a sliding counter: what was admitted in each sub-window, by its number since 1970.
type sliding struct {
	step   int64 // µs
	newest int64
	counts map[int64]int64
}

// floor is a / b rounded down, for b > 0.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// windowAt is the fixed window that contains now, or a later one that has been seen.
func (r *Reference) windowAt(now time.Time, app string, rate Rate) *window {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(string(rate.Tier) + rate.Subject)) // a hash never fails
	length := rate.Window.Microseconds()
	offset := int64(hash.Sum64() % uint64(length))
	start := time.UnixMicro(floor(now.UnixMicro()-offset, length)*length + offset)
	w := &window{start: start, length: rate.Window}
	if known, ok := r.windows[rateOf(app, rate.Rate)]; ok && !known.start.Before(start) {
		w.start, w.used = known.start, known.used
	}
	return w
}

func (r *Reference) judgeWindow(now time.Time, app string, rate Rate, need int64) RateFigures {
	w := r.windowAt(now, app, rate)
	left := w.start.Add(rate.Window).Sub(now)
	if lost := r.marks[slotOf(app, rate.Tier)].lost; !w.start.After(lost) {
		return RateFigures{Used: rate.Amount, Wait: left}
	}
	f := RateFigures{Fits: w.used+need <= rate.Amount, Used: w.used}
	if !f.Fits {
		f.Wait = left
	}
	return f
}

// slidingAt is a copy of the counter with the sub-window that contains now, or a later one that has been seen, as its newest,
// without those that lie before the window.
func (r *Reference) slidingAt(now time.Time, app string, rate Rate) *sliding {
	step := (rate.Window.Microseconds() + 19) / 20
	s := &sliding{step: step, newest: floor(now.UnixMicro(), step), counts: map[int64]int64{}}
	known, ok := r.sliding[rateOf(app, rate.Rate)]
	if !ok {
		return s
	}
	s.newest = max(s.newest, known.newest)
	for i, n := range known.counts {
		if s.leaves(i, rate.Window) > max(now.UnixMicro(), s.newest*step) {
			s.counts[i] = n
		}
	}
	return s
}

// leaves is the first microsecond whose window does not overlap the sub-window any more.
func (s *sliding) leaves(i int64, length time.Duration) int64 {
	return (i+1)*s.step - 1 + length.Microseconds()
}

func (r *Reference) judgeSliding(now time.Time, app string, rate Rate, need int64) RateFigures {
	if lost := r.marks[slotOf(app, rate.Tier)].lost; !lost.IsZero() && now.Before(lost.Add(rate.Window)) {
		return RateFigures{Used: rate.Amount, Wait: lost.Add(rate.Window).Sub(now)}
	}
	s := r.slidingAt(now, app, rate)
	var used int64
	var indexes []int64
	for i, n := range s.counts {
		used += n
		indexes = append(indexes, i)
	}
	f := RateFigures{Fits: used+need <= rate.Amount, Used: used}
	if !f.Fits {
		f.Wait = rate.Window
		slices.Sort(indexes)
		for _, i := range indexes {
			if used -= s.counts[i]; used+need <= rate.Amount {
				f.Wait = time.UnixMicro(s.leaves(i, rate.Window)).Sub(now)
				break
			}
		}
	}
	return f
}

// correct changes the sub-window that a reservation was charged to, if there is one.
func (s *sliding) correct(reserved time.Time, difference int64) {
	i := floor(reserved.UnixMicro(), s.step)
	if n, ok := s.counts[i]; ok {
		s.counts[i] = max(0, n+difference)
	}
}

func (r *Reference) judgeInflight(now time.Time, app string, rate Rate) RateFigures {
	if lost := r.marks[slotOf(app, rate.Tier)].lost; !lost.IsZero() && now.Before(lost.Add(r.LeaseTTL)) {
		return RateFigures{Used: rate.Amount, Wait: lost.Add(r.LeaseTTL).Sub(now)}
	}
	f := RateFigures{}
	for _, lapses := range r.inflight[rateOf(app, rate.Rate)] {
		if lapses.After(now.Truncate(time.Millisecond)) {
			f.Used++
		}
	}
	if f.Fits = f.Used+1 <= rate.Amount; !f.Fits {
		f.Wait = time.Second
	}
	return f
}

// lease gives a lease its whole life. Leases lapse at whole milliseconds.
func (r *Reference) lease(now time.Time, l Lease) {
	key := rateOf(l.App, l.Rate)
	if r.inflight[key] == nil {
		r.inflight[key] = map[string]time.Time{}
	}
	if lapses := now.Truncate(time.Millisecond).Add(r.LeaseTTL); lapses.After(r.inflight[key][l.ID]) {
		r.inflight[key][l.ID] = lapses
	}
}

// Renew gives leases their whole life again, also those that were lost, but none whose reservation has ended.
func (r *Reference) Renew(now time.Time, leases []Lease) {
	for _, l := range leases {
		if known := r.reservations[reservationID{l.App, l.ID}]; known == nil || !known.ended {
			r.lease(now, l)
		}
	}
}

// Release ends leases.
func (r *Reference) Release(leases []Lease) {
	for _, l := range leases {
		delete(r.inflight[rateOf(l.App, l.Rate)], l.ID)
	}
}
