package event

import (
	"encoding/json"
	"fmt"

	// Four times as fast as encoding/json at reading these types, and reading events is much of what the settler does. A
	// fuzz target holds the two equal. It does not write: it does not know omitzero.
	fastjson "github.com/goccy/go-json"
)

// Encode renders the event as JSON.
func (e *Event) Encode() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	return data, nil
}

// Decode reads one event and checks that the parts its kind needs are there. Every error wraps ErrInvalid.
func Decode(data []byte) (e *Event, err error) {
	// A message that the reader trips over is one that cannot be read, not the end of the settler.
	defer func() {
		if p := recover(); p != nil {
			e, err = nil, fmt.Errorf("%w: %v", ErrInvalid, p)
		}
	}()
	e = &Event{}
	if err := fastjson.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := e.check(); err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrInvalid, e.ID, err)
	}
	return e, nil
}
