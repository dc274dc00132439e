package provider

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

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
	Events     int64 // events of a stream that carried a piece of the answer
	Text       int64 // estimate of the text that a stream carried, in hundredths of a token
	FirstByte  bool  // something reached the caller
	Finish     ledger.Reason
}

// ErrUpstreamCut is wrapped by errors for an answer that broke off.
var ErrUpstreamCut = errors.New("the provider's answer broke off")

// maxAnswer bounds a plain answer that is read whole before it is passed on.
const maxAnswer = 256 << 20

// ReadAnswer reads a plain answer whole and meters it. An error wraps ErrUpstreamCut; nothing has reached the caller then.
func (e Endpoint) ReadAnswer(response *http.Response) ([]byte, Answer, error) {
	var buffer bytes.Buffer
	if n := response.ContentLength; n > 0 && n < maxAnswer {
		buffer.Grow(int(n) + bytes.MinRead)
	}
	n, err := io.Copy(&buffer, io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, Answer{Finish: cutReason(err)}, fmt.Errorf("%w: %w", ErrUpstreamCut, err)
	}
	if n > maxAnswer {
		return nil, Answer{Finish: ledger.ReasonUpstreamCut}, fmt.Errorf("%w: it is larger than %d bytes", ErrUpstreamCut, maxAnswer)
	}
	body := buffer.Bytes()
	answer := Answer{Finish: ledger.ReasonOK}
	if text := bytes.TrimPrefix(body, byteOrderMark); wholeJSON(text) {
		apis[e.Path].answer(text, &answer)
	}
	return body, answer, nil
}

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

// maxEvent bounds how much of an unfinished event is held back; a longer one is passed on in pieces, unmetered.
const maxEvent = 16 << 20

// stream relays the events of a stream.
type stream struct {
	framing  framing
	sink     Sink
	withhold bool
	meter    meter
	answer   Answer
	done     bool // the last event was seen
	gone     bool // the caller does not take any more
}

// RelayStream passes server-sent events on as they arrive and meters them. withhold keeps back what only metering asked for.
// When the caller leaves and drain is set, the rest is read for its usage alone. The error wraps
// ErrUpstreamCut when the provider broke off; the caller must then see its connection aborted.
func (e Endpoint) RelayStream(sink Sink, body io.Reader, withhold, drain bool) (Answer, error) {
	return e.relay(&stream{framing: sseFraming{}, sink: sink, withhold: withhold}, body, drain)
}

// RelayList passes the elements of a JSON list on as they arrive, and meters them as RelayStream does events.
func (e Endpoint) RelayList(sink Sink, body io.Reader, drain bool) (Answer, error) {
	return e.relay(&stream{framing: listFraming{}, sink: sink}, body, drain)
}

func (e Endpoint) relay(s *stream, body io.Reader, drain bool) (Answer, error) {
	s.meter = apis[e.Path].meter()
	err := s.relay(body, drain)
	s.meter.close(&s.answer)
	return s.answer, err
}

func (s *stream) relay(body io.Reader, drain bool) error {
	buffer := make([]byte, 0, 16<<10)
	for {
		if len(buffer) == cap(buffer) {
			buffer = append(buffer, make([]byte, len(buffer))...)[:len(buffer)]
		}
		n, err := body.Read(buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
		used := s.take(buffer, err != nil)
		buffer = buffer[:copy(buffer, buffer[used:])]
		if s.gone && !drain {
			s.answer.Finish = ledger.ReasonClientGone
			return nil
		}
		if err != nil {
			return s.end(err)
		}
	}
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
// with. Events that follow each other go out in one write.
func (s *stream) take(buffer []byte, last bool) int {
	var from, at int // [from, at) is to be written
	wrote := false
	for at < len(buffer) {
		size := s.framing.size(buffer[at:])
		if size == 0 {
			if !last && len(buffer)-at < maxEvent {
				break
			}
			size = len(buffer) - at
		}
		if s.read(buffer[at:at+size]) && s.withhold {
			wrote = s.write(buffer[from:at]) || wrote
			from = at + size
		}
		at += size
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
	withhold, last := s.meter.event(data, &s.answer)
	s.done = s.done || last
	return withhold
}

// Streamed estimates the output that a stream carried: its text by the heuristic, and at least a token an event.
func (a Answer) Streamed() ledger.Tokens {
	return max(ledger.Tokens((a.Text+99)/100), ledger.Tokens(a.Events), 1)
}

// deltaText is the text that an event adds to the answer, as it stands in the JSON behind one of the fields. It only feeds an
// estimate, so the event is searched, not parsed.
func deltaText(data []byte, fields ...[]byte) string {
	for _, field := range fields {
		_, text, ok := bytes.Cut(data, field)
		if !ok {
			continue
		}
		for i := 0; i < len(text); i++ {
			switch text[i] {
			case '\\':
				i++
			case '"':
				return string(text[:i])
			}
		}
		return string(text)
	}
	return ""
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
