package provider

import "sync"

// A piece up to shortPiece bytes is merged by looking for the lowest rank again for each merge, which is the quickest way for
// words. Above it the work would grow with the square of the length, and a text without a blank is one piece: a heap keeps
// it down to n log n. What is longer than longPiece is cut there, so that the memory is bounded; a cut makes at most a token
// or two more of 8,192 bytes.
const (
	shortPiece = 64
	longPiece  = 8 << 10
)

// merge counts the tokens of one piece that is none itself, as long as there is work, and says how many bytes it has done,
// which is never none.
func (v *vocabulary) merge(piece string, work *int) (tokens, done int) {
	if len(piece) <= shortPiece {
		*work -= mergeWork * len(piece)
		return v.mergeShort(piece), len(piece)
	}
	m := mergers.Get().(*merger)
	defer mergers.Put(m)
	for done == 0 || done < len(piece) && *work > 0 {
		part := piece[done:min(len(piece), done+longPiece)]
		*work -= mergeWork * len(part)
		tokens += m.merge(v, part)
		done += len(part)
	}
	return tokens, done
}

// mergeShort merges with a scan for each merge. starts[i] is where part i begins, ranks[i] the rank of parts i and i+1 as one.
func (v *vocabulary) mergeShort(piece string) int {
	var starts [shortPiece + 1]uint8
	var ranks [shortPiece + 1]uint32
	parts := len(piece)
	for i := range parts {
		starts[i] = uint8(i)
		ranks[i] = noRank
		if i+1 < parts {
			ranks[i] = v.rank(piece[i : i+2])
		}
	}
	starts[parts] = uint8(parts)
	rank := func(i int) uint32 {
		if i+2 > parts {
			return noRank
		}
		return v.rank(piece[starts[i]:starts[i+2]])
	}
	for {
		lowest, at := uint32(noRank), 0
		for i, r := range ranks[:parts] {
			if r < lowest {
				lowest, at = r, i
			}
		}
		if lowest == noRank {
			return parts
		}
		copy(starts[at+1:parts], starts[at+2:parts+1])
		copy(ranks[at+1:parts-1], ranks[at+2:parts])
		parts--
		ranks[at] = rank(at)
		if at > 0 {
			ranks[at-1] = rank(at - 1)
		}
	}
}

// merger is the room for merging one long piece.
type merger struct {
	nodes []node
	queue []candidate // a heap, the lowest rank first, the leftmost of equals
}

// node is a part: it begins at its index and ends at next. rank is that of this part and the next as one.
type node struct {
	previous, next int32
	rank           uint32
}

type candidate struct {
	rank uint32
	at   int32
}

var mergers = sync.Pool{New: func() any { return &merger{} }}

func (m *merger) merge(v *vocabulary, piece string) int {
	parts := len(piece)
	m.nodes, m.queue = m.nodes[:0], m.queue[:0]
	for i := range parts {
		m.nodes = append(m.nodes, node{int32(i) - 1, int32(i) + 1, noRank})
		if i+1 < parts {
			m.rank(v, piece, int32(i), int32(i)+2)
		}
	}
	for len(m.queue) > 0 {
		c := m.pop()
		n := &m.nodes[c.at]
		if n.rank != c.rank {
			continue // one of the two has been merged otherwise
		}
		gone := &m.nodes[n.next]
		n.next, gone.rank = gone.next, noRank
		if int(n.next) < len(piece) {
			m.nodes[n.next].previous = c.at
			m.rank(v, piece, c.at, m.nodes[n.next].next)
		} else {
			n.rank = noRank
		}
		if n.previous >= 0 {
			m.rank(v, piece, n.previous, n.next)
		}
		parts--
	}
	return parts
}

// rank notes what the part at and its neighbour, which ends at end, make together.
func (m *merger) rank(v *vocabulary, piece string, at, end int32) {
	rank := v.rank(piece[at:end])
	m.nodes[at].rank = rank
	if rank != noRank {
		m.push(candidate{rank, at})
	}
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

func (m *merger) push(c candidate) {
	m.queue = append(m.queue, c)
	for i := len(m.queue) - 1; i > 0; {
		up := (i - 1) / 2
		if !c.before(m.queue[up]) {
			return
		}
		m.queue[i], m.queue[up] = m.queue[up], c
		i = up
	}
}

func (m *merger) pop() candidate {
	first, last := m.queue[0], m.queue[len(m.queue)-1]
	m.queue = m.queue[:len(m.queue)-1]
	for i := 0; ; {
		down := 2*i + 1
		if down >= len(m.queue) {
			if i < len(m.queue) {
				m.queue[i] = last
			}
			return first
		}
		if right := down + 1; right < len(m.queue) && m.queue[right].before(m.queue[down]) {
			down = right
		}
		if !m.queue[down].before(last) {
			m.queue[i] = last
			return first
		}
		m.queue[i] = m.queue[down]
		i = down
	}
}
