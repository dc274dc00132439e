package system

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tidwall/gjson"

	"tollgate/ledger/event"
)

// CheckClients holds what clients were answered against the ledger and the simulator's books.
func (s *System) CheckClients(answers []Answer) func(context.Context) ([]Line, error) {
	return func(ctx context.Context) ([]Line, error) {
		charges, err := s.charges(ctx)
		if err != nil {
			return nil, err
		}
		books, err := s.Sim.Books(ctx)
		if err != nil {
			return nil, err
		}
		billed := map[string]bool{}
		for _, b := range books {
			billed[b.TollgateRequestID] = true
		}
		var problems []string
		passed, refused := 0, 0
		seen := map[string]bool{}
		for _, a := range answers {
			switch {
			case a.Status == http.StatusOK:
				passed++
				if seen[a.ID] {
					problems = append(problems, a.ID+" was answered twice")
				}
				seen[a.ID] = true
				problems = append(problems, passedProblem(a, charges)...)
			case a.Status == http.StatusTooManyRequests && a.Reason != "":
				refused++
				if a.ID != "" && billed[a.ID] {
					problems = append(problems, a.ID+" was refused and billed")
				}
			}
		}
		return []Line{{
			Name: "I8 I9 clients' answers = ledger", Problem: strings.Join(problems[:min(len(problems), 10)], "; "),
			Figure: fmt.Sprintf("%d answers, %d with 200, %d refused", len(answers), passed, refused),
		}}, nil
	}
}

// passedProblem says what is wrong with the ledger's entry of an answer that had begun.
func passedProblem(a Answer, charges map[string]charge) []string {
	c, known := charges[a.ID]
	switch {
	case !known:
		return []string{fmt.Sprintf("%q was answered and is not in the ledger", a.ID)}
	case c.state != "settled" && c.state != "expired":
		return []string{fmt.Sprintf("%s was answered and is %s in the ledger", a.ID, c.state)}
	}
	total := gjson.GetBytes(a.Body, "usage.total_tokens")
	if a.Err == nil && total.Exists() && !c.marked() && total.Int() != c.input+c.output {
		return []string{fmt.Sprintf("%s: the client saw %d tokens, ledger %+v", a.ID, total.Int(), c)}
	}
	return nil
}

// CheckStream looks for events that the stream holds and Postgres does not.
func (s *System) CheckStream(ctx context.Context) ([]Line, error) {
	events, err := s.Events(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = gjson.GetBytes(e.Data, "id").Str
	}
	var missing int64
	const query = `
SELECT count(*) FROM unnest($1::text[]) AS id
WHERE NOT EXISTS (SELECT FROM events WHERE event_id = id)`
	if err := s.Pool.QueryRow(ctx, query, ids).Scan(&missing); err != nil {
		return nil, err
	}
	line := zero("I8 events on the stream, not in Postgres", missing)
	line.Figure = fmt.Sprintf("%d of %d", missing, len(ids))
	return []Line{line}, nil
}

// Event is a message of the stream.
type Event struct {
	Subject string
	Data    []byte
}

// Events reads the stream as it stands. It is safe for concurrent use.
func (s *System) Events(ctx context.Context) (events []Event, err error) {
	stream, err := s.JetStream.Stream(ctx, event.Stream)
	if err != nil {
		return nil, fmt.Errorf("the stream: %w", err)
	}
	total := int(stream.CachedInfo().State.Msgs)
	if total == 0 {
		return nil, nil
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	// The server would keep it for five minutes, and no more than a thousand.
	defer func() { err = errors.Join(err, s.forget(ctx, consumer)) }()
	for len(events) < total {
		batch, err := consumer.Fetch(min(500, total-len(events)), jetstream.FetchMaxWait(20*time.Second))
		if err != nil {
			return nil, err
		}
		before := len(events)
		for m := range batch.Messages() {
			events = append(events, Event{m.Subject(), m.Data()})
		}
		if err := batch.Error(); err != nil || len(events) == before {
			return nil, errors.Join(err, fmt.Errorf("the stream gave %d events of %d", len(events), total))
		}
	}
	return events, nil
}

// forget deletes a consumer that has been read.
func (s *System) forget(ctx context.Context, consumer jetstream.Consumer) error {
	err := s.JetStream.DeleteConsumer(ctx, event.Stream, consumer.CachedInfo().Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}
