package admission

import "time"

// How finely spans are cut. More parts waste less of the allowance and take more memory.
const (
	secondParts = 10
	minuteParts = 20
)

// spanOfSecond and spanOfMinute are windows of that length that move with time.
type (
	spanOfSecond struct {
		parts [secondParts + 1]int64
		last  int64
	}
	spanOfMinute struct {
		parts [minuteParts + 1]int64
		last  int64
	}
)

func (s *spanOfSecond) span() span { return span{s.parts[:], &s.last, time.Second / secondParts} }
func (s *spanOfMinute) span() span { return span{s.parts[:], &s.last, time.Minute / minuteParts} }

func (s *spanOfSecond) add(now time.Duration, n int64) { s.span().add(now, n) }
func (s *spanOfMinute) add(now time.Duration, n int64) { s.span().add(now, n) }

func (s *spanOfSecond) idle(now time.Duration) bool { return s.span().idle(now) }
func (s *spanOfMinute) idle(now time.Duration) bool { return s.span().idle(now) }

func (s *spanOfSecond) wait(now time.Duration, limit, n int64) time.Duration {
	return s.span().wait(now, limit, n)
}

func (s *spanOfMinute) wait(now time.Duration, limit, n int64) time.Duration {
	return s.span().wait(now, limit, n)
}

// span counts what was used in the parts of time that a window of length (len(parts)-1) * each can touch: the part that now
// lies in, and as many before it as the window has. The oldest counts whole, although the window may have left most of it: the
// sum is never below what the window holds. Part p of time is at parts[p % len(parts)].
type span struct {
	parts []int64
	last  *int64 // the latest part of time that was counted in
	each  time.Duration
}

func (s span) index(now time.Duration) int64 { return int64(now / s.each) }

// at is what was used in one part of the window that ends now or later.
func (s span) at(part int64) int64 {
	if part < 0 || part > *s.last {
		return 0
	}
	return s.parts[part%int64(len(s.parts))]
}

func (s span) add(now time.Duration, n int64) {
	index, size := s.index(now), int64(len(s.parts))
	for part := max(*s.last+1, index-size+1); part <= index; part++ {
		s.parts[part%size] = 0
	}
	*s.last = index
	s.parts[index%size] += n
}

// wait is after what time n more fit the limit, 0 when they do now. n must not be above the limit.
func (s span) wait(now time.Duration, limit, n int64) time.Duration {
	index, size := s.index(now), int64(len(s.parts))
	var used int64
	for part := index - size + 1; part <= index; part++ {
		used += s.at(part)
	}
	// A limit that was lowered may be below what is used.
	for part := index - size + 1; used > limit-n; part++ {
		used -= s.at(part)
		if used <= limit-n {
			return time.Duration(part+size)*s.each - now
		}
	}
	return 0
}

func (s span) idle(now time.Duration) bool {
	return s.index(now) >= *s.last+int64(len(s.parts))
}
