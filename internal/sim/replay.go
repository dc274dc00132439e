package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Exchange is one recorded exchange with a provider: a line of a file of JSON objects.
type Exchange struct {
	ID          string          `json:"id"`
	Protocol    string          `json:"protocol"` // openai-chat, openai-responses, anthropic-messages or gemini
	Provider    string          `json:"provider"`
	Path        string          `json:"path"`
	Request     json.RawMessage `json:"request"`
	Status      int             `json:"status"`
	ContentType string          `json:"content_type"`
	Stream      bool            `json:"stream"`
	Response    string          `json:"response"`
}

// ReadExchanges reads a file of recorded exchanges.
func ReadExchanges(r io.Reader) ([]*Exchange, error) {
	var all []*Exchange
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			x := &Exchange{}
			if err := json.Unmarshal(line, x); err != nil {
				return nil, fmt.Errorf("exchange %d: %w", len(all)+1, err)
			}
			all = append(all, x)
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("exchange %d: %w", len(all)+1, err)
		}
	}
}

// ReplayHeader names the exchange that a request is of: bodies repeat.
const ReplayHeader = "X-Sim-Exchange"

// Replay answers recorded exchanges as they were recorded. It is safe for concurrent use once it is filled.
type Replay struct {
	Exchanges map[string]*Exchange // by id
	// Sent, if set, is called after each event of a stream has been written, before the next is.
	Sent func(x *Exchange, event string)
	// Asked, if set, is called with what was asked.
	Asked func(x *Exchange, r *http.Request, body []byte)
}

// ServeHTTP answers a request that ReplayHeader names, whose path must end as the recorded one does.
func (p *Replay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := p.Exchanges[r.Header.Get(ReplayHeader)]
	if x == nil || !strings.HasSuffix(r.URL.Path, x.Path) {
		http.Error(w, "no such exchange", http.StatusNotImplemented)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if p.Asked != nil {
		p.Asked(x, r, body)
	}
	w.Header().Set("Content-Type", x.ContentType)
	w.WriteHeader(x.Status)
	if !x.Stream {
		_, _ = io.WriteString(w, x.Response) // a caller that has left does not read it
		return
	}
	for event := range strings.SplitAfterSeq(x.Response, "\n\n") {
		if event == "" {
			continue
		}
		_, _ = io.WriteString(w, event)
		w.(http.Flusher).Flush()
		if p.Sent != nil {
			p.Sent(x, event)
		}
	}
}
