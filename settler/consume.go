package settler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
)

// Consumer is the durable consumer that all settlers share.
const Consumer = "settler"

// stallCheck is how often the flow of messages is compared with what waits on the stream.
const stallCheck = 5 * time.Second

// ensureConsumer makes the stream and the consumer, or brings them to the configuration. Idempotent.
func (s *Settler) ensureConsumer(ctx context.Context) (jetstream.Consumer, error) {
	stream, err := s.ensureStream(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", event.Stream, err)
	}
	// MaxDeliver stays unlimited: an event that the settler cannot settle now must not be given up by the server.
	config := jetstream.ConsumerConfig{
		Durable: Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.config.AckWait, MaxAckPending: s.config.MaxAckPending,
	}
	switch present, err := stream.Consumer(ctx, Consumer); {
	case err == nil: // where it began does not change
		config.DeliverPolicy, config.OptStartSeq = present.CachedInfo().Config.DeliverPolicy, present.CachedInfo().Config.OptStartSeq
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		if config.OptStartSeq, err = s.startOf(ctx, stream.CachedInfo()); err != nil {
			return nil, fmt.Errorf("consumer %s: %w", Consumer, err)
		}
		if config.OptStartSeq > 0 {
			config.DeliverPolicy = jetstream.DeliverByStartSequencePolicy
		}
	default:
		return nil, fmt.Errorf("consumer %s: %w", Consumer, err)
	}
	consumer, err := stream.CreateOrUpdateConsumer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", Consumer, err)
	}
	return consumer, nil
}

// ensureStream writes the stream's configuration only where it differs: settlers start often, and side by side.
func (s *Settler) ensureStream(ctx context.Context) (jetstream.Stream, error) {
	config := jetstream.StreamConfig{
		Name: event.Stream, Subjects: []string{event.Subjects}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardNew, Duplicates: 2 * time.Minute, MaxAge: s.config.MaxAge, Replicas: s.config.Replicas,
		AllowDirect: true,
	}
	stream, err := s.js.Stream(ctx, event.Stream)
	switch {
	case err == nil && asConfigured(stream.CachedInfo().Config, config):
		return stream, nil
	case err == nil || errors.Is(err, jetstream.ErrStreamNotFound):
		return s.js.CreateOrUpdateStream(ctx, config)
	default:
		return nil, err
	}
}

// asConfigured compares what a configuration sets; the server fills in the rest.
func asConfigured(present, config jetstream.StreamConfig) bool {
	return slices.Equal(present.Subjects, config.Subjects) && present.Retention == config.Retention && present.Discard == config.Discard &&
		present.Duplicates == config.Duplicates && present.MaxAge == config.MaxAge && max(present.Replicas, 1) == max(config.Replicas, 1) &&
		present.AllowDirect == config.AllowDirect
}

// consume keeps messages coming until ctx ends. A consumer that is gone, or stands still while messages wait, is opened anew.
func (s *Settler) consume(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := s.consumeOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("consumer lost", "error", err)
			if err := sleep(ctx, time.Second); err != nil {
				return nil
			}
		}
	}
	return nil
}

func (s *Settler) consumeOnce(ctx context.Context) error {
	consumer, err := s.ensureConsumer(ctx)
	if err != nil {
		return err
	}
	var received atomic.Int64
	failed := make(chan error, 1)
	// A channel is full while its worker is behind or Postgres is away: then the handler waits, and no more is pulled.
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		received.Add(1)
		select {
		case <-ctx.Done():
			s.giveBack(m)
			return
		default:
		}
		select {
		case s.messages[s.workerOf(m.Data())] <- m:
		case <-ctx.Done():
			s.giveBack(m)
		}
	}, jetstream.PullMaxMessages(s.config.Batch), jetstream.PullHeartbeat(5*time.Second), jetstream.PullExpiry(15*time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
				select {
				case failed <- err:
				default:
				}
			}
		}))
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	defer func() {
		consuming.Drain() // what has arrived is handed over or given back
		select {
		case <-consuming.Closed():
		case <-time.After(2 * time.Second): // NATS is away; the server hands everything out again by itself
			consuming.Stop()
		}
	}()
	ticker := time.NewTicker(stallCheck)
	defer ticker.Stop()
	for last := int64(-1); ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-consuming.Closed():
			return errors.New("subscription closed")
		case <-ticker.C:
		}
		n := received.Load()
		if n == last && !s.waiting() {
			info, err := consumer.Info(ctx)
			if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
				return err
			}
			if err == nil && info.NumPending > 0 && info.NumAckPending < s.config.MaxAckPending {
				return fmt.Errorf("%d messages wait and none arrive", info.NumPending)
			}
		}
		last = n
	}
}

// spreadFor is how long all workers get messages after the first one had too many.
const spreadFor = time.Second

// workerOf is the first worker while it keeps up, since one large batch takes less than two small ones. Else it has one worker
// settle all events of a reservation: of two that insert its row at once, one would wait for the other's whole batch. The id is
// looked for where events have it and not decoded: one that is not found costs time, and no more. A worker that hangs makes the
// others wait: they would meet on the same Postgres.
func (s *Settler) workerOf(body []byte) int {
	now := s.now().UnixNano()
	if len(s.messages[0]) > cap(s.messages[0])/2 {
		s.spread.Store(now + spreadFor.Nanoseconds())
	}
	if now > s.spread.Load() {
		return 0
	}
	const uuid = 36
	_, id, _ := bytes.Cut(body, []byte(`"id":"`))
	return int(maphash.Bytes(s.seed, id[:min(uuid, len(id))]) % uint64(len(s.messages)))
}

// waiting tells whether a worker has messages that it has not looked at.
func (s *Settler) waiting() bool {
	return slices.ContainsFunc(s.messages, func(messages chan jetstream.Msg) bool { return len(messages) > 0 })
}

// awaitSettled waits until everything that is on the stream now has been settled, by whichever settler.
func (s *Settler) awaitSettled(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, event.Stream)
	if err != nil {
		return fmt.Errorf("stream's end: %w", err)
	}
	end := stream.CachedInfo().State.LastSeq
	for {
		consumer, err := s.js.Consumer(ctx, event.Stream, Consumer)
		if err != nil {
			return fmt.Errorf("consumer's position: %w", err)
		}
		info := consumer.CachedInfo()
		if settledThrough(info, end) {
			return nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("settle up to %d, at %d: %w", end, info.AckFloor.Stream, context.Cause(ctx))
		}
	}
}

// settledThrough tells whether all that the stream holds up to the sequence is settled. How many messages wait is not asked: the
// server may count one only a moment after it has acknowledged its publication.
func settledThrough(info *jetstream.ConsumerInfo, end uint64) bool {
	return info.AckFloor.Stream >= end || info.Delivered.Stream >= end && info.NumAckPending == 0
}

// measureLag keeps the metric of the lag.
func (s *Settler) measureLag(ctx context.Context) error {
	lag, err := s.lag(ctx)
	if err != nil {
		return fmt.Errorf("measure lag: %w", err)
	}
	s.metrics.lag.Set(lag.Seconds())
	return nil
}

// lag is how old the oldest event is that no settler has acknowledged; 0 when there is none. It errs when NATS is away.
func (s *Settler) lag(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("lag: NATS did not answer"))
	defer cancel()
	consumer, err := s.js.Consumer(ctx, event.Stream, Consumer)
	if err != nil {
		return 0, fmt.Errorf("consumer's position: %w", err)
	}
	info := consumer.CachedInfo()
	if info.NumPending == 0 && info.NumAckPending == 0 {
		return 0, nil
	}
	stream, err := s.js.Stream(ctx, event.Stream)
	if err != nil {
		return 0, fmt.Errorf("stream's state: %w", err)
	}
	oldest := max(info.AckFloor.Stream+1, stream.CachedInfo().State.FirstSeq)
	message, err := stream.GetMsg(ctx, oldest)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil // settled or aged away in between
	}
	if err != nil {
		return 0, fmt.Errorf("oldest event: %w", err)
	}
	return max(0, s.now().Sub(message.Time)), nil
}
