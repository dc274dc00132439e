package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"tollgate/e2e/stack"
	"tollgate/internal/sim"
)

// Sim is the provider simulator's process. Its methods are safe for concurrent use.
type Sim struct {
	*stack.Process

	URL    string
	client *http.Client
}

// Control sets how every later request is answered, as a JSON object; "{}" brings the defaults back.
func (m *Sim) Control(ctx context.Context, settings string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL+"/sim/control", bytes.NewReader([]byte(settings)))
	if err != nil {
		return err
	}
	res, err := m.client.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusNoContent {
		err = fmt.Errorf("simulator: status %d", res.StatusCode)
	}
	return joinClose(err, res.Body)
}

// Totals are the sums of the simulator's books.
func (m *Sim) Totals(ctx context.Context) (totals sim.Totals, err error) {
	return totals, m.read(ctx, "/sim/totals", &totals)
}

// Books are all records of the simulator.
func (m *Sim) Books(ctx context.Context) (records []sim.Record, err error) {
	return records, m.read(ctx, "/sim/books", &records)
}

func (m *Sim) read(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+path, nil)
	if err != nil {
		return err
	}
	res, err := m.client.Do(req)
	if err != nil {
		return err
	}
	return joinClose(json.NewDecoder(res.Body).Decode(into), res.Body)
}

// joinClose reads the body to its end, so that its connection can be used again, and closes it.
func joinClose(err error, body io.ReadCloser) error {
	_, rest := io.Copy(io.Discard, body)
	return errors.Join(err, rest, body.Close())
}
