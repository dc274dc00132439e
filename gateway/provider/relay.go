package provider

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tidwall/gjson"

	"tollgate/ledger"
)

// Answer is what metering learned from one answer.
type Answer struct {
	Reading
	Others     []ledger.ModelUsage // of other models, beside Usage
	Cost       *ledger.NanoUSD     // as the provider tells it, nil where it does not
	Tier       ledger.ServiceTier
	Model      string // the model that served it, "" when not said
	UpstreamID string
	Events     int64         // events of a stream that carried a piece of the answer
	Output     ledger.Tokens // what a stream carried of the answer, counted by the model's tokenizer
	FirstByte  bool          // something reached the caller
	Finish     ledger.Reason
	said       *tally // nil but while a stream is relayed
}

// ErrUpstreamCut is wrapped by errors for an answer that broke off.
var ErrUpstreamCut = errors.New("the provider's answer broke off")

// byteOrderMark may stand before any text, and means nothing.
var byteOrderMark = []byte("\xef\xbb\xbf")

// wholeJSON reports whether data is one JSON value that can be read: an event that was cut in the middle of a number reads as
// another one.
func wholeJSON(data []byte) bool { return !tooDeep(data) && gjson.ValidBytes(data) }

// name is a name that the provider gives, cut to MaxName bytes: it goes into the event that tells what was spent, and an
// event that is larger than the stream takes would leave the spend unrecorded.
func name(value gjson.Result) string {
	if len(value.Str) <= MaxName {
		return value.Str
	}
	return strings.ToValidUTF8(value.Str[:MaxName], "")
}

// Sink is where a stream goes: the caller's connection.
type Sink interface {
	io.Writer
	Flush()
}

// Passing says how a stream is passed on. The zero value passes all of it on, and stops reading when the caller leaves.
type Passing struct {
	Model    string      // the provider's name for the model: what comes is counted by its tokenizer
	Withhold bool        // keep back what only metering asked for
	Drain    func() bool // asked once, when the caller has left: whether the rest is read for its usage alone; nil is no
	Ceiling  *Ceiling    // nil: the stream may grow as it likes
}

// Ceiling is how large a stream may grow.
type Ceiling struct {
	Input  ledger.Tokens // held for the input; what the provider reports above it takes from Output
	Output ledger.Tokens // held for the answer
	// Bounded says that the answer is not meant to be larger than Output: more is asked for when it is, and not before.
	Bounded bool
	// Extend is asked for more before what is held is used up: for need in all, at least. It gives what is held then, or why the
	// stream must end.
	Extend func(need ledger.Tokens) (held ledger.Tokens, stop *Stop)
}

// slack is how much of what is held is left when more is asked for, beside what the largest event was: what comes meanwhile.
const slack = 16

func (t *tally) slack() ledger.Tokens { return slack + ledger.Tokens(t.largest/2) }

// Bounds on what is held back of an event that is not whole yet: a larger one, or one that comes when all answers together hold
// back too much, is passed on in pieces, unmetered. An image is one event.
const (
	bufferSize  = 16 << 10 // that each answer has anyway
	maxEvent    = 16 << 20
	maxHeldBack = 256 << 20
)

// heldBack is what all answers, streams and plain ones, have beyond their first buffers.
var heldBack atomic.Int64

// stream relays the events of a stream.
type stream struct {
	Passing
	framing framing
	sink    Sink
	meter   meter
	answer  Answer
	buffer  []byte
	full    bool // no more can be held back
	done    bool // what has come is a whole answer
	gone    bool // the caller does not take any more
	drains  bool // and the rest is read all the same
	stop    *Stop
}

// RelayStream passes server-sent events on as they arrive and meters them. The error wraps ErrUpstreamCut when the provider broke
// off; the caller must then see its connection aborted. A stream that its ceiling ends is complete for the caller; the reading
// ends at once, and the provider must be told by closing its connection.
func (e Endpoint) RelayStream(sink Sink, body io.Reader, how Passing) (Answer, error) {
	return e.relay(&stream{Passing: how, framing: sseFraming{}, sink: sink}, body)
}

// RelayList passes the elements of a JSON list on as they arrive, and meters them as RelayStream does events.
func (e Endpoint) RelayList(sink Sink, body io.Reader, how Passing) (Answer, error) {
	how.Withhold = false
	return e.relay(&stream{Passing: how, framing: listFraming{}, sink: sink}, body)
}

func (e Endpoint) relay(s *stream, body io.Reader) (Answer, error) {
	s.meter = apis[e.Path].meter()
	if _, canEnd := s.meter.(ender); !canEnd {
		s.Ceiling = nil
	}
	s.answer.said = newTally(s.Model)
	s.buffer = make([]byte, 0, bufferSize)
	err := s.relay(body)
	heldBack.Add(int64(bufferSize - cap(s.buffer)))
	s.meter.close(&s.answer)
	s.answer.Output, s.answer.said = s.answer.said.tokens(), nil
	return s.answer, err
}

func (s *stream) relay(body io.Reader) error {
	for {
		s.makeRoom()
		n, err := body.Read(s.buffer[len(s.buffer):cap(s.buffer)])
		s.buffer = s.buffer[:len(s.buffer)+n]
		used := s.take(s.buffer, err != nil)
		s.buffer = s.buffer[:copy(s.buffer, s.buffer[used:])]
		switch {
		case s.stop != nil:
			s.finish()
			return nil
		case s.gone && !s.drained():
			s.answer.Finish = ledger.ReasonClientGone
			return nil
		case err != nil:
			return s.end(err)
		}
	}
}

// drained asks once whether the rest is read without a caller.
func (s *stream) drained() bool {
	if !s.drains {
		s.drains = s.Drain != nil && s.Drain()
	}
	return s.drains
}

// makeRoom makes the buffer larger when it is full of an event that is not whole, and small again behind that.
func (s *stream) makeRoom() {
	size := cap(s.buffer)
	switch {
	case len(s.buffer) == size:
		size *= 2
	case size > bufferSize && len(s.buffer) <= bufferSize/2:
		size = bufferSize
	default:
		return
	}
	more := int64(size - cap(s.buffer))
	if all := heldBack.Add(more); size > maxEvent || more > 0 && all > maxHeldBack {
		heldBack.Add(-more)
		s.full = true
		s.buffer = s.buffer[:copy(s.buffer, s.buffer[s.take(s.buffer, false):])]
		s.full = false
		return
	}
	s.buffer = append(make([]byte, 0, size), s.buffer...)
}

// finish ends the stream for the caller as its protocol ends an answer that has reached its bound.
func (s *stream) finish() {
	s.answer.Finish = s.stop.Reason
	if s.gone {
		return
	}
	events := s.meter.(ender).end(s.stop, &s.answer, s.answer.said.tokens()) // without one there is no ceiling
	if s.write(s.framing.closing(events)) {
		s.sink.Flush()
	}
}

// output is what has come of the answer, with what the input turned out to be larger than was held for it.
func (s *stream) output() ledger.Tokens {
	return max(s.answer.said.tokens(), s.answer.Usage.OutputTotal()) + s.overrun()
}

func (s *stream) overrun() ledger.Tokens {
	if s.Ceiling == nil {
		return 0
	}
	return max(0, s.answer.Usage.InputTotal()-s.Ceiling.Input)
}

// outgrown asks for more where the event that was just read needs it, and reports whether the stream must end. Only what is
// near the ceiling is counted exactly. The event that made the answer whole is not judged: nothing is left to be cut; should more
// come behind it all the same, that is.
func (s *stream) outgrown(pieces int64, wasDone bool) bool {
	c, said := s.Ceiling, s.answer.said
	if c == nil || s.done && !wasDone || said.pieces == pieces {
		return false
	}
	left := ledger.Tokens(0)
	if !c.Bounded {
		left = said.slack()
	}
	if max(said.most(), s.answer.Usage.OutputTotal())+s.overrun() <= c.Output-left {
		return false
	}
	output := s.output()
	if output <= c.Output-left {
		return false
	}
	c.Bounded = false
	c.Output, s.stop = c.Extend(output + said.slack())
	return s.stop != nil
}

func (s *stream) end(err error) error {
	switch {
	case s.gone:
		s.answer.Finish = ledger.ReasonClientGone
	case !errors.Is(err, io.EOF):
		s.answer.Finish = cutReason(err)
		return fmt.Errorf("%w: %w", ErrUpstreamCut, err)
	case !s.done:
		s.answer.Finish = ledger.ReasonUpstreamCut
		return fmt.Errorf("%w: it ended without its last event", ErrUpstreamCut)
	case s.answer.Finish == "":
		s.answer.Finish = ledger.ReasonOK
	}
	return nil
}

// take passes on every whole event of buffer, and the rest too when last is set, and returns how many bytes it has done
// with. Events that follow each other go out in one write. It goes no further than the event that a ceiling ends the stream at.
func (s *stream) take(buffer []byte, last bool) int {
	var from, at int // [from, at) is to be written
	wrote := false
	for at < len(buffer) && s.stop == nil {
		size := s.framing.size(buffer[at:])
		if size == 0 {
			if !last && !s.full {
				break
			}
			size = len(buffer) - at
		}
		pieces, wasDone := s.answer.said.pieces, s.done
		if s.read(buffer[at:at+size]) && s.Withhold {
			wrote = s.write(buffer[from:at]) || wrote
			from = at + size
		}
		at += size
		s.outgrown(pieces, wasDone)
	}
	if s.write(buffer[from:at]) || wrote {
		s.sink.Flush()
	}
	return at
}

func (s *stream) write(data []byte) bool {
	if len(data) == 0 || s.gone {
		return false
	}
	if _, err := s.sink.Write(data); err != nil {
		s.gone = true
		return false
	}
	s.answer.FirstByte = true
	return true
}

// eventSize is the length of the first event with the blank line that ends it, 0 when it is not whole yet.
func eventSize(data []byte) int {
	at := 0
	for {
		i := bytes.IndexByte(data[at:], '\n')
		if i < 0 {
			return 0
		}
		line := data[at : at+i]
		at += i + 1
		if len(line) == 0 || len(line) == 1 && line[0] == '\r' {
			return at
		}
	}
}

var dataField = []byte("data:")

// read meters one event and reports whether it is one that only metering asked for.
func (s *stream) read(event []byte) bool {
	data, ok := s.framing.data(event)
	if !ok {
		return false
	}
	withhold, done := s.meter.event(data, &s.answer)
	s.done = done
	return withhold
}

// eventData is the data of an event, its lines joined.
func eventData(event []byte) (data []byte, found bool) {
	event = bytes.TrimPrefix(event, byteOrderMark) // a stream may begin with one
	for len(event) > 0 {
		line := event
		if i := bytes.IndexByte(event, '\n'); i >= 0 {
			line, event = event[:i], event[i+1:]
		} else {
			event = nil
		}
		more, ok := bytes.CutPrefix(line, dataField)
		switch more = bytes.TrimSpace(more); {
		case ok && found:
			data = append(append(slices.Clip(data), '\n'), more...)
		case ok:
			data, found = more, true
		}
	}
	return data, found
}
