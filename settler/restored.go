package settler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
	"tollgate/ledger/pg"
)

// A database that is restored from a backup, or a replica that takes over, lacks what was settled last and acknowledged to the
// stream and the outboxes. Every database therefore notes how far it holds the stream, and the stream's side keeps which database
// that was and the highest mark that was noted. Where the two disagree the consumer goes back to what the database holds: the
// stream keeps what was acknowledged, and posting is idempotent. Nothing is settled before that was decided, because the store
// lets no statement through to a server that was not accepted.

// positionEvery is how often the position is noted: what it is behind is settled once more after a restore.
const positionEvery = time.Second

// recognition bounds one comparison.
const recognition = 10 * time.Second

// knownLedger is what the stream's side knows of the database.
type knownLedger struct {
	Database string `json:"database"` // "" before the first note
	Mark     int64  `json:"mark"`

	bucket   jetstream.KeyValue
	revision uint64 // 0 when there is no entry
}

// disagrees reports whether the database is another one, or lacks a note that was made.
func (k *knownLedger) disagrees(p pg.Position) bool {
	return k.Database != "" && (k.Database != p.Database || k.Mark > p.Mark)
}

func (s *Settler) knownLedger(ctx context.Context) (*knownLedger, error) {
	k := &knownLedger{}
	var err error
	if k.bucket, err = s.js.KeyValue(ctx, event.ControlBucket); err != nil {
		return nil, fmt.Errorf("bucket %s: %w", event.ControlBucket, err)
	}
	entry, err := k.bucket.Get(ctx, event.LedgerKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return k, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", event.LedgerKey, err)
	}
	k.revision = entry.Revision()
	if err := json.Unmarshal(entry.Value(), k); err != nil {
		return nil, fmt.Errorf("read %s: %w", event.LedgerKey, err)
	}
	return k, nil
}

// note keeps the position in the database first: what is known besides it is never ahead of its own database. It errs when another
// settler has noted something since k was read.
func (s *Settler) note(ctx context.Context, k *knownLedger, p pg.Position) error {
	if err := s.store.NotePosition(ctx, p); err != nil {
		return err
	}
	data, err := json.Marshal(knownLedger{Database: p.Database, Mark: p.Mark})
	if err != nil {
		return err
	}
	if k.revision == 0 {
		_, err = k.bucket.Create(ctx, event.LedgerKey, data)
	} else {
		_, err = k.bucket.Update(ctx, event.LedgerKey, data, k.revision)
	}
	if err != nil {
		return fmt.Errorf("keep mark %d: %w", p.Mark, err)
	}
	return nil
}

// recognize compares the database with what is known of it and accepts it, after having the stream settled again from where it
// ends if it is another or an older one.
func (s *Settler) recognize(ctx context.Context) (*knownLedger, pg.Position, error) {
	known, err := s.knownLedger(ctx) // before the position, see note
	if err != nil {
		return nil, pg.Position{}, err
	}
	position, err := s.store.Position(ctx)
	if err != nil {
		return nil, pg.Position{}, err
	}
	if !known.disagrees(position) {
		s.store.Accept(position)
		return known, position, nil
	}
	if err := s.goBack(ctx, known, position); err != nil {
		return nil, pg.Position{}, fmt.Errorf("settle again from %d: %w", position.Sequence+1, err)
	}
	return s.recognize(ctx)
}

// goBack has everything settled again that the database is not known to hold. What stops halfway is begun anew: the mark comes last.
// Redis has newer versions of budgets than the database, so it is rebuilt, which waits until the stream is settled.
func (s *Settler) goBack(ctx context.Context, known *knownLedger, p pg.Position) error {
	s.metrics.restored.Inc()
	s.log.Error("Postgres is another database, or an older copy: what it lacks is settled again from the stream",
		"database", p.Database, "mark", p.Mark, "noted_at", p.NotedAt, "known_database", known.Database, "known_mark", known.Mark)
	if err := s.rebuild.Distrust(ctx); err != nil {
		return err
	}
	if err := s.js.DeleteConsumer(ctx, event.Stream, Consumer); err != nil &&
		!errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("take the consumer back: %w", err)
	}
	if _, err := s.ensureConsumer(ctx); err != nil {
		return err
	}
	p.Mark = max(p.Mark, known.Mark) + 1
	return s.note(ctx, known, p)
}

// startOf is the sequence from which a new consumer must read the stream: the first that the database is not known to hold. 0 is
// the stream's beginning.
func (s *Settler) startOf(ctx context.Context, stream *jetstream.StreamInfo) (uint64, error) {
	p, err := s.store.Position(ctx)
	if err != nil {
		return 0, err
	}
	state := stream.State
	switch {
	case p.Stream.IsZero():
		return 0, nil
	case !p.Stream.Equal(madeAt(stream)), p.Sequence > state.LastSeq: // made anew, or emptied
		s.log.Error("the stream is another one than the ledger was settled from: what outboxes still hold is sent again, the rest shows as gaps")
		return 0, nil
	case p.Sequence+1 < state.FirstSeq:
		s.log.Error("the stream does not reach back to what the ledger holds: what outboxes still hold is sent again, the rest shows as gaps",
			"held", p.Sequence, "first_on_stream", state.FirstSeq)
	}
	return p.Sequence + 1, nil
}

// madeAt is when the stream was made, as exact as Postgres keeps it.
func madeAt(stream *jetstream.StreamInfo) time.Time {
	return stream.Created.UTC().Truncate(time.Microsecond)
}

// keepPosition recognizes the database again and notes how far it holds the stream now.
func (s *Settler) keepPosition(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recognition, errors.New("position: took more than 10 s"))
	defer cancel()
	known, p, err := s.recognize(ctx)
	if err != nil {
		return err
	}
	// Read after the database was recognized: what is acknowledged has been committed there.
	stream, err := s.js.Stream(ctx, event.Stream)
	if err != nil {
		return fmt.Errorf("position: %w", err)
	}
	consumer, err := stream.Consumer(ctx, Consumer)
	if err != nil {
		return fmt.Errorf("position: %w", err)
	}
	made, held := madeAt(stream.CachedInfo()), min(consumer.CachedInfo().AckFloor.Stream, stream.CachedInfo().State.LastSeq)
	if known.Mark == p.Mark && p.Stream.Equal(made) && p.Sequence == held {
		return nil
	}
	p.Mark, p.Stream, p.Sequence = p.Mark+1, made, held
	if err := s.note(ctx, known, p); err != nil {
		s.log.Debug("position not noted, perhaps by another settler", "error", err)
	}
	return nil
}
