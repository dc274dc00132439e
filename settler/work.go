package settler

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// batchTimeout bounds the settlement of one batch, rebuilds that it waits for included.
const batchTimeout = 30 * time.Second

// maxPause is the longest time between two looks at a Postgres that is away.
const maxPause = 5 * time.Second

// delivery is a message with what it was decoded to.
type delivery struct {
	message jetstream.Msg
	pg.Received
}

// work settles batch after batch until ctx ends. Messages that are not settled then go back to the stream.
func (s *Settler) work(ctx context.Context, messages <-chan jetstream.Msg) error {
	defer s.giveBackRest(messages)
	for {
		batch := s.collect(ctx, messages)
		if batch == nil {
			return nil
		}
		// A batch that was begun is finished, also after the signal to stop.
		work, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), batchTimeout, errors.New("settle: took more than 30 s"))
		err := s.settle(work, batch)
		cancel()
		if err != nil {
			s.log.Warn("batch not settled, trying again", "events", len(batch), "error", err)
			s.awaitPostgres(ctx)
		}
	}
}

// collect waits for a message, then takes what else there is, up to a batch, for the time of the linger. nil when ctx ends.
func (s *Settler) collect(ctx context.Context, messages <-chan jetstream.Msg) []jetstream.Msg {
	var batch []jetstream.Msg
	select {
	case <-ctx.Done():
		return nil
	case m := <-messages:
		batch = append(batch, m)
	}
	timer := time.NewTimer(s.config.Linger)
	defer timer.Stop()
	for len(batch) < s.config.Batch {
		select {
		case m := <-messages:
			batch = append(batch, m)
			continue
		case <-timer.C:
		case <-ctx.Done():
		}
		return batch
	}
	return batch
}

// giveBackRest returns what nobody settles any more, so that others need not wait for AckWait.
func (s *Settler) giveBackRest(messages <-chan jetstream.Msg) {
	for {
		select {
		case m := <-messages:
			s.giveBack(m)
		default:
			return
		}
	}
}

func (s *Settler) giveBack(m jetstream.Msg) {
	if err := m.Nak(); err != nil {
		s.log.Debug("event not given back: it comes again after the ack wait", "error", err)
	}
}

// settle brings one batch into Postgres and Redis and acknowledges it. When it errs, everything that was not settled has
// been given back to the stream.
func (s *Settler) settle(ctx context.Context, messages []jetstream.Msg) error {
	deliveries, err := s.decode(ctx, messages)
	if err == nil && len(deliveries) > 0 {
		err = s.post(ctx, deliveries)
	}
	if err != nil {
		// What was settled of the batch has been acknowledged: a message takes only one answer.
		for _, m := range messages {
			if nakErr := m.NakWithDelay(time.Second); nakErr != nil && !errors.Is(nakErr, jetstream.ErrMsgAlreadyAckd) {
				break
			}
		}
	}
	return err
}

// decode reads the messages; one that can never become an event is parked.
func (s *Settler) decode(ctx context.Context, messages []jetstream.Msg) ([]delivery, error) {
	deliveries := make([]delivery, 0, len(messages))
	for _, m := range messages {
		d := delivery{message: m, Received: pg.Received{Body: m.Data(), Subject: m.Subject()}}
		metadata, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("message on %s: %w", m.Subject(), err)
		}
		d.StreamSeq = metadata.Sequence.Stream
		if d.Event, err = read(d.Body); err != nil {
			if err := s.park(ctx, d, err); err != nil {
				return nil, err
			}
			continue
		}
		deliveries = append(deliveries, d)
	}
	return deliveries, nil
}

// read errs with event.ErrInvalid.
func read(body []byte) (*event.Event, error) {
	e, err := event.Decode(body)
	if err == nil && !utf8.Valid(body) {
		err = fmt.Errorf("%w: not UTF-8", event.ErrInvalid)
	}
	return e, err
}

// park keeps a message that cannot be settled, and takes it off the stream's hands.
func (s *Settler) park(ctx context.Context, d delivery, reason error) error {
	if err := s.store.Park(ctx, d.StreamSeq, d.Subject, reason.Error(), d.Body, d.Event); err != nil {
		return err
	}
	kind := kindUnknown
	if d.Event != nil {
		kind = string(d.Event.Kind)
	}
	s.metrics.events.WithLabelValues(kind, outcomeParked).Inc()
	s.log.Error("event parked", "stream_seq", d.StreamSeq, "subject", d.Subject, "reason", reason)
	return d.message.TermWithReason("parked")
}

// post settles a batch. When some event of it can never be posted, the halves are settled apart, down to the single one,
// which is parked.
func (s *Settler) post(ctx context.Context, batch []delivery) error {
	err := s.postTogether(ctx, batch)
	switch {
	case err == nil:
		return nil
	case !pg.Permanent(err):
		return err
	case len(batch) == 1:
		return s.park(ctx, batch[0], err)
	}
	half := len(batch) / 2
	return errors.Join(s.post(ctx, batch[:half]), s.post(ctx, batch[half:]))
}

// postTogether is steps 8 to 10 of the path: one transaction, the write-back, the acknowledgement.
func (s *Settler) postTogether(ctx context.Context, batch []delivery) error {
	received := make([]pg.Received, len(batch))
	for i := range batch {
		received[i] = batch[i].Received
	}
	result, err := s.postAndTell(ctx, received)
	if err != nil {
		return err
	}
	s.metrics.batchSize.Observe(float64(len(batch)))
	s.count(received, result.Fates)
	for _, d := range batch {
		if err := d.message.Ack(); err != nil {
			// Settled all the same: the message comes again and is a duplicate then.
			s.log.Warn("event not acknowledged", "event_id", d.Event.ID, "error", err)
			break
		}
	}
	return nil
}

// count notes what became of a batch.
func (s *Settler) count(batch []pg.Received, fates []pg.Fate) {
	for i, fate := range fates {
		s.metrics.events.WithLabelValues(string(batch[i].Event.Kind), string(fate)).Inc()
		if fate == pg.FateConflict {
			s.log.Error("event id is known with other content", "event_id", batch[i].Event.ID, "stream_seq", batch[i].StreamSeq)
		}
	}
	s.noteGrants(batch)
}

// postAndTell keeps rebuilds out from before the transaction until after the write-back.
func (s *Settler) postAndTell(ctx context.Context, batch []pg.Received) (pg.Result, error) {
	session, err := s.store.Settling(ctx)
	if err != nil {
		return pg.Result{}, err
	}
	defer session.Close(ctx)
	result, err := session.Post(ctx, batch)
	if err == nil {
		s.writeBack(ctx, result.WriteBacks)
	}
	return result, err
}

// awaitPostgres returns when Postgres answers, or ctx ends.
func (s *Settler) awaitPostgres(ctx context.Context) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, maxPause) {
		if sleep(ctx, pause) != nil {
			return
		}
		look, cancel := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("ping: took more than 2 s"))
		err := s.store.Ping(look)
		cancel()
		if err == nil {
			return
		}
	}
}
