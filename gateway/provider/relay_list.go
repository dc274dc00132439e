package provider

import "bytes"

// framing cuts a stream into its events.
type framing interface {
	// size is the length of the first event with all that belongs to it, 0 when it is not whole yet.
	size(data []byte) int
	// data is what an event carries, false for one that carries nothing.
	data(event []byte) ([]byte, bool)
	// closing writes events that end the stream.
	closing(events []addition) []byte
}

// sseFraming is of server-sent events.
type sseFraming struct{}

func (sseFraming) size(data []byte) int             { return eventSize(data) }
func (sseFraming) data(event []byte) ([]byte, bool) { return eventData(event) }

func (sseFraming) closing(events []addition) []byte {
	var text []byte
	for _, e := range events {
		if e.name != "" {
			text = append(append(append(text, "event: "...), e.name...), '\n')
		}
		text = append(append(append(text, "data: "...), e.data...), "\n\n"...)
	}
	return text
}

// listFraming is of one JSON list, whose elements are the events. Its last event is the bracket that closes it.
type listFraming struct{}

func (listFraming) size(data []byte) int {
	at := 0
	for at < len(data) && isBetween(data[at]) {
		at++
	}
	switch {
	case at == len(data):
		return 0
	case data[at] != '{':
		return at + 1 // the closing bracket, or what is no list of objects
	}
	depth := 0
	for ; at < len(data); at++ {
		switch data[at] {
		case '"':
			end := stringEnd(data[at+1:])
			if end < 0 {
				return 0
			}
			at += 1 + end
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return at + 1
			}
		}
	}
	return 0
}

func isBetween(c byte) bool {
	return c == '[' || c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t'
}

// stringEnd is where the quote stands that ends a string, -1 when it has not come yet.
func stringEnd(data []byte) int {
	for at := 0; ; {
		i := bytes.IndexByte(data[at:], '"')
		if i < 0 {
			return -1
		}
		at += i
		escapes := 0
		for escapes < at && data[at-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
		at++
	}
}

func (listFraming) data(event []byte) ([]byte, bool) {
	event = bytes.TrimLeft(event, "[, \n\r\t")
	event = bytes.TrimRight(event, " \n\r\t")
	return event, len(event) > 0
}

// closing follows an element: a stream is only ended where one made it too large.
func (listFraming) closing(events []addition) []byte {
	var text []byte
	for _, e := range events {
		text = append(append(text, ",\n"...), e.data...)
	}
	return append(text, "\n]\n"...)
}
