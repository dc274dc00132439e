package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"tollgate/ledger/event"
)

const bareConsumer = "bare"

// bareConsume takes the stream's events with a consumer like the settlers', acknowledges each.
func (s *system) bareConsume(ctx context.Context, events int) (round SettleRound, err error) {
	round.What = "bare consume"
	consumer, err := s.js.CreateOrUpdateConsumer(ctx, event.Stream, jetstream.ConsumerConfig{
		Durable: bareConsumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute, MaxAckPending: 20_000,
	})
	if err != nil {
		return round, err
	}
	defer func() { err = errors.Join(err, s.js.DeleteConsumer(ctx, event.Stream, bareConsumer)) }()
	before, err := take(s.pids)
	if err != nil {
		return round, err
	}
	start := time.Now()
	failed := make(chan error, 1)
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		if err := m.Ack(); err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}, jetstream.PullMaxMessages(2000))
	if err != nil {
		return round, err
	}
	defer consuming.Stop()
	samples, err := s.awaitEmpty(ctx, bareConsumer, start)
	if err != nil {
		return round, err
	}
	select {
	case err := <-failed:
		return round, err
	default:
	}
	round, err = s.newRound(round.What, events, samples[len(samples)-1].After, before)
	round.Bare, round.Samples = true, samples
	return round, err
}

// journal is the tables whose rows settlement writes, one for each event or request.
var journal = []string{"events", "reservations", "transfers"}

// bareCopy copies the ledger's rows of so many events into tables of the same columns, stored as migration 00001 has events
// stored: a row that Postgres compresses or moves elsewhere costs twice as much. Reading the rows counts in the processor time,
// not in the rate.
func (s *system) bareCopy(ctx context.Context, events int, indexed bool) (round SettleRound, err error) {
	name, like := "bare", "INCLUDING STORAGE INCLUDING COMPRESSION"
	round.What = "bare copy"
	if indexed {
		name, like = "indexed", "INCLUDING ALL"
		round.What = "copy with indexes"
	}
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return round, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	before, err := take(s.pids)
	if err != nil {
		return round, err
	}
	var took time.Duration
	for _, table := range journal {
		var rows bytes.Buffer
		if _, err := conn.PgConn().CopyTo(ctx, &rows, "COPY (SELECT * FROM "+table+") TO STDOUT (FORMAT binary)"); err != nil {
			return round, fmt.Errorf("read %s: %w", table, err)
		}
		// In a transaction of its own: what is copied into a table that the same transaction made need not be logged.
		to := name + "_" + table
		if _, err := conn.Exec(ctx, "CREATE TABLE "+to+" (LIKE "+table+" "+like+") WITH (toast_tuple_target = 8160)"); err != nil {
			return round, err
		}
		if err := s.checkpoint(ctx); err != nil {
			return round, err
		}
		start := time.Now()
		if _, err := conn.PgConn().CopyFrom(ctx, &rows, "COPY "+to+" FROM STDIN (FORMAT binary)"); err != nil {
			return round, fmt.Errorf("copy %s: %w", table, err)
		}
		took += time.Since(start)
		if _, err := conn.Exec(ctx, "DROP TABLE "+to); err != nil {
			return round, err
		}
	}
	round, err = s.newRound(round.What, events, took, before)
	round.Bare = !indexed
	return round, err
}

// checkpoint has Postgres write what it owes to the disk, so that no measurement pays for the one before.
func (s *system) checkpoint(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CHECKPOINT")
	return errors.Join(err, conn.Close(ctx))
}
