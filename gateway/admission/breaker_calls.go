package admission

import "time"

// recentSpan is how long calls count for the share of outages: its parts leave one by one, so it is the last nine to ten
// seconds.
const (
	recentParts = 10
	recentPart  = time.Second
)

// recentCalls counts calls and outages of the last seconds.
type recentCalls struct {
	parts [recentParts]struct{ index, calls, outages int64 }
}

func (r *recentCalls) add(now time.Duration, outage bool) {
	index := int64(now / recentPart)
	part := &r.parts[index%recentParts]
	if part.index != index {
		part.index, part.calls, part.outages = index, 0, 0
	}
	part.calls++
	if outage {
		part.outages++
	}
}

func (r *recentCalls) sum(now time.Duration) (calls, outages int64) {
	index := int64(now / recentPart)
	for i := range r.parts {
		if part := &r.parts[i]; part.index > index-recentParts {
			calls += part.calls
			outages += part.outages
		}
	}
	return calls, outages
}

// paceCalls is over how many answers the pace is taken.
const paceCalls = 64

// pace knows how long the last answers took, and how many of them took longer than allowed.
type pace struct {
	most  time.Duration
	took  [paceCalls]time.Duration
	known int // answers in took
	next  int // where the next one goes
	slow  int // of those in took
}

// limit sets what is slow, also for the answers that are known.
func (p *pace) limit(most time.Duration) {
	p.most, p.slow = most, 0
	for _, took := range p.took[:p.known] {
		if took > most {
			p.slow++
		}
	}
}

func (p *pace) add(took time.Duration) (slow bool) {
	if p.known == paceCalls {
		if p.took[p.next] > p.most {
			p.slow--
		}
	} else {
		p.known++
	}
	p.took[p.next] = took
	p.next = (p.next + 1) % paceCalls
	if took > p.most {
		p.slow++
		return true
	}
	return false
}

// tooSlow reports whether more than a tenth of enough answers were slow.
func (p *pace) tooSlow() bool { return p.known >= leastCalls && p.slow*10 > p.known }

func (p *pace) forget() { p.known, p.next, p.slow = 0, 0, 0 }
