package event

import (
	"encoding/json"
	"fmt"
	"math"
	"sort"
)

// MaxMissing is how many runs of missing sequences a Confirmation lists at most; Through then ends before the next.
const MaxMissing = 1000

// Confirmation is what a settler answers to a producer's request on ConfirmSubject.
type Confirmation struct {
	// Through is up to where Postgres holds the producer's events, except for those in Missing.
	Through uint64 `json:"through"`
	// Missing are the sequences up to Through that are not there, as half-open runs, ascending.
	Missing []Span `json:"missing,omitempty"`
	// Settled says that everything the stream held when the request had arrived was settled before Postgres was read.
	// What the stream acknowledged before the request and Postgres does not hold is then no longer on the stream.
	Settled bool `json:"settled"`
}

// Span is a half-open run of sequences, [From, Until).
type Span struct {
	From  uint64 `json:"from"`
	Until uint64 `json:"until"`
}

// Lacks lists the sequences of s that Postgres does not hold, as half-open runs, ascending.
func (c Confirmation) Lacks(s Span) []Span {
	var lacks []Span
	first := sort.Search(len(c.Missing), func(i int) bool { return c.Missing[i].Until > s.From })
	for _, m := range c.Missing[first:] {
		if m.From >= s.Until {
			break
		}
		lacks = append(lacks, Span{max(m.From, s.From), min(m.Until, s.Until)})
	}
	if tail := (Span{max(c.Through+1, s.From), s.Until}); tail.From < tail.Until {
		lacks = append(lacks, tail)
	}
	return lacks
}

// Encode is the confirmation as it goes over NATS.
func (c Confirmation) Encode() ([]byte, error) { return json.Marshal(c) }

// DecodeConfirmation reads what Encode wrote. An answer that contradicts itself is an error: outboxes delete by it.
func DecodeConfirmation(data []byte) (c Confirmation, err error) {
	if err := json.Unmarshal(data, &c); err != nil {
		return Confirmation{}, fmt.Errorf("decode confirmation: %w", err)
	}
	if c.Through == math.MaxUint64 {
		return Confirmation{}, fmt.Errorf("decode confirmation: through %d is no sequence", c.Through)
	}
	end := uint64(0)
	for _, m := range c.Missing {
		if m.From < max(1, end) || m.Until <= m.From || m.Until > c.Through+1 {
			return Confirmation{}, fmt.Errorf("decode confirmation: run of missing sequences from %d until %d", m.From, m.Until)
		}
		end = m.Until
	}
	return c, nil
}
